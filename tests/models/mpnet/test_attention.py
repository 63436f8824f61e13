"""MPNet's part: what is saved, counted and refused; `test_reference_family.py` has equality."""

import numpy as np
import pytest

from kbert.models import Encoder, describe
from tests.harness import KINDS, randomise, tiny_config, tiny_inputs, to_numpy


@pytest.mark.jax_slow
def test_saved_and_counted(tmp_path):
    encoder = Encoder(tiny_config(**KINDS["relative bias"]))
    randomise(encoder)
    assert encoder.count_params() == describe(encoder.config).parameters
    encoder.save_to_preset(tmp_path)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    inputs = tiny_inputs(encoder.config)
    np.testing.assert_array_equal(
        to_numpy(again(inputs)["sequence"]), to_numpy(encoder(inputs)["sequence"])
    )


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        ({"num_buckets": 10}, {}, "a multiple of 4.*num_buckets=10"),
        ({"num_buckets": 32, "max_distance": 8}, {}, "than num_buckets / 4.*max_distance=8"),
        ({}, {"positions": "rotary"}, "positions='rotary'"),
        ({}, {"attention_pattern": (4,)}, r"attention_pattern=\(4,\)"),
        ({}, {"num_key_value_heads": 2}, "num_key_value_heads=2"),
    ],
)
def test_what_it_may_not_be(options, values, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(part={"name": "relative_bias", **options}, num_segments=0, **values)
