"""The published encoder-decoders: name -> sizes and values. Values only, no code."""

from typing import Any

from kbert.catalog.rows import Row
from kbert.configs.seq2seq import Seq2SeqConfig


def _transformer(
    num_layers: int, hidden_size: int, num_heads: int, intermediate_size: int, dropout: float
) -> Row:
    """Returns the table entry of an encoder-decoder of "Attention Is All You Need"."""
    config = Seq2SeqConfig(
        vocabulary_size=37000,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        dropout=dropout,
    )
    return Row(config, "bpe")


def _bart(num_layers: int, hidden_size: int, vocabulary_size: int = 50265, **changes: Any) -> Row:
    """Returns the table entry of a BART; `changes` are fields of its config."""
    values = {"positions": "learned", "embeddings": "normalised", "max_positions": 1024, **changes}
    values = {"activation": "gelu", "activation_dropout": 0.1, **values}
    config = Seq2SeqConfig(
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
        layer_norm_epsilon=1e-5,
        initializer_range=0.02,
        **values,
    )
    tokenizer = "bpe" if config.block == "post_norm" and config.embeddings == "normalised" else None
    return Row(config, tokenizer or "unigram", 4 if config.positions == "learned" else 0)


def _mass(hidden_size: int) -> Row:
    """Returns the table entry of a MASS, over BERT's vocabulary."""
    values: dict[str, Any] = {"max_positions": 512, "scale_embeddings": True}
    return Row(_bart(6, hidden_size, 30522, **values).config)


def _pegasus(num_layers: int, hidden_size: int, vocabulary_size: int) -> Row:
    """Returns the table entry of a PEGASUS."""
    values: dict[str, Any] = {"positions": "sinusoidal_halves", "embeddings": "plain"}
    values |= {"activation": "relu", "block": "pre_norm", "scale_embeddings": True}
    return _bart(num_layers, hidden_size, vocabulary_size, **values)


def _t5(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    intermediate_size: int,
    *,
    head_size: int | None = None,
    gated: bool = True,
    vocabulary_size: int = 32128,
) -> Row:
    """Returns the table entry of a T5 of version 1.1; of version 1.0 if it is not `gated`."""
    config = Seq2SeqConfig(
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        max_positions=512,
        positions="relative",
        block="pre_norm",
        norm="rms",
        use_bias=False,
        head_size=head_size,
        scale_scores=False,
        scale_embeddings=False,
        activation_dropout=0.1,
        output_dropout=True,
        feed_forward="gated" if gated else "dense",
        activation="gelu_tanh" if gated else "relu",
        output="untied" if gated else "tied_scaled",
    )
    return Row(config, "unigram")


# fmt: off
# The Transformer (https://arxiv.org/abs/1706.03762, table 3) with the vocabulary of the
# English-to-German models. The two small sizes are for small corpora. The big model's dropout is
# that of English to German.
#                                      layers hidden heads intermediate dropout
TRANSFORMERS: dict[str, Row] = {
    "transformer-tiny":     _transformer(4,  128,    4,     256, 0.3),
    "transformer-small":    _transformer(3,  256,    4,    1024, 0.3),
    "transformer-base":     _transformer(6,  512,    8,    2048, 0.1),
    "transformer-big":      _transformer(6, 1024,   16,    4096, 0.3),
}
_T5_SIZES = {
    #         layers hidden heads intermediate
    "small":   (8,    512,  6,  1024),
    "base":    (12,   768, 12,  2048),
    "large":   (24,  1024, 16,  2816),
    "xl":      (24,  2048, 32,  5120),
    "xxl":     (24,  4096, 64, 10240),
}
# Pretrained encoder-decoders: BART (https://arxiv.org/abs/1910.13461), mBART
# (https://arxiv.org/abs/2001.08210), OPUS-MT by Marian, PEGASUS (https://arxiv.org/abs/1912.08777),
# MASS (https://arxiv.org/abs/1905.02450), T5 (https://arxiv.org/abs/1910.10683), FLAN
# (https://arxiv.org/abs/2210.11416), mT5 (https://arxiv.org/abs/2010.11934). Values are those of
# their configs on the hub. MASS, which is not there, has those of MASS-summarization in
# microsoft/MASS; the base PEGASUS, never released, those of section 6 with 32,000 tokens, which
# make its 223 million weights.
SEQ2SEQS: dict[str, Row] = {
    "facebook/bart-base":            _bart(6,   768),
    "facebook/bart-large":           _bart(12, 1024),
    "facebook/bart-large-cnn":       _bart(12, 1024, 50264, attention_dropout=0.0,
                                           activation_dropout=0.0),
    "sshleifer/distilbart-cnn-12-6": _bart(12, 1024, 50264, attention_dropout=0.0,
                                           activation_dropout=0.0, num_decoder_layers=6),
    "facebook/mbart-large-cc25":     _bart(12, 1024, 250027, attention_dropout=0.0,
                                           activation_dropout=0.0, block="pre_norm",
                                           scale_embeddings=True),
    "Helsinki-NLP/opus-mt-en-de":    _bart(6,   512, 58101, attention_dropout=0.0,
                                           activation_dropout=0.0, activation="silu",
                                           positions="sinusoidal_halves", embeddings="plain",
                                           scale_embeddings=True, max_positions=512,
                                           output_bias=True),
    "pegasus-base":                  _pegasus(12,  768, 32000),
    "google/pegasus-large":          _pegasus(16, 1024, 96103),
    "mass-base-uncased":             _mass(768),
    "mass-middle-uncased":           _mass(1024),
    "t5-small":                      _t5(6,   512,   8,  2048, gated=False),
    "t5-base":                       _t5(12,  768,  12,  3072, gated=False),
    "t5-large":                      _t5(24, 1024,  16,  4096, gated=False),
    "t5-3b":                         _t5(24, 1024,  32, 16384, gated=False, head_size=128),
    "t5-11b":                        _t5(24, 1024, 128, 65536, gated=False, head_size=128),
    **{
        f"google/{version}-{size}": _t5(*sizes, head_size=64 if size == "small" else None)
        for version in ("t5-v1_1", "flan-t5") for size, sizes in _T5_SIZES.items()
    },
    **{
        f"google/mt5-{size}": _t5(*sizes, head_size=64 if size == "small" else None,
                                  vocabulary_size=250112)
        for size, sizes in _T5_SIZES.items()
    },
}
# fmt: on
