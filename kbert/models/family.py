"""The table of the family, name -> EncoderConfig, and what its rows weigh.

Sizes are those of google-research/bert (README.md and each release's `bert_config.json`); names
are those of the Hugging Face hub. Activations are what the original code trained with: Google's
`gelu` is the tanh form. A checkpoint loaded from files brings the activation its own config names.
"""

import dataclasses
import difflib
import itertools

from kbert.config import EncoderConfig

_UNCASED = 30522
_CASED = 28996


def _bert(num_layers, hidden_size, vocabulary_size):
    return EncoderConfig(
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
    )


# fmt: off
FAMILY: dict[str, EncoderConfig] = {
    # name                                          layers hidden vocabulary
    "bert-base-uncased":                       _bert(12,  768, _UNCASED),
    "bert-large-uncased":                      _bert(24, 1024, _UNCASED),
    "bert-large-uncased-whole-word-masking":   _bert(24, 1024, _UNCASED),
    "bert-base-cased":                         _bert(12,  768, _CASED),
    "bert-large-cased":                        _bert(24, 1024, _CASED),
    "bert-large-cased-whole-word-masking":     _bert(24, 1024, _CASED),
    "bert-base-multilingual-uncased":          _bert(12,  768, 105879),
    "bert-base-multilingual-cased":            _bert(12,  768, 119547),
    "bert-base-chinese":                       _bert(12,  768, 21128),
    # The 24 sizes of "Well-Read Students Learn Better" (https://arxiv.org/abs/1908.08962).
    **{
        f"google/bert_uncased_L-{layers}_H-{hidden}_A-{hidden // 64}":
            _bert(layers, hidden, _UNCASED)
        for layers, hidden in itertools.product((2, 4, 6, 8, 10, 12), (128, 256, 512, 768))
    },
}

ALIASES: dict[str, str] = {
    "bert-tiny":   "google/bert_uncased_L-2_H-128_A-2",
    "bert-mini":   "google/bert_uncased_L-4_H-256_A-4",
    "bert-small":  "google/bert_uncased_L-4_H-512_A-8",
    "bert-medium": "google/bert_uncased_L-8_H-512_A-8",
    "bert-base":   "bert-base-uncased",
    "bert-large":  "bert-large-uncased",
}
# fmt: on


def family(name: str) -> EncoderConfig:
    """The config of a published model.

    Args:
        name: as on the Hugging Face hub ("bert-base-uncased", with or without "google-bert/";
            "google/bert_uncased_L-4_H-256_A-4"), or a size: "bert-tiny", "-mini", "-small",
            "-medium", "-base", "-large" (uncased).

    Returns:
        The config.

    Raises:
        ValueError: no model has that name; the message lists the close ones.

    Example:
        >>> family("bert-base-uncased").hidden_size
        768
        >>> family("bert-tiny").num_layers
        2
    """
    key = name.removeprefix("google-bert/")
    key = ALIASES.get(key, key)
    if key not in FAMILY:
        names = [*ALIASES, *FAMILY]
        close = difflib.get_close_matches(key, names, n=5, cutoff=0.5)
        hint = f"Close: {', '.join(close)}." if close else f"Known: {', '.join(names)}."
        raise ValueError(f"No model of the family has this name. {hint} Received: {name!r}")
    return FAMILY[key]


@dataclasses.dataclass(frozen=True)
class Description:
    """A model in numbers.

    Attributes:
        name: as asked for, or None for a config of one's own.
        config: the encoder's config.
        parameters: of the encoder as published, its pooler included where the family has one.
        pooler_parameters: the pooler's share of them.
    """

    name: str | None
    config: EncoderConfig
    parameters: int
    pooler_parameters: int


def describe(name_or_config: str | EncoderConfig) -> Description:
    """Counts a model's parameters by formula: exact, and nothing is allocated.

    Heads are not counted. Shared groups of layers count once.

    Args:
        name_or_config: a name `kbert.family` knows, or a config.

    Returns:
        The description.

    Raises:
        ValueError: no model has that name.

    Example:
        >>> describe("bert-base-uncased").parameters
        109482240
    """
    if isinstance(name_or_config, EncoderConfig):
        name, config = None, name_or_config
    else:
        name, config = name_or_config, family(name_or_config)
    pooler = _dense(config.hidden_size, config.hidden_size) if config.pooler_activation else 0
    total = _embeddings(config) + config.num_blocks * _block(config) + pooler
    return Description(name, config, parameters=total, pooler_parameters=pooler)


def _dense(width_in, width_out):
    return width_in * width_out + width_out


def _embeddings(config):
    width = config.embedding_width
    rows = config.vocabulary_size + config.max_positions + config.num_segments
    widening = _dense(width, config.hidden_size) if width != config.hidden_size else 0
    norm = 2 * width
    return rows * width + norm + widening


def _block(config):
    width = config.hidden_size
    attention = 4 * _dense(width, width)
    feed_forward = _dense(width, config.intermediate_size)
    feed_forward += _dense(config.intermediate_size, width)
    norms = 2 * 2 * width
    return attention + feed_forward + norms
