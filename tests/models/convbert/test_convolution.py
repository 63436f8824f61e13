"""ConvBERT's mixed attention against loops; `test_reference_family.py` has equality with it."""

import numpy as np
import pytest

from kbert.layers.bias import attention_bias
from kbert.models import Encoder, describe
from kbert.models.convbert.convolution import (
    GroupedFeedForward,
    MixedAttention,
    OwnNeighbours,
)
from tests.harness import (
    KINDS,
    assert_close,
    get_values,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

B, T, H, N, K = 2, 7, 12, 2, 3
HALF, D = H // 2, H // 2 // N


def made():
    layer = MixedAttention(N, kernel_size=K, name="attention")
    layer.build((None, None, H))
    randomise(layer)
    return layer


def softmax(x):
    exponents = np.exp(x - x.max())
    return exponents / exponents.sum()


def by_loops(weights, x, mask, examples):
    """Outputs (B, T, H), token by token."""

    def dense(name, rows):
        return rows @ weights[f"attention/{name}/kernel"] + weights[f"attention/{name}/bias"]

    outputs = np.zeros((B, T, H))
    depthwise = weights["attention/key_convolution/depthwise"]
    for b in range(B):
        row = x[b].astype("float64")
        query, key, value, convolved = np.split(dense("qkv", row), 4, axis=-1)
        for i in range(T):
            near = [j if 0 <= j < T and examples[b, i] == examples[b, j] else None
                    for j in range(i - K // 2, i + K // 2 + 1)]  # fmt: skip
            span = sum(
                (row[j] * depthwise[k] for k, j in enumerate(near) if j is not None), np.zeros(H)
            )
            span = dense("key_convolution/pointwise", span) * query[i]
            taps = dense("weights", span).reshape(N, K)
            found = []
            for n in range(N):
                columns = slice(n * D, (n + 1) * D)
                scores = key[:, columns] @ query[i, columns] / np.sqrt(D)
                sees = (mask[b] > 0) & (examples[b] == examples[b, i])
                found.append(softmax(np.where(sees, scores, -1e9)) @ value[:, columns])
            for n in range(N):
                columns, weight = slice(n * D, (n + 1) * D), softmax(taps[n])
                parts = [weight[k] * convolved[j, columns] for k, j in enumerate(near)
                         if j is not None]  # fmt: skip
                found.append(sum(parts))
            outputs[b, i] = dense("output", np.concatenate(found))
    return outputs


@pytest.mark.jax_slow
@pytest.mark.parametrize("packed", [False, True])
def test_it_attends_and_convolves(packed):
    layer = made()
    x = np.random.default_rng(0).normal(size=(B, T, H)).astype("float32")
    mask = np.array([[1] * T, [1] * 4 + [0] * (T - 4)], "int32")
    examples = np.array([[1, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 0, 0, 0]], "int32")
    if packed:
        bias = np.where(examples[:, None, :, None] == examples[:, None, None], 0.0, -3e4)
        bias = bias.astype("float32")
        shared = OwnNeighbours(K)(x, example_ids=examples)
    else:
        bias, shared, examples = attention_bias(mask), {}, np.ones((B, T), "int32")
    outputs, _ = layer(x, bias, shared=shared)
    expected = by_loops(get_values(layer), x, mask, examples)
    assert_close(to_numpy(outputs)[mask > 0], expected[mask > 0], 1e-5)


@pytest.mark.jax_slow
def test_groups_do_not_see_each_other():
    layer = GroupedFeedForward(8, num_groups=2, activation="relu", name="feed_forward")
    layer.build((None, None, 6))
    randomise(layer)
    weights = get_values(layer)
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    found = to_numpy(layer(x))
    for group in range(2):
        inner = (
            x[..., 3 * group : 3 * group + 3] @ weights["feed_forward/intermediate/kernel"][group]
        )
        inner += weights["feed_forward/intermediate/bias"][4 * group : 4 * group + 4]
        outer = np.maximum(inner, 0) @ weights["feed_forward/output/kernel"][group]
        outer += weights["feed_forward/output/bias"][3 * group : 3 * group + 3]
        assert_close(found[..., 3 * group : 3 * group + 3], outer, 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize("options", [{}, {"num_groups": 2, "kernel_size": 3}])
def test_saved_and_counted(tmp_path, options):
    part = {"name": "dynamic_convolution", **options}
    encoder = Encoder(tiny_config(**{**KINDS["convolution"], "part": part}))
    randomise(encoder)
    assert encoder.count_params() == describe(encoder.config).parameters
    encoder.save_to_preset(tmp_path)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    inputs = tiny_inputs(encoder.config)
    np.testing.assert_array_equal(
        to_numpy(again(inputs)["sequence"]), to_numpy(encoder(inputs)["sequence"])
    )


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        ({"kernel_size": 4}, {}, "must be odd.*kernel_size=4"),
        ({"num_groups": 3}, {}, "must divide `hidden_size`.*num_groups=3"),
        ({}, {"num_heads": 16}, "a multiple of twice `num_heads`.*num_heads=16"),
        ({}, {"positions": "rotary"}, "positions='rotary'"),
        ({}, {"attention_pattern": (4,)}, r"attention_pattern=\(4,\)"),
        ({}, {"feed_forward": "gated"}, "feed_forward='gated'"),
        ({}, {"use_bias": False}, "use_bias=False"),
    ],
)
def test_what_it_may_not_be(options, values, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(part={"name": "dynamic_convolution", **options}, **values)
