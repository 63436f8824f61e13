"""Disentangled attention against loops in NumPy, and what its table's buckets say."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from keras import ops

from kbert import family
from kbert.layers import LayerNorm
from kbert.layers.bias import attention_bias
from kbert.models import Encoder, describe
from kbert.models.deberta.attention import (
    TERMS,
    Disentangled,
    DisentangledAttention,
    DistanceTable,
    distance_buckets,
)
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    get_values,
    layer_gradients,
    numpy_norm,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

B, T, H, N = 2, 7, 12, 3
D = H // N
BUCKETS, FARTHEST = 4, 6


def made(terms=TERMS, dtype="float32", **options):
    norm = LayerNorm(1e-7, dtype=dtype, name="norm")
    table = DistanceTable(BUCKETS, FARTHEST, norm=norm, name="shared", dtype=dtype)
    layer = DisentangledAttention(N, terms=terms, name="attention", dtype=dtype, **options)
    for one in (table, layer):
        one.build((None, None, H))
        randomise(one)
    return table, layer


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(0).normal(size=(B, T, H)).astype("float32")


MASK = np.array([[1] * T, [1] * 4 + [0] * (T - 4)], "int32")


def row_of(distance):
    """Of the table with 4 buckets a side: 0 to 2 are their own, 3 up to 5 are the last."""
    side = {0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 3}.get(abs(distance), 4)
    return min(max(side if distance >= 0 else -side, -BUCKETS), BUCKETS - 1) + BUCKETS


def by_loops(table, layer, x, mask, terms):
    """Outputs and probabilities, pair of tokens by pair."""
    weights = get_values(table) | get_values(layer)
    vectors = numpy_norm(weights["shared/table"], 1e-7) * weights["shared/norm/gamma"]
    vectors = vectors + weights["shared/norm/beta"]

    def projected(rows):
        qkv = rows @ weights["attention/qkv/kernel"] + weights["attention/qkv/bias"]
        return (part.reshape(-1, N, D) for part in np.split(qkv, 3, axis=-1))

    far_query, far_key, _ = projected(vectors)
    outputs, probabilities = np.zeros((B, T, H)), np.zeros((B, N, T, T))
    for b in range(B):
        query, key, value = projected(x[b].astype("float64"))
        for n in range(N):
            for i in range(T):
                scores = np.full(T, -np.inf)
                for j in range(T):
                    if not mask[b, j]:
                        continue
                    row = row_of(i - j)
                    scores[j] = query[i, n] @ key[j, n]
                    if "content_to_position" in terms:
                        scores[j] += query[i, n] @ far_key[row, n]
                    if "position_to_content" in terms:
                        scores[j] += far_query[row, n] @ key[j, n]
                scores /= np.sqrt(D * (1 + len(terms)))
                exponents = np.exp(scores - scores.max())
                probabilities[b, n, i] = exponents / exponents.sum()
                outputs[b, i, n * D : (n + 1) * D] = probabilities[b, n, i] @ value[:, n]
    kernel, bias = (weights[f"attention/output/{name}"] for name in ("kernel", "bias"))
    return outputs @ kernel + bias, probabilities


@pytest.mark.jax_slow
@pytest.mark.parametrize("terms", [TERMS, TERMS[:1], TERMS[1:]])
def test_pair_of_tokens_by_pair(x, terms):
    table, layer = made(terms)
    outputs, found = to_numpy(layer(x, attention_bias(MASK), shared=table(x)))
    both = (outputs, found["probabilities"])
    for ours, expected in zip(both, by_loops(table, layer, x, MASK, terms), strict=True):
        assert_close(ours, expected, 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize("terms", [TERMS, TERMS[:1], TERMS[1:]])
def test_some_tokens_attend_as_all_do(x, terms):
    table, layer = made(terms)
    positions = np.array([[6, 0, 3], [2, 2, 5]], "int32")
    bias, shared = attention_bias(MASK), table(x)
    whole, made_whole = to_numpy(layer(x, bias, shared=shared))
    some, picked = to_numpy(layer(x, bias, shared=shared, positions=positions))
    for b in range(B):
        assert_close(some[b], whole[b][positions[b]], 1e-6)
        for name in ("probabilities", "scores", "query"):
            assert_close(picked[name][b], made_whole[name][b][:, positions[b]], 1e-5)


def test_internals_make_the_probabilities(x):
    table, layer = made()
    bias = attention_bias(MASK)
    _, found = layer(x, bias, shared=table(x))
    again = to_numpy(ops.softmax(found["scores"] + ops.convert_to_tensor(bias), axis=-1))
    assert_close(again, to_numpy(found["probabilities"]), 1e-6)
    assert [tuple(found[name].shape) for name in ("query", "key", "value")] == [(B, N, T, D)] * 3


@pytest.mark.jax_slow
def test_it_computes_in_bfloat16_and_stores_float32(x):
    single, mixed = made(), made(dtype="mixed_bfloat16")
    outputs = [to_numpy(layer(x, shared=table(x))[0]) for table, layer in (single, mixed)]
    assert {w.dtype for layer in mixed for w in layer.weights} == {"float32"}
    assert np.abs(outputs[0] - outputs[1]).max() < 0.1


def test_dropout_of_the_table_is_of_training(x):
    table, layer = made(table_dropout=0.5)
    a, b, c = (
        to_numpy(layer(x, shared=table(x), training=training)[0]) for training in (0, True, True)
    )
    assert min(np.abs(a - b).max(), np.abs(b - c).max()) > 1e-3


def test_without_a_table_it_says_so(x):
    _, layer = made()
    with pytest.raises(ValueError, match=r"`shared` must be the output of .*. Received: None"):
        layer(x)


@settings(deadline=None)
@given(half=st.integers(1, 300), more=st.integers(2, 2000))
def test_buckets_grow_with_the_distance(half, more):
    farthest = half + more
    buckets = distance_buckets(2 * half, farthest)
    assert len(buckets) == farthest + 1
    np.testing.assert_array_equal(buckets[: half + 1], np.arange(half + 1))
    steps = np.diff(buckets)
    assert steps.min() >= 0
    # The last bucket on this side of `max_distance`, where there is more than one beyond half.
    assert buckets[-2] == max(half, 2 * half - 1)


@pytest.mark.jax_slow
@settings(deadline=None, max_examples=25)
@given(half=st.integers(1, 6), more=st.integers(2, 9), length=st.integers(1, 40))
def test_distances_beyond_the_largest_bucket_share_a_row(half, more, length):
    table = DistanceTable(2 * half, half + more, norm=LayerNorm(1e-7))
    made = table(np.zeros((1, length, 4), "float32"))
    rows = to_numpy(made["rows"]).astype(int)
    last = min(length - 1, half + more)
    reached = min(2 * half, distance_buckets(2 * half, half + more)[last] + 1)
    assert made["table"].shape == (2 * reached, 4)
    assert rows.min() >= 0
    assert rows.max() < 2 * reached
    distances = np.arange(-length, length + 1)
    far = abs(distances) >= half + more - 1
    assert len(set(rows[far & (distances > 0)])) <= 1
    assert len(set(rows[(abs(distances) >= half + more) & (distances < 0)])) <= 1
    near = abs(distances) < min(half, reached)
    np.testing.assert_array_equal(rows[near], distances[near] + reached)


def test_buckets_are_those_of_transformers():
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    for side, farthest in ((256, 512), (8, 16), (2, 9), (4, 4), (128, 1024), (32, 24)):
        distances = torch.arange(-3 * farthest, 3 * farthest + 1)
        theirs = module.make_log_bucket_position(distances, side, farthest).long().numpy()
        distances = distances.numpy()
        ours = distance_buckets(side, farthest)[np.minimum(abs(distances), farthest)]
        ours = np.clip(np.sign(distances) * ours, -side, side - 1)
        np.testing.assert_array_equal(ours, np.clip(theirs, -side, side - 1))


@pytest.mark.parametrize(
    ("buckets", "farthest"),
    [
        *((64, 64), (8, 8), (8, 6), (32, 43), (32, 44), (0, 9)),
        pytest.param(256, 256, marks=pytest.mark.slow),
    ],
)
def test_buckets_may_run_ahead_of_their_distances(buckets, farthest):
    """With few distances to spread over, a row of T tokens reads beyond T rows of the table."""
    table = DistanceTable(buckets, farthest, norm=None)
    table.build((None, None, H))
    table.table.assign(np.arange(2.0 * table.side)[:, None] * np.ones(H))
    for length in range(1, farthest + 3):
        made = table(np.zeros((1, length, H)))
        rows = to_numpy(made["rows"]).astype(int)[1:-1]  # no token is as far as the ends
        found = to_numpy(made["table"])[rows, 0]
        distances = np.arange(1 - length, length)
        of_all = distance_buckets(buckets, farthest)[np.minimum(abs(distances), farthest)]
        expected = np.clip(np.sign(distances) * of_all, -table.side, table.side - 1) + table.side
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_layer_groups": 1},
        {"norm": "rms"},
        {
            "part": {
                "name": "disentangled",
                "position_buckets": 0,
                "max_distance": 7,
                "shared_projections": False,
                "table_norm": False,
            }
        },
    ],
)
def test_the_description_counts_it(changes):
    config = tiny_config(**{**KINDS["disentangled"], **changes})
    assert describe(config).held_parameters == Encoder(config).count_params()
    assert "part                disentangled" in str(describe(config))


@pytest.mark.jax_slow
def test_all_layers_share_one_table_and_its_gradient():
    config = tiny_config(**KINDS["disentangled"])
    encoder = Encoder(config)
    randomise(encoder)
    inputs = tiny_inputs(config)
    gradients = layer_gradients(encoder, lambda: ops.sum(encoder(inputs)["pooled"] ** 2))
    (name,) = (name for name in gradients if name.endswith("shared/table"))
    assert gradients[name].shape == (16, 16)
    assert (np.abs(gradients[name]).max(-1) > 0).all()


@pytest.mark.tensorflow
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_one_graph_reads_every_length(jit_compile):
    """Of lengths that the graph does not know, by gradients too."""
    import tensorflow as tf

    config = tiny_config(**KINDS["disentangled"])
    encoder = Encoder(config)
    randomise(encoder)
    inputs = tiny_inputs(config, length=23)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in inputs}
    table = encoder.shared.table

    @tf.function(input_signature=[spec], jit_compile=jit_compile)
    def run(features):
        with tf.GradientTape() as tape:
            out = encoder(features, output_positions=features["token_ids"][:, :1] * 0)
            loss = tf.reduce_sum(out["pooled"] ** 2)
        return encoder(features)["sequence"], tape.gradient(loss, table.value)

    for length in (1, 2, 9, 23):
        part = {name: value[:, :length] for name, value in inputs.items()}
        found, gradient = run(part)
        assert_close(to_numpy(found), to_numpy(encoder(part)["sequence"]), 1e-5)
        if length == 1:  # no choice to attend, and no gradient
            continue
        want = layer_gradients(encoder, lambda part=part: ops.sum(encoder(part)["pooled"] ** 2))
        name = table.path
        assert_gradients_close({name: to_numpy(gradient)}, {name: want[name]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position_buckets": 7}, "must be even, .*Received: position_buckets=7, max_distance=512"),
        ({"max_distance": 129}, "at least position_buckets / 2 .*max_distance=129"),
        ({"terms": ()}, r"`terms` must name content_to_position or .* Received: \(\)"),
        ({"terms": TERMS + TERMS}, "`terms` must name content_to_position or"),
        ({"terms": "p2c"}, "`terms` must be a sequence, each one of content_to_position, "),
        ({"max_distance": 10**30}, "`max_distance` must be a whole number from 3 to 1,048,576"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Disentangled(**options)


@pytest.mark.parametrize(
    "changes", [{"positions": "alibi"}, {"positions": "rotary"}, {"attention_pattern": (4,)}]
)
def test_configs_it_is_not_for(changes):
    with pytest.raises(ValueError, match=r"requires global attention, .*Received: positions="):
        tiny_config(**{**KINDS["disentangled"], **changes})
    learned = tiny_config(**{**KINDS["disentangled"], "positions": "learned"})
    assert learned.part == family("microsoft/deberta-v3-base").part | {
        "position_buckets": 8,
        "max_distance": 10,
    }
