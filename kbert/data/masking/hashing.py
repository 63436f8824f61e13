"""Random numbers as pure functions of integers: the same on any device, thread, batch or host.

A *key* is a uint64. `fold` derives a new key from a key and a number (a seed, an epoch, a row, a
column …). The bits of a folded key are the random number. There is no state, so any row of any
epoch can be drawn alone. Nothing is rounded to float, where `uniform() * n` can be equal to n.

The mixer is the finaliser of SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants of Stafford's variant 13), applied to `key + (n + 1) * gamma`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kbert.core.late import tf

_GAMMA = 0x9E3779B97F4A7C15


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


def _shift_xor(bits: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _u64(by)))


def fold(key: tf.Tensor | int, number: tf.Tensor | int) -> tf.Tensor:
    """Derives a key for `number` under `key`, with broadcasting.

    Args:
        key: uint64 tensor, or a Python integer to start from (a seed).
        number: integer tensor or Python integer, not negative.

    Returns:
        uint64 tensor of the broadcast shape: 64 random bits, or keys for further folds.

    Example:
        >>> row_keys = fold(fold(7, 0), tf.range(3))                      # (3,)
        >>> below(fold(row_keys[:, None], tf.range(4)), 10).numpy().tolist()
        [[6, 4, 9, 1], [1, 0, 2, 3], [4, 4, 0, 1]]
    """
    if isinstance(number, int):  # a constant takes the place of a dozen operations
        if isinstance(key, int):
            return _u64(int(fold_arrays(key, number)))
        offset = _u64((number + 1) * _GAMMA % 2**64)
    else:
        offset = (tf.cast(number, tf.uint64) + _u64(1)) * _u64(_GAMMA)
    bits = (_u64(key) if isinstance(key, int) else key) + offset
    bits = _shift_xor(bits, 30) * _u64(0xBF58476D1CE4E5B9)
    bits = _shift_xor(bits, 27) * _u64(0x94D049BB133111EB)
    return _shift_xor(bits, 31)


def fold_arrays(key: np.ndarray | int, number: np.ndarray | int) -> np.ndarray:
    """Derives a uint64 key for `number` under `key`, like `fold`, for NumPy arrays: the same bits.

    >>> bits = fold(fold(7, 0), tf.range(3)).numpy()
    >>> bool((fold_arrays(fold_arrays(7, 0), np.arange(3)) == bits).all())
    True
    """
    with np.errstate(over="ignore"):  # modulo 2**64, as everywhere
        bits: Any = np.uint64(key) + (np.uint64(number) + np.uint64(1)) * np.uint64(_GAMMA)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def below(bits: tf.Tensor, limit: tf.Tensor | int) -> tf.Tensor:
    """Returns int32 integers in [0, limit), uniform to within limit / 2**32; 0 for a limit of 0.

    `bits` are random uint64, from `fold`.

    >>> below(fold(0, tf.range(6)), 3).numpy().tolist()
    [2, 1, 0, 2, 0, 0]
    """
    high = tf.bitwise.right_shift(bits, _u64(32))
    return tf.cast(tf.bitwise.right_shift(high * tf.cast(limit, tf.uint64), _u64(32)), tf.int32)


def chance(bits: tf.Tensor, share: float) -> tf.Tensor:
    """Returns booleans that are True with probability `share`, to within 2**-32.

    `bits` are random uint64, from `fold`.

    >>> chance(fold(0, tf.range(6)), 0.5).numpy().tolist()
    [False, True, True, False, True, True]
    """
    return tf.bitwise.right_shift(bits, _u64(32)) < _u64(round(share * 2**32))


_COIN_WORDS = 4


def heads(key: tf.Tensor, coins: tf.Tensor) -> tf.Tensor:
    """Draws how many of `coins` fair coins show heads, int32.

    `key` (uint64) and `coins` (int32) have the shape of the result.
    The first 256 coins are tossed, one bit each. Half of any further coins count as heads.

    >>> heads(fold(0, tf.range(4)), tf.constant([0, 1, 9, 1000])).numpy().tolist()
    [0, 0, 4, 496]
    """
    words = tf.range(_COIN_WORDS)
    width = tf.clip_by_value(coins[..., None] - 64 * words, 0, 64)  # (…, words)
    # A shift by all 64 bits is undefined, so 64 ones are made with two shifts by 32.
    half = tf.cast(width // 2, tf.uint64)
    limit = tf.bitwise.left_shift(_u64(1), half)
    limit = tf.bitwise.left_shift(limit, tf.cast(width, tf.uint64) - half) - _u64(1)
    tossed = tf.bitwise.bitwise_and(fold(key[..., None], words), limit)
    counts = tf.cast(tf.raw_ops.PopulationCount(x=tossed), tf.int32)
    return tf.reduce_sum(counts, -1) + tf.maximum(coins - 64 * _COIN_WORDS, 0) // 2
