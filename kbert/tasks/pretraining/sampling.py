"""Random numbers to draw a generator's tokens with, independent of how a batch is divided.

A number is a hash of its row, of the position in the data (`position`) and of the position in the
row. So it needs no state in a checkpoint. It is the same on one replica or eight, in one
micro-batch or many, and in every evaluation of the same text.

Shapes: B rows, T tokens, P masked positions.
"""

from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor

# Finalizer of MurmurHash3 (Austin Appleby, public domain): every input bit changes half of the
# output bits.
_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_STEP = np.uint32(0x9E3779B9)  # 2**32 / golden ratio


def _mix(x: Tensor) -> Tensor:
    for shift, factor in ((16, _FIRST), (13, _SECOND)):
        x = ops.multiply(ops.bitwise_xor(x, ops.right_shift(x, _word(shift))), _word(factor))
    return ops.bitwise_xor(x, ops.right_shift(x, _word(16)))


def _word(value: Any) -> Tensor:
    return ops.convert_to_tensor(np.uint32(value), dtype="uint32")


def _fold(key: Tensor, data: Any) -> Tensor:
    """Derives new keys from keys and integers, by a hash; all are uint32, shapes broadcast."""
    return _mix(ops.add(ops.multiply(key, _word(_STEP)), ops.cast(data, "uint32")))


def row_keys(token_ids: Any, position: Any, seed: int) -> Any:
    """Computes a random key for each row.

    Args:
        token_ids: (B, T) ids, which distinguish the rows of a batch.
        position: (B, 3) int32, the position in the data, which distinguishes steps.
        seed: seed of the run.

    Returns:
        (B,) uint32 keys.

    Example:
        >>> keys = row_keys(np.array([[5, 6], [6, 5]]), np.zeros((2, 3), "int32"), seed=0)
        >>> bool(keys[0] == keys[1])
        False
    """
    columns = _mix(ops.cast(ops.arange(ops.shape(token_ids)[1]), "uint32"))  # (T,)
    key = ops.sum(_fold(columns, token_ids), axis=1)  # (B,)
    for number in range(3):
        key = _fold(key, position[:, number])
    return _fold(key, _word(seed % 2**32))


def uniform_numbers(keys: Any, mask_positions: Any) -> Any:
    """Computes a random number for each masked position, to draw its token with.

    A position that is listed twice gets the same number twice.

    Args:
        keys: (B,) uint32 keys of the rows, see `row_keys`.
        mask_positions: (B, P) positions of the masked tokens.

    Returns:
        (B, P) float32 in [0, 1), see `kbert.tasks.token_losses.draw_tokens`.

    Example:
        >>> numbers = uniform_numbers(_mix(ops.arange(2, dtype="uint32")), np.array([[4], [4]]))
        >>> bool(numbers[0, 0] == numbers[1, 0])
        False
    """
    bits = _fold(keys[:, None], mask_positions)  # (B, P)
    # 24 bits: float32 represents these integers exactly.
    return ops.cast(ops.right_shift(bits, _word(8)), "float32") * 2.0**-24
