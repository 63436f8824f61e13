"""Extends the vocabulary of a trained model: arrays in, arrays out.

Shapes: `V` entries before, `W` entries after, `E` embedding width.
"""

from collections.abc import Mapping

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays

_TABLE = "encoder/embeddings/token"
_UNTIED, _BIAS = "masked_lm/table", "masked_lm/bias"
# Extra columns of the output table; see `EncoderConfig.output_columns`.
_COLUMNS = "masked_lm/columns"


def extend_vocabulary(
    config: EncoderConfig,
    arrays: Arrays,
    vocabulary_size: int,
    pieces: Mapping[int, list[int]] | None = None,
    seed: int = 0,
    *,
    known: int | None = None,
) -> tuple[EncoderConfig, dict[str, np.ndarray]]:
    """Adds rows to the token tables and entries to the masked-LM bias, to adapt to a new domain.

    Old rows keep their ids, so new entries must be appended to the vocabulary. A new row is
    initialised with the mean of the rows of the subwords that its word was split into before. So
    the model still understands the word, as in exBERT-style adaptation. A new row without subwords
    is sampled from a normal around the mean of old rows, with sigma `initializer_range`. A new bias
    is the mean of the old ones.

    Args:
        config: config of the encoder.
        arrays: weight name -> array, including the token table.
        vocabulary_size: number of entries after the extension (W).
        pieces: new id -> ids (below V) of the subwords that the entry was split into before.
        seed: random seed of the rows without subwords.
        known: number of vocabulary entries before (V), if the table has more rows (padding to a
            round number). Padding rows used by new entries are initialised like added rows; the
            others are unchanged. None = all rows of the table.

    Returns:
        The config and the arrays of the larger model; arrays that do not grow are not copied.

    Raises:
        ValueError: the vocabulary would shrink, the table has fewer rows than `known`, or `pieces`
            has ids out of range.

    Example:
        >>> config = EncoderConfig(vocabulary_size=3, hidden_size=2, num_layers=1, num_heads=1,
        ...                        intermediate_size=4)
        >>> arrays = {"encoder/embeddings/token": np.array([[0.0, 1], [2, 3], [4, 5]])}
        >>> config, arrays = extend_vocabulary(config, arrays, 4, pieces={3: [0, 1]})
        >>> arrays["encoder/embeddings/token"][3].tolist()
        [1.0, 2.0]
    """
    table = arrays[_TABLE]
    old_size = len(table) if known is None else known
    if old_size > len(table):
        raise ValueError(
            "The token table must have a row for each of the `known` entries. Received: "
            f"{len(table)} rows, known={old_size}"
        )
    if vocabulary_size < old_size:
        raise ValueError(
            f"`vocabulary_size` must be at least {old_size}, as a vocabulary can only grow. "
            f"Received: vocabulary_size={vocabulary_size}"
        )
    for new, old in (pieces or {}).items():
        if (
            not old_size <= new < vocabulary_size
            or not old
            or not all(0 <= i < old_size for i in old)
        ):
            raise ValueError(
                f"`pieces` must map new ids, {old_size} to {vocabulary_size - 1}, to one or more "
                f"old ids below {old_size}. Received: {new}: {old}"
            )
    grown = dict(arrays)
    for name in (_TABLE, _UNTIED, _COLUMNS):
        if name not in arrays:
            continue
        table = arrays[name]
        rows = np.random.default_rng(seed).normal(
            table[:old_size].mean(axis=0),
            config.initializer_range,
            (vocabulary_size - old_size, table.shape[1]),
        )  # (W - V, E)
        for new, old in (pieces or {}).items():
            rows[new - old_size] = table[old].mean(axis=0)
        grown[name] = _with_new(table, old_size, rows.astype(table.dtype))  # (W, E)
    if _BIAS in arrays:
        bias = arrays[_BIAS]
        added = np.full(vocabulary_size - old_size, bias[:old_size].mean(), bias.dtype)
        grown[_BIAS] = _with_new(bias, old_size, added)
    return config.replace(vocabulary_size=len(grown[_TABLE])), grown


def _with_new(array: np.ndarray, before: int, new: np.ndarray) -> np.ndarray:
    """Returns an array with the rows `new` after its first `before` rows.

    The new rows replace padding rows; further padding rows are kept.
    """
    return np.concatenate([array[:before], new, array[before + len(new) :]])
