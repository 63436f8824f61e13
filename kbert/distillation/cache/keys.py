"""Keys of rows: hashes of the encoder's inputs, independent of the table.

Shapes: B rows of a batch, W texts of a row, T tokens, see `kbert.distillation.cache.layout`.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.tasks.fine_tuning.text_rows import SWAPPED

KEY_BYTES = 16
# Features that the tasks' models read; labels and weights are not part of a key.
_READ = ("token_ids", "segment_ids", SWAPPED)


def row_keys(features: Mapping[str, Any], num_segments: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns keys and sizes of the rows of a batch, which do not depend on the batch's padding.

    Args:
        features: features of the batch: "token_ids" and "padding_mask", (B, T) or (B, W, T),
            "segment_ids", ….
        num_segments: number of the model's segments; for 0, segment ids are ignored.

    Returns:
        Keys (B,) of 16 bytes, and sizes (B, 2) int32: W and T of each row without its padding.

    Example:
        >>> ids, mask = np.array([[7, 8, 0], [7, 8, 9]]), np.array([[1, 1, 0], [1, 1, 1]])
        >>> keys, sizes = row_keys({"token_ids": ids, "padding_mask": mask}, num_segments=0)
        >>> wider = {"token_ids": np.pad(ids, [(0, 0), (0, 2)]),
        ...          "padding_mask": np.pad(mask, [(0, 0), (0, 2)])}
        >>> sizes.tolist(), bool((row_keys(wider, 0)[0] == keys).all()), bool(keys[0] == keys[1])
        ([[1, 2], [1, 3]], True, False)
    """
    mask = np.asarray(features["padding_mask"])
    has_texts = mask.ndim == 3
    real = (mask if has_texts else mask[:, None]) > 0  # (B, W, T)
    sizes = np.stack([_last(real.any(2)), _last(real.any(1))], 1)
    names = [name for name in _READ if name in features]
    if not num_segments and "segment_ids" in names:
        names.remove("segment_ids")
    columns = [np.asarray(features[name], np.int32) for name in names] + [mask.astype(np.int32)]
    head = ",".join(names).encode()
    keys = np.empty(len(mask), f"S{KEY_BYTES}")
    for row, size in enumerate(sizes):
        slices = tuple(map(slice, size if has_texts else size[1:]))
        digest = hashlib.blake2b(head + size.tobytes(), digest_size=KEY_BYTES)
        for column in columns:
            digest.update(np.ascontiguousarray(column[row][slices]))
        keys[row] = digest.digest()
    return keys, sizes


def _last(real: Any) -> np.ndarray:
    """Returns 1 + the index of the last true value of each row, (B,) int32; at least 1."""
    return np.where(real, np.arange(1, real.shape[1] + 1), 1).max(1).astype(np.int32)
