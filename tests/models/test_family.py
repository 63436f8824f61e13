"""Counts of the published models, exactly (computed from their checkpoints' configs)."""

import pytest

from kbert.config import EncoderConfig
from kbert.models import Encoder, describe, family
from kbert.models.family import ALIASES, FAMILY
from tests.harness import tiny_config

UNCASED = 30522


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bert-base-uncased", 109_482_240),
        ("google-bert/bert-base-uncased", 109_482_240),
        ("bert-base", 109_482_240),
        ("bert-base-cased", 108_310_272),
        ("bert-base-chinese", 102_267_648),
        ("bert-base-multilingual-cased", 177_853_440),
        ("bert-large-uncased", 335_141_888),
        ("bert-large", 335_141_888),
        ("bert-large-cased", 333_579_264),
        ("bert-tiny", 4_385_920),
        ("google/bert_uncased_L-2_H-128_A-2", 4_385_920),
        ("bert-small", 28_763_648),
        ("bert-medium", 41_373_184),
    ],
)
def test_bert_s_counts(name, parameters):
    assert describe(name).parameters == parameters


def test_the_pooler_is_told_apart():
    base = describe("bert-base-uncased")
    assert base.pooler_parameters == 768 * 768 + 768
    # Masked-LM head (transform, norm, bias), then the next-sentence head.
    with_masked_lm = base.parameters - base.pooler_parameters + 768 * 770 + 768 + 30522
    assert with_masked_lm == 109_514_298
    assert with_masked_lm + base.pooler_parameters + 768 * 2 + 2 == 110_106_428


def config(layers, hidden, heads, vocabulary, **changes):
    fields = {"intermediate_size": 4 * hidden, **changes}
    return EncoderConfig(
        vocabulary_size=vocabulary,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        **fields,
    )


ALBERT = {"embedding_size": 128, "num_layer_groups": 1}
NO_POOLER = {"pooler_activation": None}


@pytest.mark.parametrize(
    ("name", "config", "parameters"),
    [
        ("albert-base", config(12, 768, 12, 30000, **ALBERT), 11_683_584),
        ("albert-large", config(24, 1024, 16, 30000, **ALBERT), 17_683_968),
        ("albert-xlarge", config(24, 2048, 16, 30000, **ALBERT), 58_724_864),
        ("albert-xxlarge", config(12, 4096, 64, 30000, **ALBERT), 222_595_584),
        (
            "distilbert",
            config(6, 768, 12, UNCASED, num_segments=0, **NO_POOLER),
            66_362_880,
        ),
        (
            "tinybert-4",
            config(4, 312, 12, UNCASED, intermediate_size=1200),
            14_350_248,
        ),
        ("tinybert-6", config(6, 768, 12, UNCASED), 66_955_008),
        ("electra-base", config(12, 768, 12, UNCASED, **NO_POOLER), 108_891_648),
        (  # with the head of the discriminator: a dense layer and one logit
            "electra-small",
            config(12, 256, 4, UNCASED, embedding_size=128, **NO_POOLER),
            13_549_057 - (256 * 256 + 256) - (256 + 1),
        ),
        # Without the two rows that RoBERTa's position table has before its first position, and
        # without a segment table; Hugging Face counts those two rows and one row of segments.
        (
            "roberta-base",
            config(12, 768, 12, 50265, num_segments=0),
            124_645_632 - 3 * 768,
        ),
        (
            "roberta-large",
            config(24, 1024, 16, 50265, num_segments=0),
            355_359_744 - 3 * 1024,
        ),
        ("minilm-l6", config(6, 384, 12, UNCASED), 22_713_216),
        (  # BERT's shape at 24 x 2048, of ALBERT's paper; counted and never allocated
            "bert-xlarge",
            config(24, 2048, 16, 30000),
            24 * (12 * 2048**2 + 13 * 2048) + (30000 + 512 + 2 + 2) * 2048 + 2048 * 2049,
        ),
    ],
)
def test_counts_of_the_wider_family_from_their_configs(name, config, parameters):
    assert describe(config).parameters == parameters, name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 4},
        {"num_layers": 4, "num_layer_groups": 2},
        {"num_segments": 0},
        {"pooler_activation": None},
    ],
)
def test_the_formula_counts_what_an_encoder_holds(changes):
    config = tiny_config(**changes)
    assert describe(config).parameters == Encoder(config).count_params()


def test_every_row_and_alias_is_a_valid_config():
    assert len([name for name in FAMILY if name.startswith("google/")]) == 24
    for name in (*FAMILY, *ALIASES):
        assert family(name).activation == "gelu_tanh"
        assert family(name).hidden_size // family(name).num_heads == 64


def test_an_unknown_name_lists_the_close_ones():
    with pytest.raises(ValueError, match="Close: .*bert-base-uncased.*'bert-base-uncase'"):
        family("bert-base-uncase")
    with pytest.raises(ValueError, match="Known: bert-tiny, .*Received: 'xyzzy'"):
        family("xyzzy")
