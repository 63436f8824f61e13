"""DecoderConfig and Seq2SeqConfig: what they refuse, and what they count."""

import pytest

import kbert
from kbert import DecoderConfig, Seq2SeqConfig

SIZES = {
    "vocabulary_size": 10,
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 16,
}
KINDS = {"decoder": DecoderConfig, "seq2seq": Seq2SeqConfig}


@pytest.mark.parametrize(
    ("name", "parameters"),
    {
        "openai-gpt": 116_534_784,
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
        "transformer-base": 63_082_496,
        "transformer-big": 214_245_376,
    }.items(),
)
def test_published_sizes(name, parameters):
    assert kbert.describe(name).parameters == parameters
    assert f"{parameters:,}" in str(kbert.describe(name))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "`hidden_size` must be a multiple of `num_heads`"),
        ({"num_layers": 0}, "`num_layers` must be an integer of at least 1"),
        ({"vocabulary_size": 1.0}, "`vocabulary_size` must be an integer"),
        ({"block": "sandwich"}, "`block` must be one of pre_norm, post_norm"),
        ({"activation": "sine"}, "`activation` must be one of gelu"),
        ({"dropout": 1}, "`dropout` must be a number that is at least 0 and less than 1"),
        ({"layer_norm_epsilon": 0}, "`layer_norm_epsilon` must be a number that is positive"),
        ({"initializer_range": -1}, "`initializer_range` must be a number that is positive"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_does_not_fit_is_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        KINDS[kind](**{**SIZES, **changes})
    assert "Received: " in str(error.value)


def test_fields_of_an_encoder_decoder_alone():
    for changes in ({"positions": "rotary"}, {"num_decoder_layers": 0}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            Seq2SeqConfig(**SIZES, **changes)
    assert Seq2SeqConfig(**SIZES).decoder_layers == 2
    assert Seq2SeqConfig(**SIZES, num_decoder_layers=5).decoder_layers == 5


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind):
    config = KINDS[kind](**SIZES, block="pre_norm")
    assert KINDS[kind].from_dict(config.to_dict()) == config
