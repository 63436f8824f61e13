"""A map of vectors and their nearest neighbours.

Shapes: N vectors, D width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.visualization.canvas import (
    COLOURS,
    MARKS,
    add_legend,
    new_figure,
    set_title,
    shown,
    style,
)
from kbert.visualization.names import name_points


def neighbours_map(
    vectors: Any,
    labels: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    title: str | None = "Nearest neighbours",
) -> Any:
    """Vectors on a plane, each with a line to its nearest neighbour.

    The plane holds the two principal components of the vectors at length 1; the lines use the
    cosine in the full space, so they are right where the plane misleads.

    Args:
        vectors: (N, D).
        labels: N names.
        groups: N names of kinds, each with a colour and a mark; None = one kind.
        title: above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: fewer than two vectors, or more or fewer names than vectors.

    Example:
        >>> figure = neighbours_map([[1, 0], [0.9, 0.1], [0, 1]], ["cat", "kitten", "car"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['cat', 'kitten', 'car']
    """
    vectors = np.asarray(vectors, "float64")
    groups = [""] * len(labels) if groups is None else list(groups)
    if vectors.ndim != 2 or not 2 <= len(vectors) == len(labels) == len(groups):
        raise ValueError(
            "A map needs two vectors or more, and a label (and a group) for each. Received: "
            f"vectors of shape {vectors.shape}, {len(labels)} labels, {len(groups)} groups"
        )
    if not np.isfinite(vectors).all():
        raise ValueError("Vectors are finite numbers. Received: NaN or infinity in them")
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    points, shares = _principal(unit)
    figure = new_figure(8, 6)
    axes = figure.add_subplot()
    for start, end in enumerate(likeness.argmax(1)):
        axes.plot(*points[[start, end]].T, color="#888888", linewidth=1.2, zorder=1)
    kinds = list(dict.fromkeys(groups))
    for number, kind in enumerate(kinds):
        chosen = points[[group == kind for group in groups]]
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        axes.scatter(*chosen.T, s=48, color=colour, marker=mark, label=shown(kind), zorder=3)
    axes.margins(0.16, 0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"first principal component ({shares[0]:.0%} of the variance)", **style())
    axes.set_ylabel(f"second ({shares[1]:.0%})", **style())
    for spine in axes.spines.values():
        spine.set_color("#cccccc")
    if kinds != [""]:
        add_legend(figure)
    set_title(axes, title)
    name_points(figure, axes, points, [shown(label, 30) for label in labels])
    return figure


def _principal(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2) coordinates and the share of the variance that each axis has."""
    centred = vectors - vectors.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    if len(sizes) < 2:  # vectors of one number lie on a line
        left, sizes = np.pad(left, [(0, 0), (0, 1)]), np.pad(sizes, (0, 1))
    shares = sizes**2 / max((sizes**2).sum(), 1e-12)
    points = left[:, :2] * sizes[:2]
    # The sign of a component is free; the largest coordinate is made positive.
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return points * np.where(signs == 0, 1, signs), shares
