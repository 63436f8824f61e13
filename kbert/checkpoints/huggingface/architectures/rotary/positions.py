"""Rotary positions: the base of a config, and the order in which queries and keys are turned.

kbert turns number i of a head with i + D / 2, as GPT-NeoX and Llama; NeoBERT and RoFormer turn 2 i
with 2 i + 1, as the paper. Scores are products of queries with keys, so an order of both that is
the same for all heads is a matter of how their weights are stored.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def read_base(content: Mapping[str, Any], usual: float, source: str) -> float:
    """The base that a config names, under the keys of any version.

    Args:
        content: of `config.json`.
        usual: where it names none.
        source: where it is from, for the message.

    Raises:
        ValueError: positions that are scaled or turned in part.

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
    """The reverse of `read_base`; None is 10,000."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base or 10_000.0}}


def in_halves(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of queries or keys, turned in neighbouring pairs there -> as kbert turns them.

    Args:
        weight: (H, …), as PyTorch has it: of a bias or a kernel.
        num_heads: N.

    Example:
        >>> in_halves(np.arange(8), num_heads=2).tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return _swapped(weight, num_heads, pairs_last=True)


def in_pairs(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The reverse of `in_halves`.

    Example:
        >>> in_pairs(in_halves(np.arange(8), num_heads=2), num_heads=2).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _swapped(weight, num_heads, pairs_last=False)


def _swapped(weight: np.ndarray, num_heads: int, *, pairs_last: bool) -> np.ndarray:
    if len(weight) % (2 * num_heads):  # passed on: whoever sets the weights names its shape
        return weight
    half = len(weight) // (2 * num_heads)
    shape = (half, 2) if pairs_last else (2, half)
    heads = weight.reshape(num_heads, *shape, *weight.shape[1:])
    return heads.swapaxes(1, 2).reshape(weight.shape)
