"""Layers that are computed again in the backward part beside the same that keep everything."""

import math
import re
from operator import itemgetter

import keras
import numpy as np
import pytest
from keras import ops

from kbert.configs.decoder import DecoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.contexts import recomputation
from kbert.layers import (
    Block,
    CrossAttention,
    CrossBlock,
    Dropout,
    FeedForward,
    LayerNorm,
    SelfAttention,
    fused,
)
from kbert.layers.recompute import run_layer
from kbert.models import Decoder, Encoder, Seq2Seq
from tests.harness import (
    KINDS,
    assert_gradients_close,
    freeze_unread,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

ON_JAX = keras.backend.backend() == "jax"
pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="training runs on TensorFlow and JAX"
)
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2}
# The fast tests compile the fused layers once: of an encoder in float32, which is read whole.
WIDTHS = pytest.mark.parametrize(
    "min_width",
    [
        pytest.param(1, id="fused", marks=[pytest.mark.tensorflow, pytest.mark.slow]),
        pytest.param(10**9, id="plain"),
    ],
)


def seeds(layer):
    return [v for v in layer.variables if v.name == "seed_generator_state"]


def compare(layer, function, rtol=1e-6):
    """Outputs, gradients and counters of dropout with and without; returns the outputs.

    Args:
        layer: built.
        function: of nothing; a structure of tensors.
        rtol: of gradients; 0 where they are equal to the last bit.
    """
    start = [ops.convert_to_numpy(v.value) for v in seeds(layer)]
    found = []
    for active in (False, True):
        for variable, value in zip(seeds(layer), start, strict=True):
            variable.assign(value)
        with recomputation(active):
            outputs = to_numpy(function())

        def loss(active=active):
            with recomputation(active) as run:
                total = weighted_sum(function())
            assert bool(run) is active
            return total

        gradients = layer_gradients(layer, loss)
        counters = [ops.convert_to_numpy(v.value) for v in seeds(layer)]
        found.append((outputs, gradients, counters))
    (outputs, gradients, counters), (again, gradients_again, counters_again) = found
    keras.tree.map_structure(np.testing.assert_array_equal, again, outputs)
    assert_gradients_close(gradients_again, gradients, rtol)
    np.testing.assert_array_equal(counters_again, counters)
    if not ON_JAX:  # there the gradients are taken without state
        assert all((now != before).any() for now, before in zip(counters, start, strict=True))
    return outputs


def weighted_sum(structure):
    total = 0.0
    for x in keras.tree.flatten(structure):
        flat = ops.reshape(ops.cast(x, "float32"), (-1,))
        total += ops.sum(flat * ops.cos(ops.arange(math.prod(x.shape), dtype="float32")))
    return total


def encoders():
    """All widths of all kinds; the fast tests have both of a plain one."""
    others = ("modern", "alibi", "disentangled", "global tokens", "xlnet", "bottleneck")
    for name, width in (("fused", 1), ("plain", 10**9)):
        marks = [pytest.mark.tensorflow] if name == "fused" else []
        yield pytest.param({}, width, id=name, marks=marks)
        shared = {"num_layer_groups": 1, "num_layers": 3}
        for kind, changes in {"shared": shared, **{x: KINDS[x] for x in others}}.items():
            is_fast = (kind, name) == ("disentangled", "plain")
            more = [] if is_fast else [pytest.mark.slow]
            yield pytest.param(changes, width, id=f"{kind}-{name}", marks=[*marks, *more])


@pytest.mark.jax_slow
@pytest.mark.parametrize(("changes", "min_width"), encoders())
def test_an_encoder_has_the_same_gradients(monkeypatch, min_width, changes):
    """With dropout; of shared layers each call has masks of its own."""
    monkeypatch.setattr(fused, "MIN_WIDTH", min_width)
    config = tiny_config(**DROPOUT, **changes)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    freeze_unread(encoder)
    randomise(encoder)
    compare(encoder, lambda: encoder(inputs, training=True))


@pytest.mark.jax_slow
@WIDTHS
def test_some_positions_of_the_last_layer(monkeypatch, min_width):
    monkeypatch.setattr(fused, "MIN_WIDTH", min_width)
    config = tiny_config(**DROPOUT)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    randomise(encoder)
    positions = ops.array([[0, 3], [1, 1], [2, 0]], dtype="int32")
    out = compare(encoder, lambda: encoder(inputs, training=True, output_positions=positions))
    assert out["sequence"].shape == (3, 2, 16)


@pytest.mark.jax_slow
def test_hidden_states_and_what_attention_computed():
    """All of it has gradients, as distillation needs them."""
    config = tiny_config(**DROPOUT)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    randomise(encoder)
    out = compare(
        encoder,
        lambda: encoder(
            inputs,
            training=True,
            return_hidden_states=True,
            return_attention=True,
            return_internals=True,
        ),
        rtol=1e-5,
    )
    assert len(out["hidden_states"]) == 3
    assert len(out["attention"]) == len(out["internals"]) == 2


@pytest.mark.jax_slow
def test_packed_rows():
    config = tiny_config(**DROPOUT, pooler_activation=None)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    randomise(encoder)
    del inputs["padding_mask"]
    inputs["position_ids"] = np.tile(np.arange(12, dtype="int32") % 6, (3, 1))
    inputs["example_ids"] = np.tile(np.arange(12, dtype="int32") // 6 + 1, (3, 1))
    compare(encoder, lambda: encoder(inputs, training=True)["sequence"])


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "precision", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.slow)]
)
@WIDTHS
def test_in_half_precision(monkeypatch, min_width, precision):
    monkeypatch.setattr(fused, "MIN_WIDTH", min_width)
    config = tiny_config(**DROPOUT)
    encoder, inputs = Encoder(config, dtype=precision), tiny_inputs(config)
    randomise(encoder)
    # XLA rounds at other places where it fuses other operations.
    compare(encoder, lambda: encoder(inputs, training=True), rtol=0.03 if ON_JAX else 0)


@pytest.mark.jax_slow
@WIDTHS
def test_a_decoder(monkeypatch, min_width):
    monkeypatch.setattr(fused, "MIN_WIDTH", min_width)
    config = DecoderConfig(
        vocabulary_size=30,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=32,
        max_positions=16,
        **DROPOUT,
    )
    decoder = Decoder(config)
    randomise(decoder)
    ids = np.arange(24, dtype="int32").reshape(2, 12)
    compare(decoder, lambda: decoder({"token_ids": ids}, training=True))


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "kind", [{}, {"positions": "relative", "scale_scores": False, "output_dropout": True}]
)
def test_an_encoder_decoder_with_and_without_its_attention(kind):
    config = Seq2SeqConfig(
        vocabulary_size=30,
        hidden_size=16,
        num_layers=1,
        num_decoder_layers=2,
        num_heads=2,
        intermediate_size=32,
        max_positions=16,
        **DROPOUT,
        **kind,
    )
    model = Seq2Seq(config)
    randomise(model)
    inputs = {
        "encoder_token_ids": np.arange(10, dtype="int32").reshape(2, 5),
        "decoder_token_ids": np.arange(12, dtype="int32").reshape(2, 6),
        "encoder_padding_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32"),
    }
    compare(model, lambda: model(inputs, training=True))
    out = compare(model, lambda: model(inputs, training=True, return_attention=True), rtol=1e-5)
    assert out["cross_attention"][1].shape == (2, 2, 6, 5)


@pytest.mark.jax_slow
def test_a_block_with_cross_attention_learns_from_both_sequences():
    parts = SelfAttention(2, dropout=0.2), FeedForward(8, activation="gelu"), Dropout(0.2)
    norms = {f"{slot}_norm": LayerNorm(1e-6) for slot in ("attention", "feed_forward")}
    cross = {"cross_attention": CrossAttention(2), "cross_attention_norm": LayerNorm(1e-6)}
    block = CrossBlock(*parts, **norms, **cross)
    scale = keras.layers.Dense(4, name="scale")  # a weight before each of its inputs
    block.build((None, None, 4))
    scale.build((None, None, 4))
    both = keras.Sequential([scale, block])
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")

    def function():
        memory = scale(x[:, ::-1])
        return run_layer(block, scale(x), memory, training=True, select=itemgetter(0))

    compare(both, function)


@pytest.mark.jax_slow
def test_a_bias_that_is_trained_has_its_gradient():
    block = Block(SelfAttention(2), FeedForward(8, activation="gelu"), Dropout(0.2))
    block.build((None, None, 4))
    table = keras.layers.Dense(3, use_bias=False, name="table")
    table.build((None, None, None, 3))
    both = keras.Sequential([table, block])
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")

    def function():
        bias = table(ops.ones((1, 1, 3, 3)))
        return run_layer(block, x, bias, training=True, select=itemgetter(0))

    randomise(both)
    compare(both, function, rtol=1e-5)


def test_layers_of_someone_else_draw_the_same_masks_too():
    """Keras' own dropout counts in a variable of its own."""
    layer = keras.Sequential([keras.layers.Dense(16), keras.layers.Dropout(0.5, seed=3)])
    layer.build((None, 8))
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    first = compare(layer, lambda: run_layer(layer, x, training=True))
    assert 0 < (first == 0).mean() < 1
    with recomputation():
        assert (to_numpy(run_layer(layer, x, training=True)) != first).any()


def test_only_in_training_and_in_the_context():
    config = tiny_config(**DROPOUT)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    with recomputation() as run:
        encoder(inputs)
        assert run == []
        encoder(inputs, training=True)
        assert run == ["layers_0", "layers_1"]
    encoder(inputs, training=True)
    with recomputation(False) as run:
        encoder(inputs, training=True)
    assert run == []


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "min_width",
    [pytest.param(1, id="fused"), pytest.param(10**9, id="plain", marks=[pytest.mark.slow])],
)
def test_of_each_layer_its_input_is_kept(monkeypatch, min_width):
    monkeypatch.setattr(fused, "MIN_WIDTH", min_width)
    config = tiny_config(**DROPOUT, num_layers=3, pooler_activation=None)
    rows, length = 3, 12
    encoder, inputs = Encoder(config), tiny_inputs(config, rows, length)

    def of_a_layer(active):
        """More layers keep more, whatever the embeddings do."""
        small = Encoder(config.replace(num_layers=2))
        return kept(encoder, inputs, active) - kept(small, inputs, active)

    hidden, scores = 4 * rows * length * 16, 4 * rows * 4 * length**2
    assert of_a_layer(True) == hidden
    assert of_a_layer(False) > 8 * hidden + scores


@pytest.mark.skipif(not ON_JAX, reason="reads what JAX prints")
def test_of_each_layer_its_input_is_kept_on_jax(capsys):
    """By what JAX itself says: XLA on a CPU may compute the second forward part too early."""
    import jax
    from jax.ad_checkpoint import print_saved_residuals

    config = tiny_config(**DROPOUT, pooler_activation=None)
    inputs, large = tiny_inputs(config), 3 * 12 * 16

    def kept(layers, active):
        encoder = Encoder(config.replace(num_layers=layers))

        def total(values):
            scope = keras.StatelessScope(zip(encoder.variables, values, strict=True))
            with scope, recomputation(active):
                return weighted_sum(encoder(inputs, training=True))

        floats = [v.value for v in encoder.variables]
        assert jax.eval_shape(total, floats).shape == ()
        print_saved_residuals(total, floats)
        lines = capsys.readouterr().out.splitlines()
        shapes = (re.match(r"f32\[([\d,]+)\] output of", line) for line in lines)
        sizes = (math.prod(map(int, shape[1].split(","))) for shape in shapes if shape)
        return sum(4 * size for size in sizes if size >= large)

    def of_a_layer(active):
        return (kept(4, active) - kept(2, active)) / 2

    assert of_a_layer(True) == 4 * large
    assert of_a_layer(False) > 8 * 4 * large


def kept(model, inputs, active) -> int:
    """Bytes of the forward part's large tensors that the gradient's graph reads."""
    import tensorflow as tf

    variables = [v.value for v in model.trainable_variables]

    def gradients(upstream):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            with recomputation(active):
                y = model(inputs, training=True)["sequence"]
        return tape.gradient(y, variables, output_gradients=upstream)

    spec = tf.TensorSpec((*inputs["token_ids"].shape, model.config.hidden_size), name="upstream")
    graph = tf.function(gradients, autograph=False).get_concrete_function(spec).graph
    needed, later = used(graph), set()
    for op in graph.get_operations():
        controls = {x.name for x in op.control_inputs}
        if op.name == "upstream" or {x.op.name for x in op.inputs} & later or controls & later:
            later.add(op.name)
    read = {}
    for op in graph.get_operations():
        if op.name not in later or op.name not in needed:
            continue
        for x in op.inputs:
            x = origin(x)
            if x.op.name not in later and x.op.type not in ("ReadVariableOp", "Const"):
                read[x.name] = x
    large = 4 * math.prod(spec.shape)
    sizes = (x.shape.num_elements() or 0 for x in read.values() if x.dtype == tf.float32)
    return sum(4 * size for size in sizes if 4 * size >= large)


def used(graph) -> set[str]:
    """Names of the operations that the outputs need; the others are pruned."""
    waiting, found = [x.op for x in graph.outputs], set()
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            waiting += [*(x.op for x in op.inputs), *op.control_inputs]
    return found


def origin(x):
    """What has the memory of a tensor that is passed on as it is."""
    while x.op.type in ("Identity", "IdentityN", "Reshape"):
        x = x.op.inputs[x.value_index if x.op.type == "IdentityN" else 0]
    return x


@pytest.mark.parametrize("training", [False, True])
def test_other_backends_are_refused(monkeypatch, training):
    layer = Dropout(0.1)
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with recomputation():
        if not training:
            run_layer(layer, ops.ones((1, 2)))
            return
        with pytest.raises(NotImplementedError, match=r"tensorflow or jax.*Received: .*torch"):
            run_layer(layer, ops.ones((1, 2)), training=True)
