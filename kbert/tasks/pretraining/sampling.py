"""Samples tokens from a generator's predictions, independent of how a batch is divided.

A draw is a hash of its row, of the position in the data (`position`) and of the position in the
row. So it needs no state in a checkpoint. It is the same on one replica or eight, in one
micro-batch or many, and in every evaluation of the same text.

Shapes: B rows, T tokens, P masked positions, V vocabulary.
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


def sample_tokens(logits: Any, keys: Any, mask_positions: Any) -> Any:
    """Samples one token for each masked position from the softmax of its logits.

    Inverts the cumulative distribution, with one uniform number per position; Gumbel noise would
    need one per vocabulary entry. A position that is listed twice gets the same token twice.

    Args:
        logits: (B, P, V) float32.
        keys: (B,) uint32 keys of the rows, see `row_keys`.
        mask_positions: (B, P) positions of the masked tokens.

    Returns:
        (B, P) int32 token ids. No gradient flows through them.

    Example:
        >>> logits = np.array([[[-1e9, 0.0, -1e9]]], "float32")
        >>> sample_tokens(logits, _mix(ops.zeros((1,), "uint32")), np.array([[4]])).shape[1]
        1
    """
    bits = _fold(keys[:, None], mask_positions)  # (B, P)
    # 24 bits: float32 represents these integers exactly.
    uniform = ops.cast(ops.right_shift(bits, _word(8)), "float32") * 2.0**-24  # in [0, 1)
    logits = ops.stop_gradient(logits)
    shares = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    cumulated = ops.cumsum(shares, axis=-1)  # (B, P, V)
    point = (uniform * cumulated[..., -1])[..., None]
    token_ids = ops.sum(ops.cast(cumulated <= point, "int32"), axis=-1)
    return ops.minimum(token_ids, logits.shape[-1] - 1)
