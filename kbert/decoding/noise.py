"""Random numbers that depend on (seed, row, step, token) only.

Sampling must not depend on which rows share a batch, on the device or on how the loop is compiled.
The backends' stateless generators differ in all three. So the bits are computed here, with 32-bit
integers, which every backend has: Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3").
"""

from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Returns 64 random bits for each counter under each key.

    Args:
        key: two uint32 tensors.
        counter: two uint32 tensors, broadcast with the two of `key`.

    Returns:
        Two uint32 tensors of the broadcast shape.

    Example:
        >>> zero = ops.zeros((), "uint32")
        >>> [hex(int(bits)) for bits in threefry((zero, zero), (zero, zero))]
        ['0x6b200159', '0x99ba4efe']
    """
    keys = (*key, key[0] ^ key[1] ^ _u32(_PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ (ops.left_shift(y, _u32(by)) | ops.right_shift(y, _u32(32 - by)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + _u32(group + 1)
    return x, y


def gumbel(seed: Tensor, rows: Tensor, step: Tensor, token_ids: Tensor) -> Tensor:
    """Draws a number from the standard Gumbel distribution for each token and row.

    The token with the largest sum of log-probability and draw is a sample of the distribution. A
    draw belongs to a token, not to its rank, so rounding of the logits hardly ever changes the
    sample.

    Args:
        seed: scalar integer.
        rows: (R,) integers, the row numbers.
        step: scalar integer, the index of the new token.
        token_ids: (R, C) or (1, C) integers, the candidate tokens.

    Returns:
        (R, C) float32 draws.
    """
    seed, rows, step, token_ids = (_u32(x) for x in (seed, rows, step, token_ids))
    bits, _ = threefry((seed, rows[:, None]), (step, token_ids))
    # Large draws decide. They come from small uniforms, where float32 resolves all 32 bits.
    uniform = (ops.cast(bits, "float32") + 0.5) * 2.0**-32
    return -ops.log(-ops.log1p(-ops.minimum(uniform, 1.0 - 2.0**-24)))


def _u32(value: Tensor) -> Tensor:
    """Returns a value as a uint32 tensor.

    Python integers go through NumPy, because they may need all 32 bits.
    """
    return ops.cast(np.uint32(value) if isinstance(value, int) else value, "uint32")
