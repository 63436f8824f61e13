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
    said = content.get("rope_parameters")
    if said is None:
        return theta
    extra = set(said) - {"rope_type", "rope_theta"} if isinstance(said, dict) else {"nothing"}
    if extra or said.get("rope_type", "default") != "default":
        raise ValueError(
            "`rope_parameters` must give a `rope_theta` of the type 'default'. "
            f"Received: {said!r:.120} in {source}"
        )
    return said.get("rope_theta", theta)


def write_base(base: float | None) -> dict[str, Any]:
    """Returns the config keys of a rotary base; reverses `read_base`. None is 10,000."""
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

    Example:
        >>> in_pairs(in_halves(np.arange(8), num_heads=2), num_heads=2).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _swapped(weight, num_heads, pairs_last=False)


def _swapped(weight: np.ndarray, num_heads: int, *, pairs_last: bool) -> np.ndarray:
    if len(weight) % (2 * num_heads):  # unchanged: setting the weights reports the shape
        return weight
    half = len(weight) // (2 * num_heads)
    shape = (half, 2) if pairs_last else (2, half)
    heads = weight.reshape(num_heads, *shape, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)
