"""Relative biases against loops; equality of whole models is tested with MPNet and T5."""

import numpy as np
import pytest
from keras import ops

from kbert.layers.bias import attention_bias
from kbert.layers.relative_bias import BiasedAttention, RelativeBiases, bias_buckets
from tests.harness import assert_close, get_values, randomise, to_numpy

B, T, H, N = 2, 9, 12, 3
BUCKETS, FARTHEST = 8, 6


def made(dtype="float32"):
    table = RelativeBiases(N, BUCKETS, FARTHEST, name="shared", dtype=dtype)
    layer = BiasedAttention(N, name="attention", dtype=dtype)
    for one in (table, layer):
        one.build((None, None, H))
        randomise(one)
    return table, layer


def row_of(distance):
    """Of a table of 8: two buckets of one distance each side, then 2 and 3, then all beyond."""
    row = {0: 0, 1: 1, 2: 2, 3: 2}.get(abs(distance), 3)
    return row if distance >= 0 else row + BUCKETS // 2


def biases(table, length):
    """Those of all pairs of tokens, (N, T, T)."""
    found = to_numpy(table(ops.ones((1, length, H)))["by_distance"])
    rows = [found[:, length - 1 - i : 2 * length - 1 - i] for i in range(length)]
    return np.stack(rows, axis=1)


MASK = np.array([[1] * T, [1] * 5 + [0] * (T - 5)], "int32")


@pytest.mark.jax_slow
def test_it_is_attention_with_a_number_for_each_distance():
    table, layer = made()
    x = np.random.default_rng(0).normal(size=(B, T, H)).astype("float32")
    bias = attention_bias(MASK)
    out = layer(x, bias, shared=table(x))
    outputs, found = to_numpy(out[0]), {k: to_numpy(v) for k, v in out[1].items()}
    numbers = get_values(table)["shared/table"]
    for b in range(B):
        for n in range(N):
            query, key = found["query"][b, n], found["key"][b, n]
            for i in range(T):
                scores = [
                    query[i] @ key[j] / 2 + numbers[row_of(i - j), n] for j in range(T)
                ]  # of heads of 4
                assert_close(found["scores"][b, n, i], np.array(scores), 1e-5)
                exponents = np.exp(scores) * MASK[b]
                assert_close(found["probabilities"][b, n, i], exponents / exponents.sum(), 1e-5)
    at = np.array([[0, 7, 3], [4, 4, 1]], "int32")
    some, picked = layer(x, bias, shared=table(x), positions=at)
    assert_close(to_numpy(some), np.take_along_axis(outputs, at[..., None], 1), 1e-6)
    whole = np.take_along_axis(found["probabilities"], at[:, None, :, None], 2)
    assert_close(to_numpy(picked["probabilities"]), whole, 1e-6)


@pytest.mark.jax_slow
def test_the_buckets_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    distances = np.arange(600)
    ours = bias_buckets(16, 128)[np.minimum(distances, 128)]
    for sign, offset in ((1, 0), (-1, 16)):
        theirs = MPNetEncoder.relative_position_bucket(torch.tensor(-sign * distances[1:]))
        np.testing.assert_array_equal(ours[1:] + offset, theirs.numpy())
    table = RelativeBiases(1, 32, 128)
    table.build((None, None, H))
    table.table.assign(np.arange(32, dtype="float32")[:, None])
    found = biases(table, 300)[0]
    places = torch.arange(300)
    expected = MPNetEncoder.relative_position_bucket(places[None] - places[:, None])
    np.testing.assert_array_equal(found, expected.numpy())


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.jax_slow)])
def test_a_row_is_that_of_the_whole_sequence(causal):
    table = RelativeBiases(N, BUCKETS, 12, causal=causal)
    table.build((None, None, H))
    randomise(table)
    whole = biases(table, 30)
    assert len(np.unique(whole[0])) == BUCKETS - (not causal)  # no token is 0 to the right
    for place in (0, 4, 29):
        row = to_numpy(table.row(ops.convert_to_tensor(place), 30))
        np.testing.assert_array_equal(row[0], whole[:, place : place + 1])


def test_the_buckets_of_a_decoder_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    from transformers.models.t5.modeling_t5 import T5Attention

    table = RelativeBiases(1, 32, 128, causal=True)
    table.build((None, None, H))
    table.table.assign(np.arange(32, dtype="float32")[:, None])
    found = biases(table, 300)[0]
    places = torch.arange(300)
    expected = T5Attention._relative_position_bucket(
        places[None] - places[:, None], bidirectional=False
    )
    np.testing.assert_array_equal(found, expected.numpy())


def test_attention_without_biases_is_refused():
    _, layer = made()
    with pytest.raises(ValueError, match=r"`shared` must .*. Received: None"):
        layer(np.zeros((B, T, H), "float32"))
