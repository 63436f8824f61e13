"""Turns an encoder for short sequences into one for long ones, as Longformer was made from RoBERTa.

(Beltagy et al. 2020, "Longformer", https://arxiv.org/abs/2004.05150, sections 3.1 and 5.)

Shapes: `P` positions before, `L` after, `E` embedding width.
"""

import re

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays

_PART = {"name": "global_tokens"}  # the kind of a `kbert.models.Part`
_POSITIONS = "encoder/embeddings/position"
_LOCAL = re.compile(r"(encoder/layers/\d+/attention)/qkv/(kernel|bias)")


def lengthen(
    config: EncoderConfig, arrays: Arrays, *, max_positions: int | None = None, window: int = 512
) -> tuple[EncoderConfig, dict[str, np.ndarray]]:
    """Adds windows, global tokens and more positions to a trained encoder.

    The position table is repeated, so every token except those at the seams has the same
    neighbouring positions as before. The projections for global tokens start as copies of the local
    ones and replace any that exist. Masked language modelling has no global tokens and trains only
    the local projections, so call this again after it.

    Args:
        config: config of the encoder.
        arrays: weight name -> array, including the encoder's weights.
        max_positions: number of positions after lengthening (L); None = unchanged.
        window: number of tokens around a token that the token attends to, half of them on either
            side.

    Returns:
        The config and the arrays of the long model; unchanged arrays are not copied. For sequences
        of at most half a window plus one token, the outputs are the same as before.

    Raises:
        ValueError: there would be fewer positions, the model has another part than global tokens,
            the model has edits, or its attention does not support global tokens.

    Example:
        >>> config = EncoderConfig(vocabulary_size=3, hidden_size=2, num_layers=1, num_heads=1,
        ...                        intermediate_size=4, max_positions=2)
        >>> arrays = {"encoder/embeddings/position": np.array([[0.0, 1], [2, 3]])}
        >>> config, arrays = lengthen(config, arrays, max_positions=5, window=2)
        >>> arrays["encoder/embeddings/position"][:, 0].tolist()
        [0.0, 2.0, 0.0, 2.0, 0.0]
    """
    old_size = config.max_positions
    length = old_size if max_positions is None else max_positions
    if length < old_size:
        raise ValueError(
            f"`max_positions` must be at least {old_size}, the positions of the model. Received: "
            f"max_positions={max_positions}"
        )
    if config.part is not None and config.part["name"] != _PART["name"]:
        raise ValueError(
            "Global tokens require a model without another `part`. Received: "
            f"part={config.part['name']!r}"
        )
    if config.edits:
        raise ValueError(
            "A model must be lengthened before it is edited: edits do not support the kernels of "
            f"global tokens. Received: edits={list(map(dict, config.edits))}"
        )
    changes = {"max_positions": length, "attention_pattern": (window,), "part": _PART}
    config = config.replace(**changes)
    config.find_part().check_config(config)  # `replace` skips it until the part's module is loaded
    longer = dict(arrays)
    if config.positions == "learned" and _POSITIONS in arrays:
        longer[_POSITIONS] = np.resize(arrays[_POSITIONS], (length, config.embedding_width))
    for name, array in arrays.items():
        if local := _LOCAL.fullmatch(name):
            query, key, value = np.split(array, 3, axis=-1)
            longer[f"{local[1]}/global_query/{local[2]}"] = query
            key_value = np.concatenate([key, value], axis=-1)
            longer[f"{local[1]}/global_key_value/{local[2]}"] = key_value
    return config, longer
