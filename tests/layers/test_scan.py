import numpy as np
import pytest
from keras import ops

from kbert.layers.scan import scan, stack
from tests.harness import to_numpy

X = np.random.default_rng(0).normal(size=(5, 3, 2)).astype("float32")
ZERO = np.zeros((3, 2), "float32")
OUTPUTS = [(2, "float32"), (1, "float32")]


def step(carry, elements):
    """The running sum and the number of steps so far."""
    total, count = carry[0] + elements[0], carry[1] + 1.0
    return (total, count), (total, count[..., :1])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_carry_of_two_and_outputs_in_order(reverse):
    (total, count), collected = scan(step, (ZERO, ZERO), [X], OUTPUTS, reverse=reverse)
    sums, counts = (to_numpy(stack(x)) for x in collected)
    order = slice(None, None, -1 if reverse else 1)
    np.testing.assert_allclose(sums, np.cumsum(X[order], axis=0)[order], atol=1e-6)
    np.testing.assert_array_equal(counts[:, 0, 0], np.arange(1, 6)[order])
    np.testing.assert_allclose(to_numpy(total), X.sum(0), atol=1e-6)
    assert (to_numpy(count) == 5).all()


def test_a_second_scan_reads_what_the_first_gave_out():
    _, (sums, _) = scan(step, (ZERO, ZERO), [X], OUTPUTS)

    def difference(carry, elements):
        x, total = elements
        return carry, (total - x,)

    _, (before,) = scan(difference, (ZERO,), [X, sums], [(2, "float32")])
    expected = np.concatenate([ZERO[None], np.cumsum(X, axis=0)[:-1]])
    np.testing.assert_allclose(to_numpy(stack(before)), expected, atol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_any_number_of_steps_in_a_graph(jit_compile):
    import tensorflow as tf

    def run(x):
        carry, collected = scan(step, (ZERO, ZERO), [x], OUTPUTS, reverse=True)
        return carry[0], [stack(y) for y in collected]

    signature = [tf.TensorSpec([None, 3, 2], tf.float32)]
    run = tf.function(run, signature, jit_compile=jit_compile)
    for steps in (1, 5):
        total, (sums, _) = run(X[:steps])
        np.testing.assert_allclose(total, X[:steps].sum(0), atol=1e-6)
        np.testing.assert_allclose(sums[0], total)
    if not jit_compile:
        total, (sums, _) = run(X[:0])
        assert sums.shape == (0, 3, 2)
        assert not ops.any(total)
