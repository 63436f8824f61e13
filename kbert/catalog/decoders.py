"""The published decoders: name -> sizes and values. Values only, no code."""

import dataclasses
from typing import Any

from kbert.catalog.encoders import FAMILY
from kbert.catalog.rows import Row
from kbert.configs.decoder import DecoderConfig


def _gpt2(num_layers: int, hidden_size: int, num_heads: int | None = None) -> Row:
    """Returns the table entry of a GPT-2."""
    heads = num_heads or hidden_size // 64
    sizes: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": heads,
    }
    sizes["intermediate_size"] = 4 * hidden_size
    return Row(DecoderConfig(vocabulary_size=50257, **sizes), "bpe")


def _twin(name: str) -> Row:
    """Returns the table entry of a decoder with the sizes of the encoder `name` in `FAMILY`.

    Its attention windows are the half of the encoder's that lies before each token.
    """
    config = FAMILY[name].config
    names = (field.name for field in dataclasses.fields(DecoderConfig))
    fields = {name: getattr(config, name) for name in names if hasattr(config, name)}
    fields |= {"attention_pattern": ("global", 64, 64), "output": "transformed"}
    return Row(DecoderConfig(**fields), "bpe")


# fmt: off
# Decoders. GPT: https://openai.com/research/language-unsupervised. GPT-2: the sizes of
# https://github.com/openai/gpt-2; the tiny one was never released.
_GPT = _gpt2(12, 768).config.replace(vocabulary_size=40478, max_positions=512, block="post_norm")
DECODERS: dict[str, Row] = {
    #                      layers hidden heads
    "openai-gpt":     Row(_GPT, "bpe"),
    "gpt2-tiny":      _gpt2(2,  128,  2),
    "gpt2":           _gpt2(12, 768),
    "gpt2-medium":    _gpt2(24, 1024),
    "gpt2-large":     _gpt2(36, 1280),
    "gpt2-xl":        _gpt2(48, 1600),
    # Twins of Ettin's encoders (https://arxiv.org/abs/2507.11412).
    **{
        f"jhu-clsp/ettin-decoder-{size}": _twin(f"jhu-clsp/ettin-encoder-{size}")
        for size in ("17m", "32m", "68m", "150m", "400m", "1b")
    },
}
# fmt: on
