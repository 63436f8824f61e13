"""The map of vectors."""

import numpy as np
import pytest

from kbert.visualization import neighbours_map


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


def test_vectors_that_are_all_one(drawn):
    assert {"a", "b"} <= set(drawn(neighbours_map(np.ones((2, 1)), ["a", "b"])))


def test_what_is_no_map():
    with pytest.raises(ValueError, match=r"shape \(1, 2\), 1 labels"):
        neighbours_map([[1, 2]], ["a"])
    with pytest.raises(ValueError, match="NaN"):
        neighbours_map([[1, 2], [np.nan, 1]], ["a", "b"])
