import keras
import numpy as np
import pytest

from kbert.layers import CrossAttention, SelfAttention, attention_bias, causal_bias
from tests.harness import assert_close, get_values, randomise, run_layer_test, to_numpy

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


@pytest.mark.jax_slow
def test_attention():
    layer = SelfAttention(2, name="a")
    weights = {
        "a/qkv/kernel": (8, 24),
        "a/qkv/bias": (24,),
        "a/output/kernel": (8, 8),
        "a/output/bias": (8,),
    }
    scores, heads = (2, 2, 5, 5), (2, 2, 5, 4)
    made = {**dict.fromkeys(("probabilities", "scores"), scores), "query": heads, "key": heads}
    run_layer_test(layer, (X,), weights, ((2, 5, 8), {**made, "value": heads}))
    randomise(layer, sigma=0.5)
    w = get_values(layer)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    outputs, made = to_numpy(layer(X, attention_bias(mask)))

    qkv = X @ w["a/qkv/kernel"] + w["a/qkv/bias"]
    heads = [part.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3) for part in np.split(qkv, 3, -1)]
    scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) / 2  # sqrt(4)
    scores = np.where(mask[:, None, None, :], scores, -np.inf)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    assert_close(made["probabilities"], expected, 1e-6)
    merged = (expected @ heads[2]).transpose(0, 2, 1, 3).reshape(2, 5, 8)
    assert_close(outputs, merged @ w["a/output/kernel"] + w["a/output/bias"], 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_internals_are_what_the_outputs_are_made_of(dtype):
    layer = SelfAttention(2, dtype=dtype)
    layer.build((None, None, 8))
    randomise(layer, sigma=0.5)
    bias = attention_bias(np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    outputs, internals = layer(X, bias)
    assert keras.backend.standardize_dtype(internals["scores"].dtype) == "float32"
    assert sorted(internals) == ["key", "probabilities", "query", "scores", "value"]
    shapes = {name: tuple(x.shape) for name, x in internals.items()}
    assert shapes.pop("scores") == shapes.pop("probabilities") == (2, 2, 5, 5)
    assert set(shapes.values()) == {(2, 2, 5, 4)}

    found = to_numpy(internals)
    tolerance = 1e-5 if dtype == "float32" else 0.03  # of entries of size 1 to 4
    scores = found["query"] @ found["key"].transpose(0, 1, 3, 2) / 2  # sqrt(4)
    assert_close(found["scores"], scores, tolerance)  # padding's too: no bias is in them
    biased = np.exp(found["scores"] + to_numpy(bias))
    assert_close(found["probabilities"], biased / biased.sum(-1, keepdims=True), tolerance)
    merged = (found["probabilities"] @ found["value"]).transpose(0, 2, 1, 3).reshape(2, 5, 8)
    w = {path.rsplit("/", 1)[-1]: x for path, x in get_values(layer.output_dense).items()}
    assert_close(to_numpy(outputs), merged @ w["kernel"] + w["bias"], 3 * tolerance)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
def test_padding_gets_no_attention_and_a_row_of_padding_stays_finite(dtype):
    mask = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).astype(dtype)
    _, made = to_numpy(SelfAttention(2)(X, attention_bias(mask)))
    assert (made["probabilities"][0, :, :, 2:] == 0).all()
    assert_close(made["probabilities"][1].sum(-1), np.ones((2, 5)), 1e-6)


@pytest.mark.jax_slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_a_row_of_padding_stays_finite_in_half_precision(dtype):
    outputs, made = to_numpy(
        SelfAttention(2, dtype=dtype)(X, attention_bias(np.zeros((2, 5), "int32")))
    )
    assert np.isfinite(outputs).all()
    assert_close(made["probabilities"].sum(-1), np.ones((2, 2, 5)), 0.01)


def test_cross_attention():
    layer = CrossAttention(2, name="a")
    layer.build((None, None, 8))
    weights = {
        "a/query/kernel": (8, 8),
        "a/query/bias": (8,),
        "a/key_value/kernel": (8, 16),
        "a/key_value/bias": (16,),
        "a/output/kernel": (8, 8),
        "a/output/bias": (8,),
    }
    assert {w.path: tuple(w.shape) for w in layer.weights} == weights
    randomise(layer, sigma=0.5)
    w = get_values(layer)
    other = np.random.default_rng(1).normal(size=(2, 3, 8)).astype("float32")
    mask = np.array([[1, 1, 1], [1, 1, 0]])
    outputs, made = to_numpy(layer(X, layer.keys_values(other), attention_bias(mask)))

    query = X @ w["a/query/kernel"] + w["a/query/bias"]
    key, value = np.split(other @ w["a/key_value/kernel"] + w["a/key_value/bias"], 2, -1)
    query, key, value = (x.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3) for x in (query, key, value))
    scores = np.where(mask[:, None, None, :], query @ key.transpose(0, 1, 3, 2) / 2, -np.inf)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    assert_close(made["probabilities"], expected, 1e-6)
    merged = (expected @ value).transpose(0, 2, 1, 3).reshape(2, 5, 8)
    assert_close(outputs, merged @ w["a/output/kernel"] + w["a/output/bias"], 1e-5)


@pytest.mark.parametrize("before", [1, 3])
def test_token_by_token_is_all_at_once(before):
    layer = SelfAttention(2)
    layer.build((None, None, 8))
    randomise(layer, sigma=0.5)
    expected, _ = layer(X, causal_bias(5))
    outputs, fixed = layer.prefill(X[:, :before], causal_bias(before))
    assert_close(to_numpy(outputs), to_numpy(expected)[:, :before], 1e-5)
    decoded = layer.empty_cache(fixed, 7)
    for t in range(5 - before):
        token = X[:, before + t : before + t + 1]
        outputs, decoded = layer.step(token, fixed, np.zeros((2, 1, 1, before)), decoded, t)
        assert_close(to_numpy(outputs), to_numpy(expected)[:, before + t : before + t + 1], 1e-5)
