"""Pictures of embeddings on a plane: clusters by label, and nearest neighbours.

Shapes: N vectors, D width.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.core.late import optional
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

PROJECTIONS = ("pca", "tsne", "umap")
# Maximum numbers of labels with a distinct colour and mark, and of points with readable names.
_LABELS, _NAMES = 16, 24
# Names of a map: up to 12 fit in a figure of 8 × 6 inches; larger maps have larger figures, and at
# most 64 names.
_ROOMY, _MOST_MAPPED = 12, 64
# Principal components that t-SNE and UMAP get of wider vectors, as their authors advise.
_COMPONENTS = 50
_ALONE = 2000  # points up to which t-SNE runs in one thread
_LEAST = {"pca": 2, "tsne": 4, "umap": 5}


def neighbours_map(
    vectors: Any,
    labels: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    title: str | None = "Nearest neighbours",
) -> Any:
    """Draws vectors on a plane, each with a line to its nearest neighbour.

    The plane shows the two principal components of the vectors, normalised to length 1. The lines
    use the cosine in the full space, so they are right where the plane misleads.

    Args:
        vectors: (N, D).
        labels: N names of the vectors; if there are more than 64, only the points that are farthest
            apart get names.
        groups: N names of groups; each group has a colour and a mark. None = one group.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are fewer than two vectors, or the numbers of names and vectors differ.

    Example:
        >>> figure = neighbours_map([[1, 0], [0.9, 0.1], [0, 1]], ["cat", "kitten", "car"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['cat', 'kitten', 'car']
    """
    groups = [""] * len(labels) if groups is None else list(groups)
    if np.ndim(vectors) != 2 or not 2 <= len(vectors) == len(labels) == len(groups):
        raise ValueError(
            "A map requires at least two vectors, and a label (and a group) for each. Received: "
            f"vectors of shape {np.shape(vectors)}, {len(labels)} labels, {len(groups)} groups"
        )
    unit = _unit(vectors)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    points, shares = _principal(unit)
    scale = float(np.clip(np.sqrt(len(labels) / _ROOMY), 1, 2))
    figure = new_figure(8 * scale, 6 * scale)
    axes = figure.add_subplot()
    for start, end in enumerate(likeness.argmax(1)):
        axes.plot(*points[[start, end]].T, color="#888888", linewidth=1.2, zorder=1)
    kinds = list(dict.fromkeys(groups))
    for number, kind in enumerate(kinds):
        chosen = points[[group == kind for group in groups]]
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        axes.scatter(*chosen.T, s=48, color=colour, marker=mark, label=shown(kind), zorder=3)
    axes.margins(0.16, 0.12)
    _frame(axes, *_components(shares))
    if kinds != [""]:
        add_legend(figure)
    set_title(axes, title)
    chosen = _far_apart(points, _MOST_MAPPED)
    names = [shown(labels[i], 30) for i in chosen]
    name_points(figure, axes, points[chosen], names)
    return figure


def projection(
    vectors: Any,
    labels: Sequence[str],
    texts: Sequence[str] | None = None,
    *,
    method: str = "pca",
    neighbours: int = 30,
    seed: int = 0,
    title: str | None = "Vectors by label",
) -> Any:
    """Draws vectors on a plane, with one colour and one mark per label.

    The vectors are normalised to length 1, so that close points have a high cosine. "pca" preserves
    distances as far as two axes can, and its axes show the share of variance. "tsne" and "umap"
    preserve neighbourhoods; the sizes of clusters and the distances between them mean nothing.

    Args:
        vectors: (N, D).
        labels: N labels; the sixteen most frequent have distinct colours and marks, the others are
            grey.
        texts: N names, drawn next to the points; if there are more than 24, only the points that
            are farthest apart get names. None = no names.
        method: "pca", "tsne" (scikit-learn's, `pip install 'kbert[sklearn]'`) or "umap"
            (`pip install 'kbert[umap]'`).
        neighbours: size of the neighbourhoods to preserve: the perplexity of "tsne", the neighbours
            of "umap"; reduced if there are few vectors. "pca" ignores it.
        seed: random seed of "tsne" and "umap".
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there are fewer vectors than the method needs (two, four, five), the numbers of
            labels or texts and of vectors differ, vectors contain NaN or infinity, the method is
            unknown, or `neighbours` is below 2.
        ImportError: scikit-learn or UMAP is needed and not installed.

    Example:
        >>> figure = projection([[1, 0], [0.9, 0.1], [0, 1]], ["animal", "animal", "thing"],
        ...                     ["cat", "kitten", "car"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['cat', 'kitten', 'car']
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['animal', 'thing']
    """
    if method not in PROJECTIONS:
        raise ValueError(f"`method` must be one of {', '.join(PROJECTIONS)}. Received: {method!r}")
    labels = [str(label) for label in labels]
    named = len(labels) if texts is None else len(texts)
    if np.ndim(vectors) != 2 or not _LEAST[method] <= len(vectors) == len(labels) == named:
        raise ValueError(
            f'A projection by "{method}" requires at least {_LEAST[method]} vectors, and a label '
            f"(and a text) for each. Received: vectors of shape {np.shape(vectors)}, "
            f"{len(labels)} labels, {'no' if texts is None else named} texts"
        )
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 2:
        raise ValueError(
            f"`neighbours` must be a whole number of at least 2. Received: {neighbours!r}"
        )
    unit = _unit(vectors)
    if method == "pca":
        points, shares = _principal(unit)
        axis_names = _components(shares)
    else:
        points = _embedded(unit, method, neighbours, seed)
        axis_names = ("t-SNE" if method == "tsne" else "UMAP", "")
    figure = new_figure(10, 6.4)
    axes = figure.add_subplot()
    _draw_labels(axes, points, labels)
    axes.margins(0.06 if texts is None else 0.14)
    _frame(axes, *axis_names)
    legend = figure.legend(loc="outside right upper", frameon=False)
    for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
        text.set(**style())
        handle.set(sizes=[48], alpha=1)  # one size, however small the points are
    set_title(axes, title)
    if texts is not None:
        chosen = _far_apart(points, _NAMES)
        names = [shown(texts[i], 24) for i in chosen]
        # With many more points than names, no position is free of points.
        unnamed = np.delete(points, chosen, axis=0)
        unnamed = unnamed if len(points) <= 10 * _NAMES else unnamed[:0]
        name_points(figure, axes, points[chosen], names, [(*x, *x) for x in unnamed])
    return figure


def _draw_labels(axes: Any, points: np.ndarray, labels: Sequence[str]) -> None:
    """Draws points (N, 2) in the colour and mark of their label; rare labels are grey."""
    counts = Counter(labels)
    shown_labels = {label for label, _ in counts.most_common(_LABELS)}
    kinds = [label for label in dict.fromkeys(labels) if label in shown_labels]
    # Many points are drawn smaller and lighter, so that they do not merge.
    size = 48 * min(1.0, (50 / len(points)) ** 0.35)
    look = {"s": size, "alpha": 0.9 if len(points) <= 200 else 0.7, "linewidths": 0}
    array = np.array(labels)
    other_points = points[~np.isin(array, kinds)]
    for number, kind in enumerate(kinds):
        colour = COLOURS[number % len(COLOURS)]
        mark = MARKS[(number + number // len(COLOURS)) % len(MARKS)]
        # The rarest label is on top.
        order = 3 + 1 / (1 + counts[kind])
        axes.scatter(
            *points[array == kind].T,
            color=colour,
            marker=mark,
            label=shown(kind, 28),
            zorder=order,
            **look,
        )
    if len(other_points):
        num_others = len(counts) - len(kinds)
        axes.scatter(
            *other_points.T,
            color="#cccccc",
            marker="o",
            label=f"{num_others} others",
            zorder=2,
            **look,
        )


def _embedded(unit: np.ndarray, method: str, neighbours: int, seed: int) -> np.ndarray:
    """Projects vectors to a plane by t-SNE or UMAP.

    Args:
        unit: vectors (N, D) of length 1.
        method: "tsne" or "umap".
        neighbours: size of the neighbourhoods to preserve; reduced if there are few vectors.
        seed: random seed.

    Returns:
        Points (N, 2) float64; zeros if all vectors are equal.
    """
    if not np.ptp(unit, axis=0).any():  # all vectors are equal
        return np.zeros((len(unit), 2))
    if unit.shape[1] > _COMPONENTS:
        unit = _decomposed(unit, _COMPONENTS)[0]
    if method == "tsne":
        manifold = optional("sklearn.manifold", "sklearn", 'method="tsne"')
        pools = optional("threadpoolctl", "sklearn")  # a requirement of scikit-learn
        model = manifold.TSNE(perplexity=min(neighbours, (len(unit) - 1) / 3), random_state=seed)
        # Threads wait for each other in each of a thousand steps. With few points, or on a busy
        # machine, waiting takes longer than the work.
        with pools.threadpool_limits(1 if len(unit) <= _ALONE else None):
            points = model.fit_transform(unit)
    else:
        umap = optional("umap", "umap", 'method="umap"')
        model = umap.UMAP(n_neighbors=min(neighbours, len(unit) - 1), random_state=seed, n_jobs=1)
        points = model.fit_transform(unit)
    return np.asarray(points, "float64")


def _far_apart(points: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of `count` points (or all); each is the farthest from those before."""
    if len(points) <= count:
        return np.arange(len(points))
    chosen = [int(np.abs(points - points.mean(0)).sum(1).argmax())]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < count:
        nearest = np.minimum(nearest, ((points - points[chosen[-1]]) ** 2).sum(1))
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def _frame(axes: Any, below: str, left: str) -> None:
    """Draws a thin frame without numbers, with a name below and a name at the left."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(below, **style())
    axes.set_ylabel(left, **style())
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def _components(shares: np.ndarray) -> tuple[str, str]:
    """Returns the names of two axes, with the share of variance of each component."""
    return (
        f"first principal component ({shares[0]:.0%} of the variance)",
        f"second ({shares[1]:.0%})",
    )


def _unit(vectors: Any) -> np.ndarray:
    """Returns the vectors (N, D) at length 1, in float64; ValueError for NaN or infinity."""
    vectors = np.asarray(vectors, "float64")
    if not np.isfinite(vectors).all():
        raise ValueError("Vectors must be finite numbers. Received: NaN or infinity in them")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _principal(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first two principal coordinates (N, 2), and the components' variance shares."""
    points, shares = _decomposed(vectors, 2)
    # The sign of a component is arbitrary; the largest coordinate is made positive.
    signs = np.sign(points[np.abs(points).argmax(0), [0, 1]])
    return points * np.where(signs == 0, 1, signs), shares


def _decomposed(vectors: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates (N, count) on the first components, and the shares of variance of all."""
    centred = vectors - vectors.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    if len(sizes) < count:  # vectors of width 1 lie on a line
        missing = count - len(sizes)
        left, sizes = np.pad(left, [(0, 0), (0, missing)]), np.pad(sizes, (0, missing))
    shares = sizes**2 / max((sizes**2).sum(), 1e-12)
    return left[:, :count] * sizes[:count], shares
