"""An encoder of short rows as one of long rows, in the way Longformer was made of RoBERTa.

(Beltagy et al. 2020, "Longformer", https://arxiv.org/abs/2004.05150, sections 3.1 and 5.)

Shapes: `P` positions before, `L` after, `E` embedding width.
"""

import re

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays

_PART = {"name": "global_tokens"}  # of `kbert.models.parts`
_POSITIONS = "encoder/embeddings/position"
_LOCAL = re.compile(r"(encoder/layers/\d+/attention)/qkv/(kernel|bias)")


def lengthen(
    config: EncoderConfig, arrays: Arrays, *, max_positions: int | None = None, window: int = 512
) -> tuple[EncoderConfig, dict[str, np.ndarray]]:
    """Windows, global tokens and more positions for a trained encoder.

    The table of positions is repeated: every token but those at the seams sees around it what it
    saw before. The projections of global tokens begin as copies of the others, also where there are
    some already: masked language modelling has no global tokens and trains the others alone, so
    that after it they are copied once more.

    Args:
        config: the encoder's.
        arrays: weight name -> array, the encoder's among them.
        max_positions: L; None = as many as before.
        window: tokens that a token attends to, half of them on either side.

    Returns:
        The config and the arrays of the long model; arrays that do not change are not copied. Rows
        no longer than half a window and one token are read as before.

    Raises:
        ValueError: there would be fewer positions, or the model has no place for global tokens.

    Example:
        >>> config = EncoderConfig(vocabulary_size=3, hidden_size=2, num_layers=1, num_heads=1,
        ...                        intermediate_size=4, max_positions=2)
        >>> arrays = {"encoder/embeddings/position": np.array([[0.0, 1], [2, 3]])}
        >>> config, arrays = lengthen(config, arrays, max_positions=5, window=2)
        >>> arrays["encoder/embeddings/position"][:, 0].tolist()
        [0.0, 2.0, 0.0, 2.0, 0.0]
    """
    before = config.max_positions
    length = before if max_positions is None else max_positions
    if length < before:
        raise ValueError(
            f"A model can only become longer; it has {before} positions. "
            f"Received: max_positions={max_positions}"
        )
    if config.part is not None and config.part["name"] != _PART["name"]:
        raise ValueError(
            "A model with a part of its own gets no global tokens. "
            f"Received: part={config.part['name']!r}"
        )
    if config.edits:
        raise ValueError(
            "A model is made longer before it is edited: its global tokens have kernels that no "
            f"edit knows. Received: edits={list(map(dict, config.edits))}"
        )
    changes = {"max_positions": length, "attention_pattern": (window,), "part": _PART}
    config = config.replace(**changes)
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
