"""Attention as a graph from the last layer to the input tokens: rollout and flow.

(Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers",
https://arxiv.org/abs/2005.00928.)

Shapes: L layers, T tokens.
"""

from typing import Any

import numpy as np

_EPSILON = 1e-9  # capacity below which an edge counts as saturated


def attention_rollout(attention: Any, read: Any) -> np.ndarray:
    """Returns the share of each input token in the read positions, by attention rollout.

    The product of the layers' attention matrices, each averaged with the identity for the residual
    connection (Abnar & Zuidema 2020, section 3).

    Args:
        attention: (L, T, T), attention probabilities of each layer, averaged over heads; the first
            layer first.
        read: (T,), weights of the positions that the head reads in the last layer; they sum to 1.

    Returns:
        (T,) float64, shares that sum to 1.

    Example:
        >>> attention_rollout([[[1.0, 0.0], [0.5, 0.5]]], [0.0, 1.0]).tolist()
        [0.25, 0.75]
    """
    share = np.asarray(read, "float64")
    for layer in _with_residual(attention)[::-1]:
        share = share @ layer
    return share


def attention_flow(attention: Any, read: Any) -> np.ndarray:
    """Returns the maximum flow from the read positions to each input token.

    The capacities are the layers' attention probabilities, averaged with the identity as in
    `attention_rollout` (Abnar & Zuidema 2020, section 3). One maximum-flow problem is solved for
    each token, which takes half a minute for 64 tokens and 12 layers.

    Args:
        attention: like in `attention_rollout`.
        read: like in `attention_rollout`; weights are the capacities of the positions.

    Returns:
        (T,) float64, each from 0 to 1.

    Example:
        >>> attention_flow([[[1.0, 0.0], [0.5, 0.5]]], [0.0, 1.0]).tolist()
        [0.25, 0.75]
    """
    layers = _with_residual(attention)
    read = np.asarray(read, "float64")
    source = np.zeros_like(layers[:1])
    source[0, 0] = read  # the only edges from the source, which is token 0 of the layer above
    capacity = np.concatenate([layers, source])
    return np.array([_max_flow(capacity, token) for token in range(len(read))])


def _with_residual(attention: Any) -> np.ndarray:
    """Returns attention matrices (L, T, T), averaged with the identity; rows sum to 1."""
    attention = np.asarray(attention, "float64")
    matrices = attention + np.eye(attention.shape[-1])
    return matrices / matrices.sum(-1, keepdims=True)


def _max_flow(capacity: np.ndarray, sink: int) -> float:
    """Returns the maximum flow from token 0 above the last layer to the token `sink` below all.

    Augments along the path with the largest bottleneck (Edmonds & Karp 1972, section 1.3).

    Args:
        capacity: (L, T, T), capacities from the tokens above layer l to those below it.
        sink: index of a token below the first layer.
    """
    down, up = capacity.copy(), np.zeros_like(capacity)  # residual capacities in both directions
    count, size, _ = capacity.shape
    total = 0.0
    while True:
        # The width of the widest path to each node, and the node before it: (level, token).
        width = np.zeros((count + 1, size))
        width[count, 0] = np.inf
        before = np.zeros((count + 1, size, 2), int)
        paths = (width, before)
        grew = True
        while grew:
            steps_down = [_widen(*paths, down[n], n, n + 1) for n in reversed(range(count))]
            steps_up = [_widen(*paths, up[n], n + 1, n) for n in range(count)]
            grew = any(steps_up) or (any(steps_down) and up.any())
        flow = width[0, sink]
        if flow <= _EPSILON:
            return total
        level, token = 0, sink
        while level < count or token:
            from_level, from_token = before[level, token]
            there, back = (down, up) if from_level > level else (up, down)
            edge = min(level, from_level)
            there[edge, from_token, token] -= flow
            back[edge, token, from_token] += flow
            level, token = from_level, from_token
        total += flow


def _widen(
    width: np.ndarray, before: np.ndarray, edges: np.ndarray, level: int, from_level: int
) -> bool:
    """Widens the paths to the nodes of a level, in place; returns whether any became wider.

    Args:
        width: (levels, T), width of the widest path to each node so far.
        before: (levels, T, 2), level and token before each node on that path.
        edges: (T, T), residual capacities from the tokens of `from_level` to those of `level`.
        level: level of the nodes.
        from_level: level that the edges come from.
    """
    candidates = np.minimum(width[from_level][:, None], edges)
    best = candidates.argmax(0)
    widest = candidates.max(0)
    wider = widest > width[level] + _EPSILON
    width[level, wider] = widest[wider]
    before[level, wider, 0] = from_level
    before[level, wider, 1] = best[wider]
    return bool(wider.any())
