import numpy as np
import pytest

from kbert.checkpoints.renames import Rule, read_arrays, write_arrays

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("rule", "there"),
    [
        (Rule("x", ("a",)), {"a": (2, 3)}),
        (Rule("x", ("a",), transpose=True), {"a": (2, 3)}),
        (Rule("x", ("a", "b"), transpose=True), {"a": (2, 3), "b": (2, 3)}),
        (Rule("x", ("a", "b"), shapes=((6, 6), (6, 2, 3))), {"a": (6, 2, 3), "b": (6, 2, 3)}),
        (Rule("x", ("a",), shapes=((6, 6), (2, 3, 6))), {"a": (2, 3, 6)}),
    ],
)
def test_a_rule_goes_both_ways(rule, there):
    arrays = {name: RNG.normal(size=shape) for name, shape in there.items()}
    here, rest = read_arrays([rule], arrays)
    assert not rest
    assert here["x"].ndim == 2
    back = write_arrays([rule], here)
    assert back.keys() == arrays.keys()
    for name in arrays:
        np.testing.assert_array_equal(back[name], arrays[name])


def test_heads_are_laid_side_by_side():
    query = RNG.normal(size=(6, 2, 3))  # (H, N, D)
    here, _ = read_arrays([Rule("x", ("q",), shapes=((6, 6), (6, 2, 3)))], {"q": query})
    np.testing.assert_array_equal(here["x"][:, 3:], query[:, 1])


def test_an_array_of_another_shape_stays_as_it_is():
    rule = Rule("x", ("a",), shapes=((6, 6), (6, 2, 3)))
    assert rule.read({"a": np.zeros((4, 2, 2))}).shape == (4, 2, 2)


def test_a_weight_without_a_name_there_is_refused():
    with pytest.raises(ValueError, match=r"no counterpart of these weights. Received: y"):
        write_arrays([Rule("x", ("a",))], {"y": np.zeros(1)})
