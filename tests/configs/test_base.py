import dataclasses

import pytest

from kbert.configs.encoder import EncoderConfig

SIZES = {
    "vocabulary_size": 10,
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 16,
}


def test_defaults_are_berts():
    config = EncoderConfig(**SIZES)
    assert config.max_positions == 512
    assert config.num_segments == 2
    assert config.activation == "gelu_tanh"
    assert config.layer_norm_epsilon == 1e-12
    assert config.pooler_activation == "tanh"
    assert config.embedding_width == 8
    assert config.num_blocks == 2


def test_round_trip_through_a_dict():
    config = EncoderConfig(**SIZES, embedding_size=4, num_layer_groups=1, pooler_activation=None)
    assert EncoderConfig.from_dict(config.to_dict()) == config
    assert config.embedding_width == 4
    assert config.num_blocks == 1


def test_what_a_layer_attends_to():
    config = EncoderConfig(
        **SIZES | {"num_layers": 5},
        positions="rotary",
        rotary_base=160_000.0,
        local_rotary_base=500.0,
        attention_pattern=["global", 8, 4],  # as JSON has it
    )
    assert [config.window(layer) for layer in range(5)] == [None, 8, 4, None, 8]
    bases = [config.layer_rotary_base(layer) for layer in range(5)]
    assert bases == [160_000.0, 500.0, 500.0, 160_000.0, 500.0]
    assert config.attention_pattern == ("global", 8, 4)
    assert EncoderConfig.from_dict(config.to_dict()) == config
    assert hash(config) == hash(config.replace())
    assert config.replace(local_rotary_base=None).layer_rotary_base(1) == 160_000.0
    assert EncoderConfig(**SIZES, positions="rotary").layer_rotary_base(0) == 10_000.0
    assert EncoderConfig(**SIZES).layer_rotary_base(0) is None


def test_biases_and_their_exceptions():
    config = EncoderConfig(**SIZES, feed_forward="gated", bias_exceptions=["gate"])  # as JSON
    assert EncoderConfig.from_dict(config.to_dict()) == config
    assert [config.has_bias(part) for part in ("", "gate", "heads")] == [True, False, True]
    config = config.replace(use_bias=False, bias_exceptions=("heads",))
    assert [config.has_bias(part) for part in ("", "gate", "heads")] == [False, False, True]
    assert (config.key_value_heads, config.replace(num_key_value_heads=1).key_value_heads) == (2, 1)


def test_later_fields_are_said_where_they_are_used():
    """So a preset of BERT is what the version before wrote and reads."""
    plain = EncoderConfig(**SIZES)
    assert not set(EncoderConfig.LATER) & set(plain.to_dict())
    rotary = plain.replace(positions="rotary", attention_pattern=("global", 4))
    assert set(EncoderConfig.LATER) & set(rotary.to_dict()) == {"positions", "attention_pattern"}
    assert EncoderConfig.from_dict(rotary.to_dict()) == rotary
    assert rotary.replace(positions="learned", attention_pattern=("global",)) == plain


def test_it_is_frozen_and_hashable():
    config = EncoderConfig(**SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 4
    assert hash(config) == hash(EncoderConfig(**SIZES))


def test_unknown_key_lists_the_close_ones():
    with pytest.raises(ValueError, match=r"Did you mean: .*hidden_size.*'hiden_size'"):
        EncoderConfig.from_dict({**SIZES, "hiden_size": 3})
    with pytest.raises(ValueError, match="Did you mean: dropout"):
        EncoderConfig(**SIZES).replace(dropuot=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary_size": 0}, "`vocabulary_size` must be an integer of at least 1.*: 0"),
        ({"num_layers": 2.0}, "`num_layers` must be an integer of at least 1.*: 2.0"),
        ({"num_layers": True}, "`num_layers` must be an integer of at least 1.*: True"),
        ({"num_segments": -1}, "`num_segments` must be an integer of at least 0.*: -1"),
        ({"embedding_size": 0}, "`embedding_size` must be an integer of at least 1.*: 0"),
        ({"num_heads": 3}, "multiple of `num_heads`.*hidden_size=8, num_heads=3"),
        ({"num_layer_groups": 3}, "must not exceed `num_layers`.*num_layer_groups=3"),
        ({"positions": "rotated"}, "`positions` must be one of learned, rotary, .*'rotated'"),
        ({"norm": "batch"}, "`norm` must be one of layer, layer_no_bias, rms.*'batch'"),
        ({"block": "sandwich"}, "`block` must be one of pre_norm, post_norm, .*'sandwich'"),
        ({"feed_forward": "glu"}, "`feed_forward` must be one of dense, gated.*'glu'"),
        ({"pooling": "max"}, "`pooling` must be one of first, last, mean, late.*'max'"),
        ({"output": "tied"}, "`output` must be one of transformed, untied.*'tied'"),
        ({"num_key_value_heads": 0}, "`num_key_value_heads` must be .* at least 1.*: 0"),
        (
            {"num_heads": 4, "num_key_value_heads": 3},
            "multiple of `num_key_value_heads`.*num_heads=4, num_key_value_heads=3",
        ),
        (
            {"bias_exceptions": ("pooler",)},
            r"some of attention, gate, heads, without.*: \('pooler',\)",
        ),
        ({"bias_exceptions": ("heads",) * 2}, "some of attention, gate, heads, without"),
        ({"bias_exceptions": "heads"}, "some of attention, gate, heads, without.*: 'heads'"),
        ({"bias_exceptions": ["gate"]}, r"with a gated .*\('gate',\), feed_forward='dense'"),
        ({"padding_id": -1}, "`padding_id` must be an integer of at least 0.*: -1"),
        ({"padding_id": 10**9}, "an id of the vocabulary.*vocabulary_size="),
        ({"padding_id": 1, "positions": "none"}, "='learned', which skip.*positions='none'"),
        ({"head_activation": "mish"}, "`head_activation` must be one of .*'mish'"),
        ({"use_bias": 0}, "`use_bias` must be True or False.*: 0"),
        ({"attention_pattern": ()}, r"must be a tuple of one or more.*: \(\)"),
        ({"attention_pattern": "global"}, "must be a tuple of one or more.*: 'global'"),
        ({"attention_pattern": (["global"],)}, r"an integer of at least 2.*: \['global'\]"),
        (
            {"bias_exceptions": (["gate"],)},
            r"some of attention, gate, heads, without.*: \(\['gate'\],\)",
        ),
        ({"attention_pattern": ("local",)}, "must be an integer of at least 2.*: 'local'"),
        ({"attention_pattern": (5,)}, "even number of tokens and at most 1024.*: 5"),
        ({"attention_pattern": (1026,)}, "at most 1024, .*max_positions=512. Received: 1026"),
        ({"rotary_base": 1e4}, "require positions='rotary'.*positions='learned'"),
        ({"positions": "rotary", "rotary_base": 1}, "`rotary_base` must be .* above 1.*: 1"),
        ({"positions": "rotary", "num_heads": 8}, "width of a head must be even.*: 1 "),
        ({"positions": "rotary", "local_rotary_base": 1e3}, "requires layers with a window"),
        (
            {"block": "pre_norm_except_first", "num_layer_groups": 1},
            "does not support `num_layer_groups`.*num_layer_groups=1",
        ),
        ({"activation": "gelu_new"}, "`activation` must be one of gelu, .*: 'gelu_new'"),
        ({"pooler_activation": "x"}, "`pooler_activation` must be one of .*: 'x'"),
        ({"dropout": 1.0}, "`dropout` must be a number that is at least 0 and less than 1.*: 1.0"),
        ({"attention_dropout": "a"}, "`attention_dropout` must be a number.*: 'a'"),
        ({"layer_norm_epsilon": 0}, "`layer_norm_epsilon` must be a number that is positive"),
        ({"initializer_range": float("nan")}, "`initializer_range` must be a number.*: nan"),
    ],
)
def test_bad_values_say_the_rule(changes, message):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(**{**SIZES, **changes})
