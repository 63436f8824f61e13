import numpy as np

from kbert.layers import attention_bias, causal_bias
from kbert.layers.bias import decoded_bias
from tests.harness import to_numpy


def test_nothing_behind_a_token_is_looked_at():
    seen = to_numpy(causal_bias(4))[0, 0] == 0
    np.testing.assert_array_equal(seen, np.tri(4, dtype=bool))


def test_slots_are_seen_as_they_fill():
    seen = [(to_numpy(decoded_bias(3, t))[0, 0, 0] == 0).sum() for t in range(3)]
    assert seen == [1, 2, 3]


def test_two_biases_are_finite_in_half_precision():
    both = to_numpy(causal_bias(2) + attention_bias(np.array([[1, 0]])))
    assert np.isfinite(both.astype("float16")).all()
    assert both.min() == -60000
