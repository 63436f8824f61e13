"""Global tokens against loops in NumPy, and where tasks have them."""

import numpy as np
import pytest
from keras import ops

from kbert.layers.bias import layer_biases
from kbert.models import Encoder, describe
from kbert.models.longformer.attention import GlobalAttention, GlobalPlaces
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    dtype_of,
    get_values,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

B, T, H, N = 3, 11, 12, 3
D = H // N
WINDOW = 4
MASK = np.array([[1] * T, [1] * 7 + [0] * (T - 7), [1] * T], "int32")
# Two of the second row stand in the padding and beside the row; of the third one is said twice.
POSITIONS = np.array([[0, 9, 5], [3, 8, 11], [6, -1, 6]], "int32")
GLOBAL = [{0, 9, 5}, {3}, {6}]


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(B, T, H)).astype("float32")


def made(dtype="float32", **options):
    places = GlobalPlaces([WINDOW], name="shared", dtype=dtype)
    layer = GlobalAttention(N, window=WINDOW, name="attention", dtype=dtype, **options)
    layer.build((None, None, H))
    randomise(layer)
    return places, layer


def shared_of(places, x, positions=POSITIONS, mask=MASK):
    return places(x, global_positions=ops.convert_to_tensor(positions), padding_mask=mask)


def bias_of(mask=MASK, in_blocks=True, length=T):
    return layer_biases([WINDOW], length, mask, in_blocks=in_blocks)[0]


def by_loops(layer, x, mask=MASK, chosen=GLOBAL):
    """Outputs and probabilities, pair of tokens by pair."""
    weights = {k.removeprefix("attention/"): v for k, v in get_values(layer).items()}

    def projected(rows, name):
        return rows @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]

    rows, length, _ = x.shape
    outputs, probabilities = np.zeros(x.shape), np.zeros((rows, N, length, length))
    for b in range(rows):
        local = np.split(projected(x[b].astype("float64"), "qkv"), 3, axis=-1)
        key_value = np.split(projected(x[b].astype("float64"), "global_key_value"), 2, axis=-1)
        of_all = [projected(x[b].astype("float64"), "global_query"), *key_value]
        for i in range(length):
            is_global = i in chosen[b]
            query, key, value = of_all if is_global else local
            for n in range(N):
                part = slice(n * D, (n + 1) * D)
                scores = np.full(length, -np.inf)
                for j in range(length):
                    near = abs(i - j) <= WINDOW // 2
                    if mask[b, j] and (near or is_global or j in chosen[b]):
                        scores[j] = query[i, part] @ key[j, part] / np.sqrt(D)
                if np.isneginf(scores).all():  # padding among padding
                    continue
                exponents = np.exp(scores - scores.max())
                probabilities[b, n, i] = exponents / exponents.sum()
                outputs[b, i, part] = probabilities[b, n, i] @ value[:, part]
    return projected(outputs, "output"), probabilities


@pytest.mark.jax_slow
@pytest.mark.parametrize("in_blocks", [True, False])
def test_pair_of_tokens_by_pair(x, in_blocks):
    places, layer = made()
    outputs, made_of = layer(x, bias_of(MASK, in_blocks), shared=shared_of(places, x))
    want, weights = by_loops(layer, x)
    real = MASK == 1
    assert_close(to_numpy(outputs)[real], want[real], 1e-5)
    if in_blocks:
        assert made_of is None
        return
    found = np.moveaxis(to_numpy(made_of["probabilities"]), 1, -1)[real]
    assert_close(found, np.moveaxis(weights, 1, -1)[real], 1e-5)
    assert_close(found.sum(1), np.ones((real.sum(), N)), 1e-5)


@pytest.mark.jax_slow
def test_some_tokens_attend_as_all_do(x):
    places, layer = made()
    positions = np.array([[9, 0, 3], [2, 2, 5], [6, 6, 1]], "int32")
    bias, shared = bias_of(in_blocks=False), shared_of(places, x)
    whole, made_whole = to_numpy(layer(x, bias, shared=shared))
    some, picked = to_numpy(layer(x, bias, shared=shared, positions=positions))
    for b in range(B):
        assert_close(some[b], whole[b][positions[b]], 1e-6)
        for name in ("probabilities", "scores", "query"):
            assert_close(picked[name][b], made_whole[name][b][:, positions[b]], 1e-5)


def test_internals_make_the_probabilities(x):
    places, layer = made()
    bias, shared = bias_of(in_blocks=False), shared_of(places, x)
    _, found = layer(x, bias, shared=shared)
    probabilities = found["probabilities"]
    assert dtype_of(found["scores"]) == "float32"
    scores, kept = to_numpy(found["scores"]), to_numpy(probabilities) > 0
    exponents = np.exp(scores - scores.max(-1, keepdims=True)) * kept
    again = exponents / exponents.sum(-1, keepdims=True)
    assert_close(again, to_numpy(probabilities), 1e-5)
    assert [tuple(found[name].shape) for name in ("query", "key", "value")] == [(B, N, T, D)] * 3


@pytest.mark.jax_slow
def test_without_global_tokens_it_is_attention_in_windows(x):
    places, layer = made()
    nowhere = np.full((B, 2), -1, "int32")
    want, _ = by_loops(layer, x, chosen=[set()] * B)
    real = MASK == 1
    for shared in (None, places(x), shared_of(places, x, nowhere)):
        outputs, _ = layer(x, bias_of(), shared=shared)
        assert_close(to_numpy(outputs)[real], want[real], 1e-5)
    assert places(x) == {}


@pytest.mark.jax_slow
@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 7])
def test_rows_shorter_than_a_window(x, length):
    """What a window has whole is attended to once."""
    places, layer = made()
    part, mask = x[:, :length], np.ones((B, length), "int32")
    shared = shared_of(places, part, POSITIONS, mask)
    assert (f"columns_{WINDOW}" in shared) == (length > WINDOW // 2 + 1)
    chosen = [{i for i in row if 0 <= i < length} for row in POSITIONS.tolist()]
    want, _ = by_loops(layer, part, mask, chosen)
    for in_blocks in (True, False):
        outputs, _ = layer(part, bias_of(mask, in_blocks, length), shared=shared)
        assert_close(to_numpy(outputs), want, 1e-5)


@pytest.mark.jax_slow
def test_every_token_may_be_global(x):
    places, layer = made()
    everywhere = np.tile(np.arange(T, dtype="int32"), (B, 1))
    outputs, _ = layer(x, bias_of(), shared=shared_of(places, x, everywhere))
    want, _ = by_loops(layer, x, chosen=[set(range(7 if b == 1 else T)) for b in range(B)])
    assert_close(to_numpy(outputs)[MASK == 1], want[MASK == 1], 1e-5)


@pytest.mark.jax_slow
def test_it_computes_in_bfloat16_and_stores_float32(x):
    single, mixed = made(), made("mixed_bfloat16")
    outputs = [
        to_numpy(layer(x, bias_of(), shared=shared_of(places, x))[0])
        for places, layer in (single, mixed)
    ]
    assert {w.dtype for w in mixed[1].weights} == {"float32"}
    assert np.abs(outputs[0] - outputs[1])[MASK == 1].max() < 0.1


def test_dropout_is_of_training(x):
    places, layer = made(dropout=0.5)
    shared, bias = shared_of(places, x), bias_of()
    a, b, c = (to_numpy(layer(x, bias, shared=shared, training=on)[0]) for on in (0, True, True))
    for row, chosen in enumerate(GLOBAL):
        at = sorted(chosen)
        for one, other in ((a, b), (b, c)):
            assert np.abs(one - other)[row, at].max() > 1e-3


@pytest.mark.parametrize(
    "changes", [{}, {"num_layer_groups": 1, "attention_pattern": (4,)}, {"use_bias": False}]
)
def test_the_description_counts_it(changes):
    config = tiny_config(**{**KINDS["global tokens"], **changes})
    assert describe(config).held_parameters == Encoder(config).count_params()
    said = str(describe(config))
    assert "part                global_tokens" in said
    assert f"attention           {', '.join(map(str, config.attention_pattern))}" in said


@pytest.mark.jax_slow
def test_blocks_and_whole_rows_have_the_same_gradients():
    config = tiny_config(**KINDS["global tokens"])
    encoder, inputs = Encoder(config), tiny_inputs(config, length=23)
    randomise(encoder)
    weights = np.random.default_rng(1).normal(size=(3, 23, 16)).astype("float32")
    weights *= inputs["padding_mask"][..., None]
    weights = ops.convert_to_tensor(weights)

    def loss(**options):
        out = encoder(inputs, **options)
        return ops.sum(out["sequence"] * weights) + ops.sum(out["pooled"])

    found = layer_gradients(encoder, loss)
    assert_gradients_close(found, layer_gradients(encoder, lambda: loss(return_attention=True)))


@pytest.mark.tensorflow
def test_memory_grows_with_the_row_and_not_with_its_square():
    """No tensor of the graph has the length twice, nor has its gradient."""
    import tensorflow as tf

    config = tiny_config(**{**KINDS["global tokens"], "max_positions": 997, "num_layers": 1})
    encoder = Encoder(config)
    inputs = {"token_ids": tf.ones((1, 997), tf.int32), "padding_mask": tf.ones((1, 997), tf.int32)}
    inputs["global_positions"] = tf.constant([[0, 500]])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs, training=True)["sequence"] ** 2)
        return tape.gradient(loss, [w.value for w in encoder.trainable_variables])

    graph = step.get_concrete_function().graph
    sizes = [
        np.prod(tensor.shape.as_list())
        for operation in graph.get_operations()
        for tensor in operation.outputs
        if tensor.shape.is_fully_defined()
    ]
    assert 997 * 16 * 3 <= max(sizes) < 997 * 100  # queries, keys and values; 997 * 997 is beyond


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "rotary"}, r"do not support distances. .*Received: positions='rotary'"),
        ({"positions": "alibi"}, r"do not support distances. .*Received: positions='alibi'"),
        ({"attention_pattern": ("global",)}, r"must have a window: .*: attention_pattern="),
        ({"num_layer_groups": 1}, r"must have one window only .*\(4, 8\), 1 blocks of 2 layers"),
        ({"part": {"name": "global_tokens", "number": 2}}, "number"),
    ],
)
def test_configs_it_is_not_for(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**{**KINDS["global tokens"], **changes})


def test_an_encoder_without_global_tokens_takes_none():
    encoder = Encoder(tiny_config())
    assert "global_positions" not in encoder.input_names
    with pytest.raises(ValueError, match=r"has the inputs `token_ids` .* global_positions"):
        encoder({"token_ids": np.ones((1, 3), "int32"), "global_positions": np.zeros((1, 1))})
