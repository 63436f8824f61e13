"""Counts of the published models, exactly, and of what an encoder holds."""

import numpy as np
import pytest

from kbert.catalog.families import ALIASES, FAMILY, family
from kbert.models import Encoder, describe, family_table
from kbert.models.description import CHOICES
from tests.harness import tiny_config

pytestmark = pytest.mark.tensorflow  # names and numbers: another backend would say the same


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
        ("bert-large-cased", 333_579_264),
        ("bert-tiny", 4_385_920),
        ("google/bert_uncased_L-2_H-128_A-2", 4_385_920),
        ("bert-small", 28_763_648),
        ("bert-medium", 41_373_184),
        ("albert-base-v1", 11_683_584),
        ("albert-base-v2", 11_683_584),
        ("albert-large-v2", 17_683_968),
        ("albert-xlarge-v2", 58_724_864),
        ("albert-xxlarge-v1", 222_595_584),
        ("roberta-base", 124_645_632),
        ("roberta-large", 355_359_744),
        ("distilroberta-base", 82_118_400),
        ("xlm-roberta-base", 278_043_648),
        ("distilbert-base-uncased", 66_362_880),
        ("huawei-noah/TinyBERT_General_4L_312D", 14_350_248),
        ("huawei-noah/TinyBERT_General_6L_768D", 66_955_008),
        ("google/electra-base-discriminator", 108_891_648),
        ("nreimers/MiniLM-L6-H384-uncased", 22_713_216),
        ("SpanBERT/spanbert-base-cased", 108_310_272),
        # Of transformers' classes of the published configs, on the meta device.
        ("jhu-clsp/mmBERT-small", 140_493_696),
        ("jhu-clsp/mmBERT-base", 306_939_648),
        ("EuroBERT/EuroBERT-210m", 211_766_016),
        ("nomic-ai/nomic-bert-2048", 136_731_648),
        ("mosaicml/mosaic-bert-base", 136_777_728),
        ("elmo-small", 13_593_296),
        ("elmo-medium", 28_027_728),
        ("elmo-original", 93_600_848),
        ("elmo-original-5.5b", 93_600_848),
    ],
)
def test_published_counts(name, parameters):
    assert describe(name).parameters == parameters


def test_bert_xlarge_is_counted_and_never_allocated():
    blocks = 24 * (12 * 2048**2 + 13 * 2048)
    embeddings = (30000 + 512 + 2 + 2) * 2048
    assert describe("bert-xlarge").parameters == blocks + embeddings + 2048 * 2049


def test_with_the_heads_that_it_was_released_with():
    base = describe("bert-base-uncased")
    assert base.pooler_parameters == 768 * 768 + 768
    # Masked-LM head (transform, norm, bias), then the next-sentence head.
    with_masked_lm = base.parameters - base.pooler_parameters + 768 * 770 + 768 + 30522
    assert with_masked_lm == 109_514_298
    assert with_masked_lm + base.pooler_parameters + 768 * 2 + 2 == 110_106_428
    # ELECTRA's discriminator: a dense layer and one logit; its generator: BERT's masked-LM head.
    small = describe("google/electra-small-discriminator")
    assert small.parameters + 256 * 256 + 256 + 256 + 1 == 13_549_057
    generator = describe("google/electra-base-generator")
    assert generator.parameters + 256 * 768 + 3 * 768 + 30522 == 33_740_602


def test_the_pooler_is_told_apart():
    assert describe("distilbert-base-uncased").pooler_parameters == 0
    assert describe("google/electra-base-generator").pooler_parameters == 0
    assert describe("roberta-large").pooler_parameters == 1024 * 1025


def test_rows_that_carry_nothing_are_not_held():
    for name in FAMILY:
        found = describe(name)
        is_roberta = ("roberta-" in name and "/" not in name) or "longformer" in name
        rows = 2 if is_roberta else 1 if "mpnet" in name else 0
        unheld = rows * found.config.hidden_size
        assert found.parameters - found.held_parameters == unheld, name


SMALL = [name for name in FAMILY if describe(name).held_parameters < 15e6]
# The others of them have these in other numbers.
SMALL_FIRST = (
    *("google/bert_uncased_L-2_H-128_A-2", "google/bert_uncased_L-12_H-128_A-2"),
    *("albert-base-v2", "google/electra-small-discriminator"),
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in SMALL_FIRST else pytest.mark.slow) for x in SMALL],
)
def test_small_models_hold_what_the_formula_says(name):
    assert Encoder(family(name)).count_params() == describe(name).held_parameters


def reduced(name):
    """The config of a published model with small numbers, which many have in common."""
    config = family(name)
    if config.kind == "awd_lstm":  # no heads
        return config.replace(vocabulary_size=50, hidden_size=8, intermediate_size=16)
    narrow = {"embedding_size": 3} if config.embedding_width != config.hidden_size else {}
    if getattr(config, "num_key_value_heads", None) is not None:
        narrow["num_key_value_heads"] = 2
    pattern = (2 if isinstance(kind, int) else kind for kind in config.attention_pattern)
    if config.kind == "reformer":
        narrow = {"axial_sizes": (1, 3)}
    elif config.kind == "transformer_xl":
        narrow = {"cutoffs": (10, 20, 30), "divisor": 2}
    return config.replace(
        vocabulary_size=50,
        hidden_size=8,
        num_heads=4,
        intermediate_size=16,
        max_positions=11,
        attention_pattern=tuple(pattern),
        num_layers=2,
        **narrow,
    )


# Of names with the same reduced config the first.
REDUCED = {reduced(name): name for name in reversed(FAMILY)}


@pytest.mark.parametrize("name", [name for name in FAMILY if name in REDUCED.values()])
def test_models_hold_what_the_formula_says_reduced(name):
    config = reduced(name)
    assert Encoder(config).count_params() == describe(config).held_parameters


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"embedding_size": 4},
        {"num_layers": 4, "num_layer_groups": 2},
        {"num_segments": 0},
        {"pooler_activation": None},
        {"pooler_norm": True},
        {"positions": "rotary"},
        {"positions": "sinusoidal", "embedding_norm": False},
        {"norm": "layer_no_bias", "block": "pre_norm_except_first"},
        {"norm": "rms", "block": "pre_norm", "embedding_size": 4, "use_bias": False},
        {"feed_forward": "gated", "use_bias": False, "pooler_norm": True},
        {"feed_forward": "gated", "num_layers": 4, "num_layer_groups": 2},
    ],
)
def test_the_formula_counts_what_an_encoder_holds(changes):
    config = tiny_config(**changes)
    assert describe(config).held_parameters == Encoder(config).count_params()
    assert describe(config).parameters == describe(config).held_parameters


def test_albert_holds_one_group_of_weights_for_its_twelve_layers():
    encoder = Encoder(family("albert-base-v2"))
    assert len(encoder.blocks) == 1
    buffers = {id(weight.value): weight for weight in encoder.weights}
    assert sum(4 * w.numpy().size for w in buffers.values()) == 4 * 11_683_584
    out = encoder({"token_ids": np.array([[2, 5, 3]])}, return_hidden_states=True)
    assert len(out["hidden_states"]) == 13


@pytest.mark.parametrize(
    "name", ["albert-base-v2", "roberta-base", "elmo-small", "gpt2", "transformer-base"]
)
def test_the_config_of_a_published_model_is_known(name):
    """By its values: what is printed, and what is counted, is as of the name."""
    assert describe(family(name)) == describe(name)
    assert str(describe(family(name))) == str(describe(name))


def test_models_that_share_a_config_are_named_together():
    name = "google/electra-small-discriminator or google/electra-small-generator"
    assert describe(family("google/electra-small-generator")).name == name
    assert describe(family("roberta-base").replace(num_layers=7)).name is None


def test_a_config_of_one_s_own():
    found = describe(tiny_config())
    assert (found.name, found.tokenizer, found.parameters) == (None, None, 5808)
    assert str(found).startswith("model               a custom config\nlayers              2\n")
    assert str(found).endswith("GiB at 32 x 24 tokens in float32")  # its positions are no more


def test_print_shows_a_table():
    lines = dict(line.split(maxsplit=1) for line in str(describe("albert-base-v2")).splitlines())
    assert lines["model"] == "albert-base-v2"
    assert lines["layers"] == "12, 1 held"
    assert lines["parameters"] == "11,683,584, 590,592 of them the pooler's"
    shown = str(describe("roberta-base"))
    assert "124,645,632, 590,592 of them the pooler's" in shown
    assert "124,644,096" in shown
    assert "50,265, bpe" in shown
    assert "segments            none" in shown


def test_family_table_has_a_line_for_each_choice():
    lines = family_table().splitlines()
    assert len(lines) == len(CHOICES) + 2
    assert len({line.count("|") for line in lines}) == 1
    assert all(name in FAMILY or name in ALIASES for name in CHOICES)
    line = next(line for line in lines if "`roberta-base`" in line)
    assert line.startswith("| `roberta-base` | 12 | 768 | 12 | 50,265 bpe | 124.6 M | ")


def test_an_elmo_is_described():
    found = describe("elmo-small")
    lines = dict(line.split("  ", 1) for line in str(found).splitlines())
    lines = {name: value.strip() for name, value in lines.items()}
    assert lines["model"] == "elmo-small"
    assert lines["width"] == "256, 128 of each direction"
    assert lines["LSTM state"] == "1,024, clipped at 3 and 3"
    assert lines["filters"] == "1x32 2x32 3x64 4x128 5x256 6x512 7x1024, relu, 1 highway"
    assert lines["parameters"] == "13,593,296, no softmax"
    assert (found.tokenizer, found.held_parameters) == ("words", found.parameters)
    own = describe(family("elmo-small").replace(vocabulary_size=1000, cell_clip=None))
    assert (own.name, own.tokenizer, own.softmax_parameters) == (None, None, 129_000)
    assert "13,722,296, 129,000 of them the softmax's" in str(own)
    assert "clipped at nothing and 3" in str(own)
    assert "1,000 of the softmax" in str(own)
