"""Adapters by their formulas, beside each other, and in every kind of forward and backward part."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.core.contexts import recomputation
from kbert.edit import adapters
from kbert.edit.adapters.base import base_weights, inserting, slot, weights_of
from kbert.models import Encoder
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    compiled,
    layer_gradients,
    numpy_norm,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

ADAPTERS = {
    "houlsby": {"size": 6},
    "pfeiffer": {"size": 6},
    "lora": {"rank": 3, "targets": ("query", "key", "value", "attention_output", "intermediate")},
    "bitfit": {},
    "prefix": {"length": 3},
    "pal": {"size": 8},
}
KIND = pytest.mark.parametrize("kind", list(ADAPTERS))
# What acts on each row alone, at the end of a part, is slow where rows are chosen and packed.
ACROSS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(x, marks=pytest.mark.slow) if x in ("houlsby", "pfeiffer") else x
        for x in ADAPTERS
    ],
)


def adapted(kind, sigma=0.15, **changes):
    """An encoder with one adapter, all weights drawn; and its base, without."""
    base = Encoder(tiny_config(**changes), name="encoder")
    randomise(base)
    encoder = Encoder(tiny_config(**changes), name="encoder")
    encoder.set_weights(base.get_weights())
    adapters.add(encoder, kind, **ADAPTERS[kind])
    rng = np.random.default_rng(1)
    for weight in weights_of(encoder, kind):
        weight.assign(rng.normal(0, sigma, tuple(weight.shape)).astype("float32"))
    return encoder, base


def count(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("houlsby", {"size": 8}, 351_936),
        ("houlsby", {"size": 64}, 2_417_664),
        ("houlsby", {"size": 256}, 9_500_160),
        ("lora", {}, 294_912),
        ("pfeiffer", {"size": 48}, 894_528),  # 12 (2 x 768 x 48 + 48 + 768)
        ("prefix", {"length": 20}, 368_640),  # 12 x 2 x 20 x 768
        ("pal", {}, 1_811_520),  # 2 x 768 x 204 + 12 x 3 x 204 x 204
        ("bitfit", {}, 102_144),  # 12 (3 x 768 + 768 + 3072 + 768 + 2 x 768) + 768
        ("lora", {"pooler": True}, 294_912 + 768 * 769),
    ],
)
def test_counts_on_bert_base(bert_base, kind, options, expected):
    adapters.add(bert_base, kind, name="counted", **options)
    assert count(bert_base.trainable_weights) == expected
    adapters.remove(bert_base, "counted")
    assert not bert_base.trainable_weights


@pytest.fixture(scope="module")
def bert_base():
    encoder = Encoder(kbert.family("bert-base-uncased").replace(vocabulary_size=10))
    before = len(encoder.weights)
    yield encoder
    assert len(encoder.weights) == before  # what was removed is gone


@pytest.mark.jax_slow
@KIND
def test_the_base_is_another_adapter_s_too_and_stays(kind):
    encoder, base = adapted(kind)
    inputs = tiny_inputs(encoder.config)
    own = to_numpy(encoder(inputs)["sequence"])
    alone = to_numpy(base(inputs)["sequence"])
    assert np.abs(own - alone).max() > 0.01
    with adapters.using(encoder, None):
        assert_close(to_numpy(encoder(inputs)["sequence"]), alone, 0)
    for mine, its in zip(base_weights(encoder), base.weights, strict=True):
        assert mine.path == its.path
        assert not mine.trainable
    assert {id(x) for x in encoder.trainable_weights} == {id(x) for x in weights_of(encoder, kind)}
    adapters.add(encoder, "lora", name="second")
    assert {id(x) for x in encoder.trainable_weights} == {
        id(x) for x in weights_of(encoder, "second")
    }
    assert_close(to_numpy(encoder(inputs)["sequence"]), alone, 1e-6)
    adapters.activate(encoder, kind)
    assert_close(to_numpy(encoder(inputs)["sequence"]), own, 0)
    for name in ("second", kind):
        adapters.remove(encoder, name)
    assert [x.path for x in encoder.weights] == [x.path for x in base.weights]
    assert len(list(encoder._flatten_layers())) == len(list(base._flatten_layers()))
    assert_close(to_numpy(encoder(inputs)["sequence"]), alone, 0)


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["houlsby", "lora", "bitfit", "pal"])
def test_nothing_or_little_is_changed_at_the_start(kind):
    encoder = Encoder(tiny_config())
    randomise(encoder)
    inputs = tiny_inputs(encoder.config)
    before = to_numpy(encoder(inputs)["sequence"])
    adapters.add(encoder, kind, **ADAPTERS[kind])
    after = to_numpy(encoder(inputs)["sequence"])
    assert_close(after, before, 1e-3 if kind == "houlsby" else 1e-6)


def test_lora_is_a_difference_of_its_kernels():
    encoder, base = adapted("lora")
    block = encoder.blocks[1]
    made = {
        dense: slot(dense, "lora") for dense in (block.attention.qkv, block.attention.output_dense)
    }
    for dense, low_rank in made.items():
        pairs = [[to_numpy(x.value) for x in pair] for pair in low_rank.pairs]
        whole = np.concatenate([a @ b for a, b in pairs], axis=1)
        assert_close(to_numpy(low_rank.difference()), whole, 1e-6)
        x = np.random.default_rng(0).normal(size=(5, 16)).astype("float32")
        expected = x @ (to_numpy(dense.kernel.value) + whole) + to_numpy(dense.bias.value)
        assert_close(to_numpy(dense(x)), expected, 1e-5)
    assert slot(block.feed_forward.output_dense, "lora") is None  # no target
    inputs = tiny_inputs(encoder.config)
    own = to_numpy(encoder(inputs))
    adapters.merge(encoder)
    assert [x.path for x in encoder.weights] == [x.path for x in base.weights]
    for name, x in to_numpy(encoder(inputs)).items():
        assert_close(x, own[name], 1e-5)


def test_lora_scales_by_alpha_and_drops_only_in_training():
    encoder = Encoder(tiny_config())
    adapters.add(encoder, "lora", rank=4, alpha=8.0, dropout=0.5, targets="value")
    low_rank = slot(encoder.blocks[0].attention.qkv, "lora")
    randomise(low_rank)
    ((a, b),) = low_rank.pairs
    x = np.ones((64, 16), "float32")
    found = to_numpy(low_rank(x))
    assert_close(found[:, :32], np.zeros((64, 32)), 0)
    assert_close(found[:, 32:], 2 * x @ to_numpy(a.value) @ to_numpy(b.value), 1e-5)
    dropped = to_numpy(low_rank(x, training=True))
    assert np.std(dropped[:, 32:], axis=0).max() > 0.01


@pytest.mark.jax_slow
def test_lora_acts_on_every_product_of_two_streams_and_a_memory():
    """Whose attention computes some columns alone: queries of one, keys and values of another."""
    encoder = Encoder(tiny_config("xlnet"))
    adapters.add(encoder, "lora", targets=("query", "key", "value", "output"))
    randomise(encoder)
    rng = np.random.default_rng(0)
    inputs = {
        "token_ids": rng.integers(0, 40, (2, 6)),
        "order_ids": np.array([[0, 3, 1, 2, 4, 5], [5, 4, 3, 2, 1, 0]], "int32"),
        "target_positions": np.array([[1, 5], [3, 2]], "int32"),
        "memory": rng.normal(size=(2, 2, 5, 16)).astype("float32"),
    }
    names = ("sequence", "queries")
    own = {name: to_numpy(encoder(inputs)[name]) for name in names}
    with adapters.using(encoder, None):
        for name in names:
            assert np.abs(to_numpy(encoder(inputs)[name]) - own[name]).max() > 0.01
    qkv, x = encoder.blocks[0].attention.qkv, rng.normal(size=(2, 3, 16)).astype("float32")
    assert_close(to_numpy(qkv(x, columns=slice(16, 40))), to_numpy(qkv(x))[..., 16:40], 1e-6)
    adapters.merge(encoder)
    for name in names:
        assert_close(to_numpy(encoder(inputs)[name]), own[name], 1e-4)


@pytest.mark.jax_slow
def test_grouped_keys_and_values_have_narrower_columns():
    encoder = Encoder(tiny_config(**KINDS["grouped"]))
    adapters.add(encoder, "lora", targets=("query", "key", "value"))
    low_rank = slot(encoder.blocks[0].attention.qkv, "lora")
    assert low_rank.chosen == [("query", 0, 16), ("key", 16, 24), ("value", 24, 32)]
    randomise(encoder)
    inputs = tiny_inputs(encoder.config)
    own = to_numpy(encoder(inputs)["sequence"])
    adapters.merge(encoder)
    assert_close(to_numpy(encoder(inputs)["sequence"]), own, 1e-5)


def test_bitfit_is_other_biases():
    encoder, base = adapted("bitfit")
    inputs = tiny_inputs(encoder.config)
    own = to_numpy(encoder(inputs)["sequence"])
    for weight in base.weights:
        last = weight.path.rsplit("/", 1)
        delta = [
            x for x in weights_of(encoder, "bitfit")
            if x.path == f"{last[0]}/adapter_bitfit/{last[1]}"
        ]  # fmt: skip
        if delta:
            weight.assign_add(delta[0].value)
        elif "pooler" not in weight.path:
            assert last[1] not in ("bias", "beta")
    assert_close(to_numpy(base(inputs)["sequence"]), own, 1e-5)
    adapters.merge(encoder)
    assert_close(to_numpy(encoder(inputs)["sequence"]), own, 1e-5)


def gelu(x):
    from math import erf, sqrt

    return x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("norm", ["post_norm", "pre_norm"])
def test_bottlenecks_by_their_formula(kind, norm):
    encoder, _ = adapted(kind, num_layers=1, block=norm, activation="relu")
    (block,), x = encoder.blocks, np.random.default_rng(0).normal(size=(1, 4, 16))
    values = {w.path.removeprefix("encoder/layers_0/"): to_numpy(w.value) for w in block.weights}

    def dense(x, place):
        return x @ values[f"{place}/kernel"] + values[f"{place}/bias"]

    def normed(x, place):
        if f"{place}/gamma" not in values:
            return x
        gamma, beta = values[f"{place}/gamma"], values[f"{place}/beta"]
        if kind == "houlsby":
            gamma = gamma + values[f"{place}/adapter_houlsby/gamma"]
            beta = beta + values[f"{place}/adapter_houlsby/beta"]
        return numpy_norm(x, 1e-12) * gamma + beta

    def end(x, outputs, part):
        place = f"adapter_{kind}/{part}"
        if kind == "houlsby":
            outputs = outputs + dense(gelu(dense(outputs, f"{place}/down")), f"{place}/up")
        elif part == "feed_forward":
            read = normed(x + outputs, f"{part}_norm")
            outputs = outputs + dense(np.maximum(dense(read, f"{place}/down"), 0), f"{place}/up")
        return normed(x + outputs, f"{part}_norm")

    attended, _ = block.attention(normed(x, "attention_input_norm").astype("float32"))
    expected = end(x, to_numpy(attended), "attention")
    inner = dense(normed(expected, "feed_forward_input_norm"), "feed_forward/intermediate")
    outputs = dense(np.maximum(inner, 0), "feed_forward/output")
    expected = end(expected, outputs, "feed_forward")
    found, _ = block(x.astype("float32"))
    assert_close(to_numpy(found), expected, 2e-5)


@pytest.mark.jax_slow
def test_a_prefix_is_attended_to_beside_the_tokens():
    encoder, _ = adapted("prefix")
    attention = encoder.blocks[0].attention
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    bias = np.where(np.arange(5) < 4, 0.0, -1e9)[None, None, None].astype("float32")
    outputs, made = attention(x, bias)
    query, key, value = (to_numpy(part) for part in attention._project(x))
    more = [to_numpy(part) for part in slot(attention, "prefix").keys_values()]
    key, value = (
        np.concatenate([part, np.broadcast_to(rows, (2, *rows.shape[1:]))], axis=2)
        for part, rows in zip((key, value), more, strict=True)
    )
    scores = query @ key.transpose(0, 1, 3, 2) / 2.0
    scores[..., 4] = -1e9
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    merged = (weights @ value).transpose(0, 2, 1, 3).reshape(2, 5, 16)
    kernel, shift = (to_numpy(x.value) for x in attention.output_dense.weights)
    assert_close(to_numpy(outputs), merged @ kernel + shift, 1e-5)
    assert_close(
        to_numpy(made["probabilities"]), weights[..., :5], 1e-5
    )  # what is shown is of tokens


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["disentangled", "relative bias"])
def test_a_prefix_beside_scores_of_other_kinds(kind):
    """Which are of tokens alone: no distance leads to a prefix."""
    encoder = Encoder(tiny_config(**KINDS[kind]))
    randomise(encoder)
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    bias = np.where(np.arange(5) < 4, 0.0, -1e9)[None, None, None].astype("float32")
    attention, shared = encoder.blocks[0].attention, encoder.shared(x)
    _, before = attention(x, bias, shared=shared)
    adapters.add(encoder, "prefix", length=3, initializer_range=0.5)
    for places in (None, np.array([[3, 0], [1, 4]], "int32")):
        outputs, made = attention(x, bias, shared=shared, positions=places)
        rows = np.arange(5)[None].repeat(2, 0) if places is None else places
        at = (np.arange(2)[:, None, None], np.arange(4)[None, :, None], rows[:, None])
        scores = to_numpy(before["scores"])[at]
        keys, values = (to_numpy(part) for part in slot(attention, "prefix").keys_values())
        query = to_numpy(before["query"])[at]
        far = query @ keys.transpose(0, 1, 3, 2) * attention._scale
        whole = np.concatenate([scores + bias, far], axis=-1)
        weights = np.exp(whole - whole.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        values = np.broadcast_to(values, (2, *values.shape[1:]))
        values = np.concatenate([to_numpy(before["value"]), values], axis=2)
        merged = (weights @ values).transpose(0, 2, 1, 3).reshape(2, rows.shape[1], 16)
        kernel, shift = (to_numpy(x.value) for x in attention.output_dense.weights)
        assert_close(to_numpy(outputs), merged @ kernel + shift, 1e-5)
        assert_close(to_numpy(made["probabilities"]), weights[..., :5], 1e-5)


@pytest.mark.jax_slow
def test_a_prefix_beside_windows_whose_bias_differs_by_head():
    encoder, _ = adapted("prefix", positions="alibi", attention_pattern=(4, "global"))
    inputs = tiny_inputs(encoder.config)
    in_blocks = to_numpy(encoder(inputs)["sequence"])
    whole = to_numpy(encoder(inputs, return_attention=True)["sequence"])
    real = to_numpy(inputs["padding_mask"]) > 0
    assert_close(in_blocks[real], whole[real], 1e-5)


@pytest.mark.jax_slow
def test_a_pal_is_a_small_attention_beside_the_block():
    encoder, base = adapted("pal", num_layers=1)
    ((block,), (plain,)) = encoder.blocks, base.blocks
    made = slot(block, "pal")
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    bias = np.where(np.arange(5) < 4, 0.0, -1e9)[None, None, None].astype("float32")
    into, qkv, back = (
        to_numpy(w.value) for w in (made.into.kernel, made.small.qkv.kernel, made.back.kernel)
    )
    heads = (x @ into @ qkv).reshape(2, 5, 3, 4, 2).transpose(2, 0, 3, 1, 4)
    scores = heads[0] @ heads[1].transpose(0, 1, 3, 2) / 2**0.5 + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    aside = (weights @ heads[2]).transpose(0, 2, 1, 3).reshape(2, 5, 8) @ back
    inputs, masked = (keras.ops.convert_to_tensor(x) for x in (x, bias))
    attended, _ = plain._attended(inputs, lambda x: plain.attention(x, masked))
    outputs = to_numpy(plain.feed_forward(attended))
    norm = plain.feed_forward_norm
    expected = numpy_norm(to_numpy(attended) + aside + outputs, 1e-12)
    expected = expected * to_numpy(norm.gamma.value) + to_numpy(norm.beta.value)
    assert_close(to_numpy(block(x, bias)[0]), expected, 2e-5)
    positions = np.array([[2], [0]], "int32")
    some = to_numpy(block(x, bias, positions=positions)[0])
    assert_close(some[:, 0], expected[[0, 1], [2, 0]], 2e-5)


@pytest.mark.jax_slow
@ACROSS
@pytest.mark.parametrize("window", [None, pytest.param("window", marks=pytest.mark.slow)])
def test_in_every_forward_part(kind, window):
    """In blocks of a window, in packed rows, for some positions, compiled, saved by Keras."""
    changes = {"attention_pattern": ("global", 4)} if window else {}
    encoder, _ = adapted(kind, **changes)
    inputs = tiny_inputs(encoder.config)
    whole = to_numpy(encoder(inputs, return_hidden_states=True, return_attention=True))
    found = to_numpy(encoder(inputs))
    real = inputs["padding_mask"] > 0  # what padding attends to is nobody's business
    assert_close(found["sequence"][real], whole["sequence"][real], 1e-5)
    assert whole["attention"][0].shape == (3, 4, 12, 12)
    positions = np.array([[0, 3], [1, 1], [2, 0]], "int32")
    some = to_numpy(encoder(inputs, output_positions=positions)["sequence"])
    rows = np.arange(3)[:, None]
    assert_close(some, whole["sequence"][rows, positions], 1e-5)
    once = to_numpy(compiled(lambda: encoder(inputs)["sequence"])())
    assert_close(once[real], whole["sequence"][real], 1e-5)
    lengths = [5, 7]
    ids = np.random.default_rng(0).integers(5, 40, 12)[None].astype("int32")
    packed = {
        "token_ids": ids,
        "example_ids": np.repeat([1, 2], lengths)[None].astype("int32"),
        "position_ids": np.concatenate([np.arange(n) for n in lengths])[None].astype("int32"),
        "cls_positions": np.array([[0, 5]], "int32"),
    }
    together = to_numpy(encoder(packed)["sequence"])[0]
    for part in (slice(0, 5), slice(5, 12)):
        alone = to_numpy(encoder({"token_ids": ids[:, part]})["sequence"])[0]
        assert_close(together[part], alone, 1e-5)


@KIND
@pytest.mark.jax_slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="recomputation is of training")
def test_gradients_of_recomputed_layers_are_the_same(kind):
    encoder, _ = adapted(kind)
    encoder.pooler.trainable = False
    inputs = tiny_inputs(encoder.config)

    def loss(active):
        with recomputation(active) as run:
            found = ops.sum(ops.square(encoder(inputs, training=True)["sequence"] - 0.3))
        assert len(run) == (2 if active else 0)
        return found

    kept = layer_gradients(encoder, lambda: loss(False))
    assert set(kept) == {weight.path for weight in weights_of(encoder, kind)}
    again = layer_gradients(encoder, lambda: loss(True))
    keys = [
        path
        for path in kept
        if not path.endswith("prefix/key") and "/qkv/adapter_bitfit" not in path
    ]
    assert_gradients_close({k: again[k] for k in keys}, {k: kept[k] for k in keys}, 1e-5)


@pytest.mark.jax_slow
@KIND
def test_in_half_precision_its_weights_are_float32(kind):
    exact, _ = adapted(kind)
    encoder = Encoder(exact.config, dtype="mixed_bfloat16")
    adapters.add(encoder, kind, **ADAPTERS[kind])
    encoder.set_weights(exact.get_weights())
    assert {w.dtype for w in weights_of(encoder, kind)} == {"float32"}
    inputs = tiny_inputs(encoder.config)
    found, expected = (to_numpy(e(inputs)["sequence"]) for e in (encoder, exact))
    assert_close(found, expected, 0.15)
    assert np.abs(found - expected).mean() < 0.02


@pytest.mark.parametrize(
    "name", ["modern", "disentangled", "relative bias", "convolution", "shared"]
)
@pytest.mark.parametrize("kind", ["houlsby", "lora", "bitfit"])
@pytest.mark.jax_slow
def test_other_encoders_of_berts_kin(name, kind):
    fields = {**KINDS[name]}
    encoder = Encoder(tiny_config(**fields))
    randomise(encoder)
    options = {"houlsby": {"size": 4}, "lora": {}, "bitfit": {}}[kind]
    if (name, kind) == ("modern", "bitfit"):
        with pytest.raises(ValueError, match="require biases, and the encoder has none"):
            adapters.add(encoder, kind)
        return
    adapters.add(encoder, kind, **options)
    inputs = tiny_inputs(encoder.config)
    with adapters.using(encoder, None):
        before = to_numpy(encoder(inputs)["sequence"])
    for weight in weights_of(encoder, kind):
        weight.assign(np.random.default_rng(0).normal(0, 0.2, tuple(weight.shape)))
    own = to_numpy(encoder(inputs)["sequence"])
    assert np.abs(own - before).max() > 1e-3
    if kind != "houlsby":
        adapters.merge(encoder)
        assert_close(to_numpy(encoder(inputs)["sequence"]), own, 1e-4)


@pytest.mark.tensorflow
@pytest.mark.graphs
@pytest.mark.parametrize(
    ("sharing", "kind"),
    [
        (sharing, kind)
        if (sharing == "shared") == (kind == "houlsby")
        else pytest.param(sharing, kind, marks=pytest.mark.slow)
        for sharing in ("alone", "shared")
        for kind in ADAPTERS
    ],
)
def test_each_way_of_saving_keeps_it_and_graphs_see_it(kind, sharing, tmp_path):
    changes = KINDS["shared"] if sharing == "shared" else {}
    drawn, _ = adapted(kind, **changes)
    encoder = Encoder(drawn.config)
    encoder.set_weights([weight.value for weight in base_weights(drawn)])
    inputs, traced = tiny_inputs(encoder.config), []

    def forward(features):
        traced.append(1)
        return encoder(features)["sequence"]

    run = kbert.inference.compiled(forward, encoder)
    before = run(inputs)
    adapters.add(encoder, kind, **ADAPTERS[kind])
    encoder.set_weights(drawn.get_weights())
    own = to_numpy(drawn(inputs)["sequence"])
    assert_close(run(inputs), own, 1e-5)
    assert len(traced) == 2
    encoder.save_to_preset(tmp_path / "preset")
    encoder.save(tmp_path / "model.keras")
    encoder.save_weights(tmp_path / "model.weights.h5")
    by_weights = adapters.add(Encoder(encoder.config), kind, **ADAPTERS[kind])
    by_weights.load_weights(tmp_path / "model.weights.h5")
    for again in (
        Encoder.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "model.keras"),
        by_weights,
    ):
        assert again.variants.record() == encoder.variants.record()
        assert_close(to_numpy(again(inputs)["sequence"]), own, 1e-6)
        names = [weight.path for weight in encoder.trainable_weights]
        assert [weight.path for weight in again.trainable_weights] == names
    adapters.remove(encoder, kind)
    assert_close(run(inputs), before, 1e-6)
    assert not encoder.variants.record()


@pytest.mark.tensorflow
@pytest.mark.graphs
def test_what_runs_decides_the_graph_and_none_is_traced_twice():
    encoder, _ = adapted("lora")
    adapters.add(encoder, "bitfit")
    for weight in weights_of(encoder, "bitfit"):
        weight.assign(np.full(tuple(weight.shape), 0.1, "float32"))
    traced = []

    def forward(features):
        traced.append(1)
        return encoder(features)["sequence"]

    run = kbert.inference.compiled(forward, encoder)
    inputs, found = {"token_ids": np.array([[4, 5, 6]], "int32")}, {}
    for name in ("lora", "bitfit", None, "lora", "bitfit", None):
        adapters.activate(encoder, name)
        outputs = np.asarray(run(inputs))
        assert_close(outputs, to_numpy(encoder(inputs)["sequence"]), 1e-5)
        found.setdefault(name, outputs)
    assert len(traced) == 3
    assert np.abs(found["lora"] - found["bitfit"]).max() > 0.01


@pytest.mark.jax_slow
def test_a_part_of_someone_else_is_registered():
    class Shift(adapters.Adapter):
        kind = "test_shift"
        by: float = kbert.core.options.option(1.0, help="How far.")

        def slots(self, encoder, **kwargs):
            layer = encoder.blocks[-1].feed_forward.output_dense
            yield layer, Constant(self.by, **kwargs), (None, None)

    class Constant(keras.layers.Layer):
        def __init__(self, by, **kwargs):
            super().__init__(**kwargs)
            self.by = by

        def build(self, input_shape):
            self.built = True

        def call(self, rows, training=False):
            return self.by * ops.ones_like(rows[:, :1])

    encoder = Encoder(tiny_config(block="pre_norm", num_layers=1))
    inputs = tiny_inputs(encoder.config)
    stream = encoder.blocks[-1]
    x = np.zeros((1, 2, 16), "float32")
    before = to_numpy(stream(x)[0])
    adapters.add(encoder, "test_shift", by=2.0)
    assert_close(to_numpy(stream(x)[0]), before + 2.0, 1e-6)
    assert encoder(inputs)["sequence"].shape == (3, 12, 16)


@pytest.mark.jax_slow
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_an_adapter_whose_weights_cannot_be_read_is_removed_again(error):
    encoder = Encoder(tiny_config())
    before = [weight.path for weight in encoder.trainable_weights]
    with pytest.raises(error), inserting(encoder, adapters.Lora(), "half"):
        raise error
    assert [weight.path for weight in encoder.trainable_weights] == before
    assert not weights_of(encoder, "half")


def test_what_cannot_be(monkeypatch):
    encoder = Encoder(tiny_config())
    with pytest.raises(ValueError, match=r"An adapter must be one of .*lora.*Received: 'loru'"):
        adapters.add(encoder, "loru")
    with pytest.raises(ValueError, match=r"`rank` must be a whole number of at least 1"):
        adapters.add(encoder, "lora", rank=0)
    with pytest.raises(ValueError, match=r"`targets` must be some of query, .*\('keys',\)"):
        adapters.add(encoder, "lora", targets=("keys",))
    with pytest.raises(ValueError, match=r"multiple of the number of heads.*size=6, 4 heads"):
        adapters.add(encoder, "pal", size=6)
    for name in ("a/b", "größe", "訳", "a\n", ""):
        with pytest.raises(ValueError, match=r"ASCII letters, digits and underscores.*Received: "):
            adapters.add(encoder, "lora", name=name)
    adapters.add(encoder, "lora")
    with pytest.raises(ValueError, match=r"unique names.*'lora' again"):
        adapters.add(encoder, "lora")
    with pytest.raises(ValueError, match=r"which has lora.*'other'"):
        adapters.activate(encoder, "other")
    with pytest.raises(ValueError, match=r"which has lora.*'other'"):
        adapters.using(encoder, "other")
    adapters.add(encoder, "houlsby", size=2)
    with pytest.raises(ValueError, match=r"remove them before .* Received: lora, houlsby"):
        adapters.merge(encoder)
    adapters.remove(encoder, "lora")
    with pytest.raises(ValueError, match=r"can be merged.*kind 'houlsby'"):
        adapters.merge(encoder)
    adapters.activate(encoder, None)
    with pytest.raises(ValueError, match=r"Pass the `name` of the adapter to merge"):
        adapters.merge(encoder)
    with pytest.raises(TypeError, match=r"must be a kbert.Encoder"):
        adapters.add(keras.Sequential([keras.layers.Dense(2)]), "lora")
    without = Encoder(tiny_config(pooler_activation=None))
    with pytest.raises(ValueError, match=r"a dense layer.*a kbert.Encoder with pooler=None"):
        adapters.add(without, "lora", pooler=True)
    assert without.variants.record() == {}
    with pytest.raises(ValueError, match=r"no adapters that could be activated"):
        adapters.activate(without, None)
    assert without.trainable_weights
    rounded = Encoder(tiny_config(edits=[{"kind": "movement"}]))
    with pytest.raises(ValueError, match=r"changes the kernels.*edit 'movement'"):
        adapters.add(rounded, "lora")
    xlnet = Encoder(tiny_config("xlnet"))
    with pytest.raises(ValueError, match=r"blocks like BERT's.*XlnetBlock"):
        adapters.add(xlnet, "houlsby")
    convolved = Encoder(tiny_config(**KINDS["convolution"]))
    with pytest.raises(ValueError, match=r"attention like BERT's.*MixedAttention"):
        adapters.add(convolved, "prefix")
    bottleneck = Encoder(tiny_config(**KINDS["bottleneck"]))
    with pytest.raises(ValueError, match=r"blocks like BERT's"):
        adapters.add(bottleneck, "pfeiffer")
