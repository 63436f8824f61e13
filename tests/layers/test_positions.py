import math

import numpy as np
import pytest

from kbert.layers import LearnedPositions, SinusoidalPositions, sinusoids
from kbert.layers.positions import distance_products, number_tokens
from tests.harness import assert_close, run_layer_test, to_numpy

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_the_paper_s(width):
    table = sinusoids(50, width)
    for position in (0, 1, 7, 49):
        for i in range(width):
            angle = position / 10000 ** (2 * (i // 2) / width)
            assert abs(table[position, i] - (math.cos if i % 2 else math.sin)(angle)) < 1e-5


def test_a_shift_is_a_rotation():
    """Why the paper chose them: PE(p + k) is one linear map of PE(p), whatever p is."""
    table = sinusoids(40, 8).astype("float64")
    turn, *_ = np.linalg.lstsq(table[:20], table[5:25], rcond=None)
    assert_close(table[15:35] @ turn, table[20:40], 1e-4)


def test_learned_positions():
    layer = LearnedPositions(9, 6, name="p")
    run_layer_test(layer, (X,), {"p/position": (9, 6)}, (2, 5, 6))
    table = to_numpy(layer.position)
    assert_close(to_numpy(layer(X)), X + table[:5], 1e-6)
    places = np.array([[0, 8, 3, 3, 1], [4, 5, 6, 7, 8]])
    assert_close(to_numpy(layer(X, places)), X + table[places], 1e-6)


def test_sinusoidal_positions_have_no_weights():
    layer = SinusoidalPositions(9, 6, name="p")
    run_layer_test(layer, (X,), {}, (2, 5, 6))
    assert_close(to_numpy(layer(X)), X + sinusoids(9, 6)[:5], 1e-6)


@pytest.mark.parametrize("kind", [LearnedPositions, SinusoidalPositions])
def test_a_sequence_that_is_too_long_is_refused(kind):
    with pytest.raises(ValueError, match=r"max_positions=4\. Received: 5 tokens"):
        kind(4, 6)(X)


@pytest.mark.parametrize("heads", [1, 2])
def test_all_rows_share_the_vectors_of_distances(heads):
    """Of one head TensorFlow's product of (B, 1, T, D) and (1, 1, D, R) is wrong, or crashes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, heads, 16, 64)).astype("float32")
    vectors = rng.normal(size=(heads, 32, 64)).astype("float32")
    expected = np.einsum("bntd,nrd->bntr", x, vectors)
    assert_close(to_numpy(distance_products(x, vectors)), expected, 1e-4)


def test_numbers_of_tokens_pass_over_padding():
    ids = np.array([[1, 1, 5, 6, 1, 7], [5, 6, 7, 1, 1, 1]], "int32")
    expected = [[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 3, 3]]
    assert to_numpy(number_tokens(ids, 1)).tolist() == expected
    # Two examples in a row, and its padding, of which each place is the first.
    ids = np.array([[5, 1, 6, 1, 7, 8, 1]], "int32")
    places = np.array([[0, 1, 2, 0, 1, 2, 0]], "int32")
    assert to_numpy(number_tokens(ids, 1, places)).tolist() == [[0, 1, 1, 0, 0, 1, 0]]
