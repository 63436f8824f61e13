"""The published encoders, and ELMo: name -> sizes and values. Values only, no code."""

import itertools
from typing import Any

from kbert.catalog.rows import Row
from kbert.configs.awd_lstm import AwdLstmConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.reformer import ReformerConfig
from kbert.configs.transformer_xl import TransformerXlConfig
from kbert.configs.xlnet import XlnetConfig

_UNCASED = 30522
_CASED = 28996
_CHINESE = 21128
_MULTILINGUAL_CASED = 119547
_ROBERTA = 50265
_XLM_R = 250002
_MODERN = 50368
_DEBERTA = 128100
_XLNET = 32000


def _config(
    num_layers: int, hidden_size: int, num_heads: int, vocabulary_size: int, **changes: Any
) -> EncoderConfig:
    """Returns the config of a BERT-like encoder; `changes` are other fields of `EncoderConfig`.

    The feed-forward width is four times the hidden size unless it is changed.
    """
    fields = {"intermediate_size": 4 * hidden_size, **changes}
    return EncoderConfig(
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        **fields,
    )


def _bert(num_layers: int, hidden_size: int, vocabulary_size: int) -> Row:
    return Row(_config(num_layers, hidden_size, hidden_size // 64, vocabulary_size))


def _albert(num_layers: int, hidden_size: int, num_heads: int, dropout: float) -> Row:
    shared = {"embedding_size": 128, "num_layer_groups": 1}
    rates = {"dropout": dropout, "attention_dropout": dropout}
    return Row(_config(num_layers, hidden_size, num_heads, 30000, **shared, **rates), "unigram")


def _roberta(
    num_layers: int,
    hidden_size: int,
    vocabulary_size: int = _ROBERTA,
    tokenizer: str = "bpe",
    **changes: Any,
) -> Row:
    """Returns the table entry of a RoBERTa; `changes` are fields of its config."""
    values = {"num_segments": 0, "activation": "gelu", "layer_norm_epsilon": 1e-5, **changes}
    values = {"padding_id": 1, **values}
    heads = hidden_size // 64
    return Row(_config(num_layers, hidden_size, heads, vocabulary_size, **values), tokenizer, 2)


def _longformer(num_layers: int, hidden_size: int) -> Row:
    """Returns the table entry of a Longformer."""
    long: dict[str, Any] = {
        "max_positions": 4096,
        "attention_pattern": (512,),
        "part": {"name": "global_tokens"},
    }
    return _roberta(num_layers, hidden_size, **long)


def _electra(num_layers: int, hidden_size: int, embedding_size: int) -> Row:
    values = {"activation": "gelu", "pooler_activation": None, "embedding_size": embedding_size}
    return Row(_config(num_layers, hidden_size, hidden_size // 64, _UNCASED, **values))


def _distilbert(vocabulary_size: int) -> Row:
    values = {"num_segments": 0, "activation": "gelu", "pooler_activation": None}
    return Row(_config(6, 768, 12, vocabulary_size, **values))


def _trained_in_pytorch(
    num_layers: int, hidden_size: int, num_heads: int, vocabulary_size: int, **changes: Any
) -> Row:
    """Returns the table entry of a BERT with the erf form of GELU, unless `changes` say otherwise.

    `changes` are fields of `EncoderConfig`.
    """
    changes = {"activation": "gelu", **changes}
    return Row(_config(num_layers, hidden_size, num_heads, vocabulary_size, **changes))


def _modernbert(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    intermediate_size: int,
    vocabulary_size: int = _MODERN,
    **changes: Any,
) -> Row:
    """Returns the table entry of a ModernBERT; `changes` are fields of its config."""
    values: dict[str, Any] = {
        "intermediate_size": intermediate_size,
        "max_positions": 8192,
        "num_segments": 0,
        "activation": "gelu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "pooler_activation": None,
        "pooler_norm": True,
        "token_transform": True,
        "pooling": "mean",
        "positions": "rotary",
        "rotary_base": 160_000.0,
        "local_rotary_base": 10_000.0,
        "attention_pattern": ("global", 128, 128),
        "feed_forward": "gated",
        "norm": "layer_no_bias",
        "block": "pre_norm_except_first",
        "use_bias": False,
        **changes,
    }
    return Row(_config(num_layers, hidden_size, num_heads, vocabulary_size, **values), "bpe")


# One rotary base for all layers. Ettin's configs do say 7,999 positions.
_ETTIN: dict[str, Any] = {"local_rotary_base": 160_000.0, "max_positions": 7999}
_MMBERT: dict[str, Any] = {"local_rotary_base": 160_000.0, "vocabulary_size": 256_000}


# The parts of Llama's blocks that EuroBERT and NeoBERT share.
_LLAMA: dict[str, Any] = {
    "num_segments": 0,
    "activation": "silu",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "layer_norm_epsilon": 1e-5,
    "pooler_activation": None,
    "positions": "rotary",
    "feed_forward": "gated",
    "norm": "rms",
    "block": "pre_norm",
    "embedding_norm": False,
    "use_bias": False,
    "bias_exceptions": ("heads",),
    "output": "untied",
}


# NomicBERT, MosaicBERT and SqueezeBERT: BERT's vocabulary, padded to a multiple of 64.
_PADDED_UNCASED = 30528
_NOMIC: dict[str, Any] = {
    "max_positions": 2048,
    "activation": "silu",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pooler_activation": None,
    "positions": "rotary",
    "rotary_base": 1000.0,
    "feed_forward": "gated",
    "use_bias": False,
    "bias_exceptions": ("heads",),
}


def _roformer(num_layers: int, hidden_size: int, max_positions: int) -> Row:
    """Returns the table entry of a RoFormer."""
    values: dict[str, Any] = {
        "max_positions": max_positions,
        "activation": "gelu",
        "pooler_activation": None,
        "positions": "rotary",
    }
    return Row(_config(num_layers, hidden_size, hidden_size // 64, 50_000, **values))


# ALiBi has no limit of positions; `max_positions` is the sequence length in training.
_MOSAIC: dict[str, Any] = {
    "activation": "gelu",
    "attention_dropout": 0.0,
    "pooler_activation": None,
    "positions": "alibi",
    "feed_forward": "gated",
    "bias_exceptions": ("gate",),
}


def _ernie(
    num_layers: int, hidden_size: int, num_heads: int, vocabulary_size: int, **changes: Any
) -> Row:
    """Returns the table entry of an ERNIE: a BERT with the epsilon of Paddle's LayerNorm.

    `changes` are fields of `EncoderConfig`.
    """
    values = {"activation": "gelu", "layer_norm_epsilon": 1e-5, "num_segments": 4, **changes}
    return Row(_config(num_layers, hidden_size, num_heads, vocabulary_size, **values))


def _ernie3(num_layers: int, hidden_size: int, num_heads: int, num_tasks: int) -> Row:
    part = {"name": "task_embeddings", "num_tasks": num_tasks}
    return _ernie(num_layers, hidden_size, num_heads, 40_000, max_positions=2048, part=part)


def _eurobert(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    num_key_value_heads: int | None,
    intermediate_size: int,
) -> Row:
    """Returns the table entry of a EuroBERT."""
    values: dict[str, Any] = {
        **_LLAMA,
        "num_key_value_heads": num_key_value_heads,
        "intermediate_size": intermediate_size,
        "max_positions": 8192,
        "rotary_base": 250_000.0,
        "pooling": "late",
    }
    return Row(_config(num_layers, hidden_size, num_heads, 128_256, **values), "bpe")


def _deberta(num_layers: int, hidden_size: int) -> Row:
    """Returns the table entry of a DeBERTa."""
    values: dict[str, Any] = {
        "num_segments": 0,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-7,
        "pooler_activation": None,
        "positions": "none",
        "part": {"name": "disentangled", "position_buckets": 256, "max_distance": 512},
    }
    heads = hidden_size // 64
    return Row(_config(num_layers, hidden_size, heads, _DEBERTA, **values), "unigram")


def _mpnet() -> Row:
    """Returns the table entry of MPNet."""
    values: dict[str, Any] = {
        "num_segments": 0,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-5,
        "part": {"name": "relative_bias"},
        "padding_id": 1,
    }
    config = _config(12, 768, 12, _UNCASED + 5, **values)
    return Row(config, unused_rows=1)


def _squeezebert() -> Row:
    values: dict[str, Any] = {"activation": "gelu", "part": {"name": "grouped"}}
    return Row(_config(12, 768, 12, _PADDED_UNCASED, **values))


def _convbert(
    num_layers: int, hidden_size: int, num_heads: int, embedding_size: int, **part: Any
) -> Row:
    """Returns the table entry of a ConvBERT; `part` are options of its convolution."""
    values: dict[str, Any] = {
        "activation": "gelu",
        "pooler_activation": None,
        "embedding_size": None if embedding_size == hidden_size else embedding_size,
        "part": {"name": "dynamic_convolution", **part},
    }
    return Row(_config(num_layers, hidden_size, num_heads, _UNCASED, **values))


def _xlnet(num_layers: int, hidden_size: int) -> Row:
    """Returns the table entry of an XLNet."""
    config = XlnetConfig(
        vocabulary_size=_XLNET,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=hidden_size // 64,
        intermediate_size=4 * hidden_size,
        activation="gelu_tanh",
        pooler_activation=None,
    )
    return Row(config, "unigram")


def _transformer_xl(
    num_layers: int, hidden_size: int, num_heads: int, intermediate_size: int, **values: Any
) -> Row:
    """Returns the table entry of a Transformer-XL; `values` are fields of its config."""
    config = TransformerXlConfig(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        **values,
    )
    return Row(config, "words")


def _reformer(
    num_layers: int, stream_size: int, num_heads: int, vocabulary_size: int, **values: Any
) -> Row:
    """Returns the table entry of a Reformer that is a causal language model.

    Its output is twice as wide as one of its reversible streams, `stream_size`. `values` are fields
    of `ReformerConfig`.
    """
    config = ReformerConfig(
        vocabulary_size=vocabulary_size,
        hidden_size=2 * stream_size,
        num_layers=num_layers,
        num_heads=num_heads,
        attention="causal",
        positions="axial",
        **values,
    )
    return Row(config, None)


def _mobilebert(**part: Any) -> Row:
    """Returns the table entry of a MobileBERT; `part` are options of its bottleneck."""
    values: dict[str, Any] = {
        "intermediate_size": 512,
        "activation": "relu",
        "dropout": 0.0,
        "pooler_activation": "identity",
        "embedding_size": 128,
        "part": {"name": "bottleneck", **part},
    }
    return Row(_config(24, 512, 4, _UNCASED, **values))


def _ib_bert() -> Row:
    """Returns the table entry of MobileBERT's teacher, IB-BERT.

    It is as wide as MobileBERT between its layers, and eight times as wide inside them.
    """
    part = {"width": 1024, "num_feed_forwards": 1, "attention_input": "whole", "no_norm": False}
    values: dict[str, Any] = {"intermediate_size": 4096, "embedding_size": 128}
    return Row(_config(24, 512, 4, _UNCASED, **values, part={"name": "bottleneck", **part}))


def _elmo(num_highway: int, lstm_size: int, projection_size: int) -> Row:
    sizes: dict[str, Any] = {"lstm_size": lstm_size, "projection_size": projection_size}
    return Row(ElmoConfig(num_highway=num_highway, **sizes), "words")


# fmt: off
FAMILY: dict[str, Row] = {
    # name                                          layers hidden vocabulary
    "bert-base-uncased":                       _bert(12,  768, _UNCASED),
    "bert-large-uncased":                      _bert(24, 1024, _UNCASED),
    "bert-large-uncased-whole-word-masking":   _bert(24, 1024, _UNCASED),
    "bert-base-cased":                         _bert(12,  768, _CASED),
    "bert-large-cased":                        _bert(24, 1024, _CASED),
    "bert-large-cased-whole-word-masking":     _bert(24, 1024, _CASED),
    "bert-base-multilingual-uncased":          _bert(12,  768, 105879),
    "bert-base-multilingual-cased":            _bert(12,  768, _MULTILINGUAL_CASED),
    "bert-base-chinese":                       _bert(12,  768, _CHINESE),
    # Whole-word masking over Chinese words (https://arxiv.org/abs/1906.08101). The two called
    # RoBERTa have BERT's architecture too.
    "hfl/chinese-bert-wwm":                    _bert(12,  768, _CHINESE),
    "hfl/chinese-bert-wwm-ext":                _bert(12,  768, _CHINESE),
    "hfl/chinese-roberta-wwm-ext":             _bert(12,  768, _CHINESE),
    "hfl/chinese-roberta-wwm-ext-large":       _bert(24, 1024, _CHINESE),
    # The 24 sizes of "Well-Read Students Learn Better" (https://arxiv.org/abs/1908.08962).
    **{
        f"google/bert_uncased_L-{layers}_H-{hidden}_A-{hidden // 64}":
            _bert(layers, hidden, _UNCASED)
        for layers, hidden in itertools.product((2, 4, 6, 8, 10, 12), (128, 256, 512, 768))
    },
    # Never released: the size at which BERT stops improving (ALBERT, table 1), with the number of
    # heads and the vocabulary of ALBERT-xlarge.
    "bert-xlarge":           Row(_config(24, 2048, 16, 30000), "unigram"),
    # ALBERT (https://arxiv.org/abs/1909.11942). Version 2 was trained longer and without dropout;
    # the largest model of version 1 already had none.
    #                                  layers hidden heads dropout
    "albert-base-v1":            _albert(12,  768, 12, 0.1),
    "albert-large-v1":           _albert(24, 1024, 16, 0.1),
    "albert-xlarge-v1":          _albert(24, 2048, 16, 0.1),
    "albert-xxlarge-v1":         _albert(12, 4096, 64, 0.0),
    "albert-base-v2":            _albert(12,  768, 12, 0.0),
    "albert-large-v2":           _albert(24, 1024, 16, 0.0),
    "albert-xlarge-v2":          _albert(24, 2048, 16, 0.0),
    "albert-xxlarge-v2":         _albert(12, 4096, 64, 0.0),
    # RoBERTa (https://arxiv.org/abs/1907.11692), XLM-R (https://arxiv.org/abs/1911.02116).
    "roberta-base":             _roberta(12,  768),
    "roberta-large":            _roberta(24, 1024),
    "distilroberta-base":       _roberta(6,   768),
    "xlm-roberta-base":         _roberta(12,  768, _XLM_R, "unigram"),
    "xlm-roberta-large":        _roberta(24, 1024, _XLM_R, "unigram"),
    # DistilBERT (https://arxiv.org/abs/1910.01108): no segments, no pooler.
    "distilbert-base-uncased":            _distilbert(_UNCASED),
    "distilbert-base-cased":              _distilbert(_CASED),
    "distilbert-base-multilingual-cased": _distilbert(_MULTILINGUAL_CASED),
    # ELECTRA (https://arxiv.org/abs/2003.10555). Generators are narrower than discriminators: a
    # quarter of the width for large, a third for base. The released small one is equally wide.
    #                                        layers hidden embedding
    "google/electra-small-discriminator": _electra(12,  256,  128),
    "google/electra-base-discriminator":  _electra(12,  768,  768),
    "google/electra-large-discriminator": _electra(24, 1024, 1024),
    "google/electra-small-generator":     _electra(12,  256,  128),
    "google/electra-base-generator":      _electra(12,  256,  768),
    "google/electra-large-generator":     _electra(24,  256, 1024),
    # SpanBERT (https://arxiv.org/abs/1907.10529), TinyBERT (https://arxiv.org/abs/1909.10351) and
    # MiniLM (https://arxiv.org/abs/2002.10957).        layers hidden heads vocabulary
    "SpanBERT/spanbert-base-cased":          _trained_in_pytorch(12,  768, 12, _CASED),
    "SpanBERT/spanbert-large-cased":         _trained_in_pytorch(24, 1024, 16, _CASED),
    "huawei-noah/TinyBERT_General_4L_312D":  _trained_in_pytorch(4,   312, 12, _UNCASED,
                                                                 intermediate_size=1200),
    "huawei-noah/TinyBERT_General_6L_768D":  _trained_in_pytorch(6,   768, 12, _UNCASED),
    "nreimers/MiniLM-L6-H384-uncased":       _trained_in_pytorch(6,   384, 12, _UNCASED),
    "microsoft/MiniLM-L12-H384-uncased":     _trained_in_pytorch(12,  384, 12, _UNCASED),
    # ModernBERT (https://arxiv.org/abs/2412.13663), the encoders of Ettin
    # (https://arxiv.org/abs/2507.11412) and mmBERT (https://arxiv.org/abs/2509.06888).
    #                                  layers hidden heads intermediate
    "answerdotai/ModernBERT-base":  _modernbert(22,  768, 12, 1152),
    "answerdotai/ModernBERT-large": _modernbert(28, 1024, 16, 2624),
    "jhu-clsp/ettin-encoder-17m":   _modernbert(7,   256,  4,  384, **_ETTIN),
    "jhu-clsp/ettin-encoder-32m":   _modernbert(10,  384,  6,  576, **_ETTIN),
    "jhu-clsp/ettin-encoder-68m":   _modernbert(19,  512,  8,  768, **_ETTIN),
    "jhu-clsp/ettin-encoder-150m":  _modernbert(22,  768, 12, 1152, **_ETTIN),
    "jhu-clsp/ettin-encoder-400m":  _modernbert(28, 1024, 16, 2624, **_ETTIN),
    "jhu-clsp/ettin-encoder-1b":    _modernbert(28, 1792, 28, 3840, **_ETTIN),
    "jhu-clsp/mmBERT-small":        _modernbert(22,  384,  6, 1152, **_MMBERT),
    "jhu-clsp/mmBERT-base":         _modernbert(22,  768, 12, 1152, **_MMBERT),
    # NeoBERT (https://arxiv.org/abs/2502.19587) and EuroBERT (https://arxiv.org/abs/2503.05500).
    "chandar-lab/NeoBERT":    Row(_config(28, 768, 12, _UNCASED, **_LLAMA, intermediate_size=2048,
                                          max_positions=4096)),
    #                            layers hidden heads of keys intermediate
    "EuroBERT/EuroBERT-210m": _eurobert(12,  768, 12, None, 3072),
    "EuroBERT/EuroBERT-610m": _eurobert(26, 1152, 18,    6, 4096),
    "EuroBERT/EuroBERT-2.1B": _eurobert(32, 2304, 18,    6, 6144),
    # The base of nomic-embed-text (https://arxiv.org/abs/2402.01613).
    "nomic-ai/nomic-bert-2048": Row(_config(12, 768, 12, _PADDED_UNCASED, **_NOMIC)),
    # RoFormer (https://arxiv.org/abs/2104.09864), over Chinese words.
    #                               layers hidden positions
    "junnyu/roformer_chinese_base":  _roformer(12, 768, 1536),
    "junnyu/roformer_chinese_small": _roformer(6,  384,  512),
    # MosaicBERT (https://arxiv.org/abs/2312.17482), and its variants for other sequence lengths.
    **{
        f"mosaicml/mosaic-bert-base{suffix}":
            Row(_config(12, 768, 12, _PADDED_UNCASED, **_MOSAIC, max_positions=positions))
        for suffix, positions in {
            "": 512, "-seqlen-256": 256, "-seqlen-512": 512, "-seqlen-1024": 1024,
            "-seqlen-2048": 2048,
        }.items()
    },
    # ERNIE (https://arxiv.org/abs/1904.09223; 2.0: /1907.12412; 3.0: /2107.02137).
    "nghuyong/ernie-1.0-base-zh":   _ernie(12, 768, 12, 18_000, num_segments=2, max_positions=513,
                                           activation="relu"),
    "nghuyong/ernie-2.0-base-en":   _ernie(12,  768, 12, _UNCASED),
    "nghuyong/ernie-2.0-large-en":  _ernie(24, 1024, 16, _UNCASED),
    #                               layers hidden heads tasks
    "nghuyong/ernie-3.0-xbase-zh":  _ernie3(20, 1024, 16, 16),
    "nghuyong/ernie-3.0-base-zh":   _ernie3(12,  768, 12,  3),
    "nghuyong/ernie-3.0-medium-zh": _ernie3(6,   768, 12, 16),
    "nghuyong/ernie-3.0-mini-zh":   _ernie3(6,   384, 12, 16),
    "nghuyong/ernie-3.0-micro-zh":  _ernie3(4,   384, 12, 16),
    "nghuyong/ernie-3.0-nano-zh":   _ernie3(4,   312, 12, 16),
    # DeBERTa-v3 (https://arxiv.org/abs/2111.09543): discriminators, no pooler.
    #                               layers hidden
    "microsoft/deberta-v3-xsmall": _deberta(12,  384),
    "microsoft/deberta-v3-small":  _deberta(6,   768),
    "microsoft/deberta-v3-base":   _deberta(12,  768),
    "microsoft/deberta-v3-large":  _deberta(24, 1024),
    # Longformer (https://arxiv.org/abs/2004.05150): RoBERTa, trained further with windows and more
    # positions.
    "allenai/longformer-base-4096":  _longformer(12,  768),
    "allenai/longformer-large-4096": _longformer(24, 1024),
    # MPNet (https://arxiv.org/abs/2004.09297), over BERT's vocabulary and five more tokens.
    "microsoft/mpnet-base": _mpnet(),
    # SqueezeBERT (https://arxiv.org/abs/2006.11316).
    "squeezebert/squeezebert-uncased": _squeezebert(),
    # ConvBERT (https://arxiv.org/abs/2008.02496); `heads` counts the heads with self-attention.
    #                               layers hidden heads embedding
    "YituTech/conv-bert-small":        _convbert(12, 256, 2, 128),
    "YituTech/conv-bert-medium-small": _convbert(12, 384, 4, 128, num_groups=2),
    "YituTech/conv-bert-base":         _convbert(12, 768, 6, 768),
    # XLNet (https://arxiv.org/abs/1906.08237); no pooler, because the language model has none.
    "xlnet-base-cased":            _xlnet(12,  768),
    "xlnet-large-cased":           _xlnet(24, 1024),
    # Transformer-XL (https://arxiv.org/abs/1901.02860): the larger of its models on WikiText-103
    # (103 million words). Without the softmax, which belongs to the task.
    "transfo-xl-wt103": _transformer_xl(18, 1024, 16, 4096, vocabulary_size=267_735,
        cutoffs=(20_000, 40_000, 200_000), divisor=4, same_length=True, clamp_length=1000),
    # AWD-LSTM (https://arxiv.org/abs/1708.02182) with the sizes of ULMFiT's model of WikiText-103
    # (https://arxiv.org/abs/1801.06146); the name is kbert's.
    "awd-lstm": Row(AwdLstmConfig(vocabulary_size=60_000), "words"),
    # Reformer (https://arxiv.org/abs/2001.04451): language models of bytes and of one novel.
    #                             layers stream heads vocabulary
    "google/reformer-enwik8": _reformer(12, 1024, 8, 258, head_size=128, intermediate_size=4096,
        max_positions=65536, axial_shape=(128, 512), axial_sizes=(256, 768),
        attention_pattern=("local", "local", "lsh", "local"), local_chunk_length=128,
        lsh_chunk_length=256, num_buckets=512, num_hashes=4, dropout=0.2, attention_dropout=0.2,
        lsh_dropout=0.1),
    "google/reformer-crime-and-punishment": _reformer(6, 256, 2, 320, intermediate_size=512,
        max_positions=524288, axial_shape=(512, 1024), axial_sizes=(64, 192),
        num_buckets=(64, 128), dropout=0.05, attention_dropout=0.05),
    # MobileBERT (https://arxiv.org/abs/2004.02984). The tiny model and the teacher of both were
    # never released; their names are kbert's, their sizes are in the published code.
    "google/mobilebert-uncased": _mobilebert(),
    "mobilebert-tiny-uncased":   _mobilebert(num_feed_forwards=2, attention_input="bottleneck"),
    "ib-bert-large-uncased":     _ib_bert(),
}

# ELMo (https://arxiv.org/abs/1802.05365): bidirectional language models (`kbert.Elmo`), not
# encoders of the family. The last was trained on 5.5 billion words. Sizes without the softmax.
#                                  highway lstm projection
BILMS: dict[str, Row] = {
    "elmo-small":              _elmo(1, 1024, 128),
    "elmo-medium":             _elmo(1, 2048, 256),
    "elmo-original":           _elmo(2, 4096, 512),
    "elmo-original-5.5b":      _elmo(2, 4096, 512),
}
# fmt: on
