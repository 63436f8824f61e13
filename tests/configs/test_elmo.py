import dataclasses
import json

import pytest

from kbert.configs.elmo import ElmoConfig


def test_defaults_are_the_originals():
    config = ElmoConfig()
    assert (config.lstm_size, config.projection_size, config.num_layers) == (4096, 512, 2)
    assert (config.num_filters, config.num_highway, config.max_characters) == (2048, 2, 50)
    assert (config.cell_clip, config.projection_clip, config.dropout) == (3.0, 3.0, 0.1)
    assert config.skip_connections
    assert config.vocabulary_size is None
    assert config.hidden_size == 1024


def test_round_trip_through_json():
    config = ElmoConfig(filters=[[1, 4], [3, 8]], cell_clip=None, vocabulary_size=9)
    assert config.filters == ((1, 4), (3, 8))
    again = ElmoConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lstm_size = 4


def test_an_unknown_key_lists_the_close_ones():
    with pytest.raises(ValueError, match=r"ElmoConfig .*Did you mean: lstm_size.*'lstm_sise'"):
        ElmoConfig.from_dict({"lstm_sise": 3})
    with pytest.raises(ValueError, match="Did you mean: dropout"):
        ElmoConfig().replace(dropuot=0.2)


def test_the_softmax_is_counted_where_there_is_one():
    assert ElmoConfig().count_parameters() == 93_600_848
    with_softmax = ElmoConfig(vocabulary_size=793_471).count_parameters()
    assert with_softmax == 93_600_848 + 793_471 * 513


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"character_size": 0}, "`character_size` must be an integer of at least 1.*: 0"),
        ({"num_layers": 2.0}, "`num_layers` must be an integer of at least 1.*: 2.0"),
        ({"num_highway": -1}, "`num_highway` must be an integer of at least 0.*: -1"),
        ({"max_characters": 2}, "`max_characters` must be an integer of at least 3.*: 2"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be an integer of at least 1.*: 0"),
        ({"filters": ()}, r"`filters` must be pairs .*: \(\)"),
        ({"filters": ((1, 2, 3),)}, r"`filters` must be pairs .*: \(\(1, 2, 3\),\)"),
        ({"filters": "1x32"}, "`filters` must be pairs .*: '1x32'"),
        ({"filters": ((1, 0),)}, "`filters` must be an integer of at least 1.*: 0"),
        ({"filters": ((9, 4),), "max_characters": 8}, "wider.*: width 9, max_characters=8"),
        ({"activation": "swish"}, "`activation` must be one of gelu, .*: 'swish'"),
        ({"cell_clip": 0}, "`cell_clip` must be a number that is positive.*: 0"),
        ({"projection_clip": float("inf")}, "`projection_clip` must be a number.*: inf"),
        ({"skip_connections": 1}, "`skip_connections` must be True or False.*: 1"),
        ({"dropout": 1.0}, "`dropout` must be a number that is at least 0 and less than 1.*: 1.0"),
    ],
)
def test_bad_values_say_the_rule(changes, message):
    with pytest.raises(ValueError, match=message):
        ElmoConfig(**changes)
