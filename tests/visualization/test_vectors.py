"""The maps of vectors."""

import sys

import numpy as np
import pytest

from kbert.visualization import neighbours_map, projection


def test_lines_join_nearest_neighbours():
    vectors = [[1, 0, 0], [0.9, 0.1, 0], [0, 0, 5], [0, 0.2, 0.9]]
    axes = neighbours_map(vectors, list("abcd"), groups=["x", "x", "y", "y"]).axes[0]
    dots = np.concatenate([points.get_offsets() for points in axes.collections])
    joined = {
        frozenset(np.abs(dots - end).sum(1).argmin() for end in line.get_xydata())
        for line in axes.lines
    }
    assert joined == {frozenset({0, 1}), frozenset({2, 3})}


def test_names_do_not_meet(boxes, overlaps, drawn):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4, 20)).repeat(4, 0) + 0.7 * rng.normal(size=(16, 20))
    names = [f"the sentence {i}" for i in range(16)]
    figure = neighbours_map(vectors, names, groups=[n[-1] for n in names])
    assert set(names) <= set(drawn(figure))
    assert overlaps(boxes(figure)) == 0


def test_forty_long_names_do_not_meet(boxes, overlaps, drawn):
    vectors = np.random.default_rng(0).normal(size=(40, 32))
    names = [f"a sentence about animal {i}" for i in range(40)]
    figure = neighbours_map(vectors, names)
    assert set(names) <= set(drawn(figure))
    assert overlaps(boxes(figure)) == 0


def test_a_large_map_names_the_points_that_are_far_apart(drawn):
    names = [f"sentence {i}" for i in range(100)]
    figure = neighbours_map(np.random.default_rng(0).normal(size=(100, 8)), names)
    assert len(set(names) & set(drawn(figure))) == 64


def test_vectors_that_are_all_one(drawn):
    assert {"a", "b"} <= set(drawn(neighbours_map(np.ones((2, 1)), ["a", "b"])))


def test_what_is_no_map():
    with pytest.raises(ValueError, match=r"shape \(1, 2\), 1 labels"):
        neighbours_map([[1, 2]], ["a"])
    with pytest.raises(ValueError, match="NaN"):
        neighbours_map([[1, 2], [np.nan, 1]], ["a", "b"])


RNG = np.random.default_rng(0)
# Three clusters of eight.
CLUSTERS = np.eye(3, 60).repeat(8, 0) + 0.02 * RNG.normal(size=(24, 60))
LABELS = np.array(["x", "y", "z"]).repeat(8)


def dots(figure):
    """Label -> its points."""
    return {x.get_label(): np.asarray(x.get_offsets()) for x in figure.axes[0].collections}


def installed(method):
    return method if method != "umap" else pytest.importorskip("umap") and method


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
def test_what_lies_together_is_drawn_together(method, drawn):
    figure = projection(CLUSTERS, LABELS, method=installed(method), neighbours=5)
    found = dots(figure)
    assert {name: len(x) for name, x in found.items()} == {"x": 8, "y": 8, "z": 8}
    centres = {name: x.mean(0) for name, x in found.items()}
    for name, points in found.items():
        for point in points:
            nearest = min(centres, key=lambda other: np.linalg.norm(point - centres[other]))
            assert nearest == name
    assert {"x", "y", "z", "Vectors by label"} <= set(drawn(figure))


def test_principal_components_keep_what_two_axes_can():
    found = dots(projection(CLUSTERS, LABELS, title=None))
    points = np.concatenate([found[name] for name in "xyz"])
    unit = CLUSTERS / np.linalg.norm(CLUSTERS, axis=1, keepdims=True)
    centred = unit - unit.mean(0)
    best = np.linalg.svd(centred, compute_uv=False)[:2] ** 2
    np.testing.assert_allclose((points**2).sum(0), best, rtol=1e-6)
    label = projection(CLUSTERS, LABELS).axes[0].get_xlabel()
    assert (
        label == f"first principal component ({best[0] / (centred**2).sum():.0%} of the variance)"
    )


def test_the_same_seed_makes_the_same_picture():
    one, same = (dots(projection(CLUSTERS, LABELS, method="tsne", seed=s)) for s in (1, 1))
    np.testing.assert_array_equal(one["x"], same["x"])


def test_names_of_some_of_many_points(drawn, boxes, overlaps):
    texts = [f"text {i}" for i in range(24)]
    figure = projection(CLUSTERS, LABELS, texts)
    assert set(texts) <= set(drawn(figure))
    many = RNG.normal(size=(500, 3))
    texts = [f"text {i}" for i in range(500)]
    figure = projection(many, ["one"] * 500, texts)
    assert len(set(texts) & set(drawn(figure))) == 24
    assert overlaps(boxes(figure)) <= 2


def test_each_label_has_a_look_of_its_own_and_the_rarest_are_grey(drawn):
    labels = [f"label {i}" for i in range(20) for _ in range(1 if i in (3, 5, 7, 9) else 2)]
    vectors = RNG.normal(size=(36, 4))
    figure = projection(vectors, labels)
    collections = figure.axes[0].collections
    looks = {
        (tuple(x.get_facecolor()[0]), x.get_paths()[0].vertices.tobytes()) for x in collections
    }
    assert len(looks) == len(collections) == 17
    assert len(dots(figure)["4 others"]) == 4
    assert "4 others" in drawn(figure)
    assert "label 3" not in drawn(figure)


def test_the_legend_lies_beside_the_axes():
    figure = projection(CLUSTERS, ["a very long name of a label " * 3 + x for x in LABELS])
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert axes.x1 <= legend.x0
    assert legend.x1 <= figure.bbox.x1


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
def test_a_projection_of_vectors_that_are_all_one(method, drawn):
    assert "a" in drawn(projection(np.ones((5, 70)), ["a"] * 5, method=installed(method)))


@pytest.mark.parametrize(("method", "least"), [("pca", 2), ("tsne", 4), ("umap", 5)])
def test_the_fewest_vectors(method, least):
    vectors, labels = RNG.normal(size=(least, 3)), list("abcde"[:least])
    assert len(dots(projection(vectors, labels, method=installed(method)))) == least
    with pytest.raises(ValueError, match=rf'by "{method}" requires at least {least} vectors'):
        projection(vectors[1:], labels[1:], method=method)


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((np.ones((3, 2)), ["a"]), {}, r"shape \(3, 2\), 1 labels, no texts"),
        ((np.ones((2, 2)), ["a", "b"], ["x"]), {}, "2 labels, 1 texts"),
        (([1, 2], ["a", "b"]), {}, r"shape \(2,\)"),
        (([[1, np.nan], [1, 1]], ["a", "b"]), {}, "finite numbers"),
        (([[1], [2]], ["a", "b"]), {"method": "lda"}, "one of pca, tsne, umap. Received: 'lda'"),
        (([[1], [2]], ["a", "b"]), {"neighbours": 1}, "whole number of at least 2. Received: 1"),
    ],
)
def test_what_is_no_projection(arguments, options, match):
    with pytest.raises(ValueError, match=match):
        projection(*arguments, **options)


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [("umap", "umap", "umap"), ("tsne", "sklearn.manifold", "sklearn")],
)
def test_without_the_package_of_a_method(method, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    match = rf"^method=.{method}. needs the extra: .*kbert\[{extra}\]'"
    with pytest.raises(ImportError, match=match):
        projection(CLUSTERS, LABELS, method=method)
