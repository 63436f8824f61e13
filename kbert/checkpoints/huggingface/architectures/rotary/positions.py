"""Rotary positions: the base in a config, and the order of rotated pairs in queries and keys.

kbert rotates entry i of a head together with i + D / 2, like GPT-NeoX and Llama. NeoBERT and
RoFormer rotate 2 i together with 2 i + 1, as in the paper. Scores are products of queries and keys,
so permuting the entries of both in the same way changes nothing: the weights are reordered.
(`H` is the hidden width, `N` the number of heads, `D` the width of a head.)
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def read_base(content: Mapping[str, Any], usual: float, source: str) -> float:
    """Returns the rotary base in a config, under the keys of any version.

    Args:
        content: key -> value of `config.json`.
        usual: base if the config has none.
        source: where the config is from, for the error message.

    Raises:
        ValueError: positions are scaled, or rotate only a part of a head.

    Example:
        >>> read_base({"rope_parameters": {"rope_theta": 1000.0}}, 10_000.0, "memory")
        1000.0
    """
    theta = content.get("rope_theta", usual)
    rope = content.get("rope_parameters")
    if rope is None:
        return theta
    extra = set(rope) - {"rope_type", "rope_theta"} if isinstance(rope, dict) else {"nothing"}
    if extra or rope.get("rope_type", "default") != "default":
        raise ValueError(
            "`rope_parameters` must give a `rope_theta` of the type 'default'. "
            f"Received: {rope!r:.120} in {source}"
        )
    return rope.get("rope_theta", theta)


def write_base(base: float | None) -> dict[str, Any]:
    """Returns config key -> value for a rotary base; None = 10,000. Reverses `read_base`."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base or 10_000.0}}


def in_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders the rows of queries or keys from neighbouring pairs to kbert's halves.

    Args:
        weight: kernel or bias (H, …), in PyTorch's orientation.
        num_heads: number of heads (N).

    Example:
        >>> in_halves(np.arange(8), num_heads=2).tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return _swapped(weight, num_heads, pairs_last=True)


def in_pairs(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders the rows of queries or keys to neighbouring pairs; reverses `in_halves`.

    Args:
        weight: kernel or bias (H, …), in PyTorch's orientation.
        num_heads: number of heads (N).

    Example:
        >>> in_pairs(in_halves(np.arange(8), num_heads=2), num_heads=2).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _swapped(weight, num_heads, pairs_last=False)


def _swapped(weight: np.ndarray, num_heads: int, *, pairs_last: bool) -> np.ndarray:
    """Reorders the rows of each head between pairs and halves.

    An array whose rows are no multiple of 2 N is returned unchanged.

    Args:
        weight: kernel or bias (H, …), in PyTorch's orientation.
        num_heads: number of heads (N).
        pairs_last: True = from neighbouring pairs to halves; False = the reverse.
    """
    if len(weight) % (2 * num_heads):  # unchanged: setting the weights reports the shape
        return weight
    half = len(weight) // (2 * num_heads)
    shape = (half, 2) if pairs_last else (2, half)
    heads = weight.reshape(num_heads, *shape, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)
