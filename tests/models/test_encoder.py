import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.layers import Block, Dropout, FeedForward, SelfAttention
from kbert.models import Encoder, describe
from kbert.models.parts import Part
from kbert.models.weights import get_arrays, set_arrays
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    dtype_of,
    freeze_unread,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)

# What has operations of its own; the others are these with other numbers.
XLA_FIRST = ("modern", "disentangled", "convolution", "global tokens")


@pytest.fixture(scope="module")
def encoder():
    encoder = Encoder(tiny_config())
    randomise(encoder)
    return encoder


@pytest.fixture(scope="module")
def inputs():
    return tiny_inputs(tiny_config())


def sequence(encoder, inputs):
    return to_numpy(encoder(inputs)["sequence"])


def test_it_has_weights_when_constructed_and_knows_their_number():
    assert Encoder(tiny_config()).count_params() == describe(tiny_config()).parameters == 5808


def test_outputs_and_their_shapes(encoder, inputs):
    out = encoder(inputs, return_hidden_states=True, return_attention=True)
    assert sorted(out) == ["attention", "hidden_states", "pooled", "sequence"]
    assert out["sequence"].shape == (3, 12, 16)
    assert out["pooled"].shape == (3, 16)
    assert [tuple(x.shape) for x in out["hidden_states"]] == [(3, 12, 16)] * 3
    assert [tuple(x.shape) for x in out["attention"]] == [(3, 4, 12, 12)] * 2
    np.testing.assert_array_equal(to_numpy(out["hidden_states"][-1]), to_numpy(out["sequence"]))
    assert_close(to_numpy(out["attention"][0]).sum(-1), np.ones((3, 4, 12)), 1e-5)
    assert sorted(encoder(inputs)) == ["pooled", "sequence"]
    specs = encoder.compute_output_spec(inputs, return_hidden_states=True, return_attention=True)
    keras.tree.assert_same_structure(out, specs)
    for tensor, spec in zip(keras.tree.flatten(out), keras.tree.flatten(specs), strict=True):
        assert tuple(tensor.shape) == spec.shape


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.jax_slow)]
)
def test_internals_and_their_shapes(inputs, dtype):
    """A dict for each layer, also where layers share a block."""
    encoder = Encoder(tiny_config(num_layers=3, num_layer_groups=2, embedding_size=4), dtype=dtype)
    randomise(encoder)
    flags = {"return_internals": True, "return_attention": True}
    out = encoder(inputs, **flags)
    assert len(out["internals"]) == 3
    assert "hidden_states" not in out
    real = inputs["padding_mask"][:, None, None, :]
    for of_layer, attention in zip(out["internals"], out["attention"], strict=True):
        found = to_numpy(of_layer)
        np.testing.assert_array_equal(found["probabilities"], to_numpy(attention))
        biased = np.where(real, found["scores"], -np.inf)
        tolerance = 1e-5 if dtype == "float32" else 0.01
        assert_close(found["probabilities"], softmax(biased), tolerance)
        scores = found["query"] @ found["key"].transpose(0, 1, 3, 2) / 2  # sqrt(4)
        assert_close(found["scores"], scores, 3 * tolerance)
    plain = encoder(inputs)
    np.testing.assert_array_equal(to_numpy(out["sequence"]), to_numpy(plain["sequence"]))

    specs = encoder.compute_output_spec(inputs, **flags)
    keras.tree.assert_same_structure(out, specs)
    for tensor, spec in zip(keras.tree.flatten(out), keras.tree.flatten(specs), strict=True):
        assert tuple(tensor.shape) == spec.shape
        assert keras.backend.standardize_dtype(tensor.dtype) == spec.dtype
    symbols = {name: keras.Input((None,), dtype="int32", name=name) for name in inputs}
    symbolic = encoder(symbols, **flags)["internals"][2]
    assert symbolic["scores"].shape == (None, 4, None, None)
    assert symbolic["value"].shape == (None, 4, None, 4)


@pytest.mark.parametrize("groups", [None, 1, 2, 3])
def test_the_block_of_each_layer(groups):
    encoder = Encoder(tiny_config(num_layers=6, num_layer_groups=groups))
    count = 6 if groups is None else groups
    wanted = [encoder.blocks[layer * count // 6] for layer in range(6)]
    assert all(a is b for a, b in zip(encoder.layer_blocks, wanted, strict=True))


@pytest.mark.jax_slow
def test_a_family_without_pooler_has_no_pooled_output():
    encoder = Encoder(tiny_config(pooler_activation=None))
    assert sorted(encoder(np.ones((1, 3), "int32"))) == ["sequence"]


def test_ids_alone_mean_one_segment_and_no_padding(encoder, inputs):
    ids = inputs["token_ids"]
    plain = sequence(encoder, ids)
    full = {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }
    assert_close(plain, sequence(encoder, full), 1e-6)
    assert_close(plain, sequence(encoder, {"token_ids": ids}), 1e-6)


@pytest.mark.jax_slow
def test_what_stands_in_the_padding_does_not_matter(encoder, inputs):
    changed = dict(inputs)
    real = inputs["padding_mask"]
    changed["token_ids"] = np.where(real, inputs["token_ids"], 7)
    assert (changed["token_ids"] != inputs["token_ids"]).any()
    a, b = sequence(encoder, inputs), sequence(encoder, changed)
    assert_close(a[real == 1], b[real == 1], 1e-6)
    shorter = {name: value[2:, :4] for name, value in inputs.items()}  # row 2 has 4 tokens
    assert_close(a[2:, :4], sequence(encoder, shorter), 1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_layers_hold_their_weights_once(groups, inputs):
    config = tiny_config(num_layers=4, num_layer_groups=groups)
    shared = Encoder(config)
    randomise(shared)
    assert len(shared.blocks) == groups
    # The same as four blocks of their own with equal weights, block i * groups // 4.
    unshared = Encoder(config.replace(num_layer_groups=None))
    arrays = {k: v for k, v in get_arrays(shared, "encoder").items() if "/layers/" not in k}
    for layer in range(4):
        block = shared.blocks[layer * groups // 4]
        arrays.update(get_arrays(block, f"encoder/layers/{layer}"))
    set_arrays(unshared, "encoder", arrays, "the shared encoder")
    assert_close(sequence(shared, inputs), sequence(unshared, inputs), 1e-6)


def test_factorised_embeddings(inputs):
    encoder = Encoder(tiny_config(embedding_size=4))
    assert encoder.token_embedding.shape == (40, 4)
    assert encoder(inputs)["sequence"].shape == (3, 12, 16)


def test_unknown_or_missing_inputs_are_refused(encoder):
    ids = np.ones((1, 3), "int32")
    with pytest.raises(ValueError, match=r"the inputs `token_ids` and.*: token_ids, segment_id\b"):
        encoder({"token_ids": ids, "segment_id": ids})
    with pytest.raises(ValueError, match=r"`input_ids` is named `token_ids` in kbert, `atte"):
        encoder({"input_ids": ids, "attention_mask": ids})
    for name in ("padding_mask", "segment_ids"):
        with pytest.raises(ValueError, match=rf"`{name}` must have the shape of .*\(1, 4\)"):
            encoder({"token_ids": ids, name: np.ones((1, 4), "int32")})
    with pytest.raises(ValueError, match=r"has the inputs `token_ids`.*Received: padding_mask"):
        encoder({"padding_mask": ids})
    with pytest.raises(ValueError, match=r"shape \(batch, tokens\). Received: shape \(3,\)"):
        encoder(ids[0])


def test_segments_for_a_model_without_are_refused():
    encoder = Encoder(tiny_config(num_segments=0))
    ids = np.ones((1, 3), "int32")
    assert encoder(ids)["sequence"].shape == (1, 3, 16)
    with pytest.raises(ValueError, match="without segments does not support `segment_ids`"):
        encoder({"token_ids": ids, "segment_ids": ids})


def test_too_long_a_sequence_is_refused(encoder):
    with pytest.raises(ValueError, match=r"max_positions=24. Received: 25 tokens"):
        encoder(np.ones((1, 25), "int32"))


def test_dropout_acts_in_training(inputs):
    encoder = Encoder(tiny_config(dropout=0.5, attention_dropout=0.5))
    a, b = (to_numpy(encoder(inputs, training=True)["sequence"]) for _ in range(2))
    assert np.abs(a - b).max() > 0.1
    np.testing.assert_array_equal(sequence(encoder, inputs), sequence(encoder, inputs))


def test_keras_file_round_trip(tmp_path, encoder, inputs):
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    assert loaded.config == encoder.config
    np.testing.assert_array_equal(sequence(loaded, inputs), sequence(encoder, inputs))


def test_config_alone_revives_it():
    encoder = Encoder(tiny_config(), name="student", dtype="mixed_bfloat16")
    again = Encoder.from_config(json.loads(json.dumps(encoder.get_config())))
    assert again.config == encoder.config
    assert again.name == "student"
    assert again.blocks[1].feed_forward.intermediate.compute_dtype == "bfloat16"


def test_preset_round_trip_in_both_formats(tmp_path, encoder, inputs):
    for format in ("kbert", "huggingface"):
        encoder.save_to_preset(tmp_path / format, format=format)
        loaded = Encoder.from_preset(tmp_path / format)
        assert loaded.config == encoder.config
        np.testing.assert_array_equal(sequence(loaded, inputs), sequence(encoder, inputs))
    with pytest.raises(ValueError, match=r"one of kbert, huggingface, keras_hub. Received: 'onnx'"):
        encoder.save_to_preset(tmp_path, format="onnx")


@pytest.mark.jax_slow
def test_mixed_bfloat16_computes_in_it_and_stores_float32(inputs):
    single = Encoder(tiny_config())
    mixed = Encoder(tiny_config(), dtype="mixed_bfloat16")
    randomise(single)
    randomise(mixed)
    assert {w.dtype for w in mixed.weights} == {"float32"}
    out = mixed(inputs)
    assert keras.backend.standardize_dtype(out["sequence"].dtype) == "bfloat16"
    # bfloat16 rounds to 2**-9; a few roundings in a row of entries of size 1 to 3.
    assert_close(to_numpy(out["sequence"]), sequence(single, inputs), 0.1)
    assert np.abs(to_numpy(out["sequence"]) - sequence(single, inputs)).mean() < 0.02


EPSILONS = {"mixed_float16": 2**-11, "mixed_bfloat16": 2**-8, "bfloat16": 2**-8}


@pytest.mark.parametrize(
    ("kind", "policies"),
    [
        # What all compute with the least range; the rest is the same in other places.
        *((kind, EPSILONS if kind == "modern" else ("mixed_float16",)) for kind in KINDS),
        *(
            pytest.param(kind, ("mixed_bfloat16", "bfloat16"), marks=pytest.mark.slow)
            for kind in KINDS
            if kind != "modern"
        ),
    ],
)
def test_every_kind_computes_in_every_precision(kind, policies):
    """Long enough for windows in blocks. Each block rounds a few sums: a few eps a layer."""
    config = tiny_config(**KINDS[kind])
    inputs = tiny_inputs(config, length=min(23, config.max_positions))
    whole = Encoder(config)
    randomise(whole)
    real = inputs["padding_mask"] == 1
    wanted = sequence(whole, inputs)[real]
    for policy in policies:
        half = Encoder(config, dtype=policy)
        half.set_weights(whole.get_weights())
        found = half(inputs)["sequence"]
        assert dtype_of(found) == half.compute_dtype
        found = to_numpy(keras.ops.cast(found, "float32"))[real]
        bound = 16 * config.num_layers * EPSILONS[policy] * np.abs(wanted).max()
        assert np.abs(found - wanted).max() < bound


def test_it_takes_part_in_a_functional_model_and_in_predict(encoder, inputs):
    symbols = {name: keras.Input((None,), dtype="int32", name=name) for name in inputs}
    model = keras.Model(symbols, encoder(symbols)["pooled"])
    pooled = to_numpy(encoder(inputs)["pooled"])
    assert_close(model.predict(inputs, verbose=0), pooled, 1e-5)
    assert_close(encoder.predict(inputs, verbose=0)["pooled"], pooled, 1e-5)


@pytest.mark.tensorflow
def test_one_graph_serves_every_batch_and_length(encoder, inputs):
    import tensorflow as tf

    traces = []

    @tf.function(input_signature=[{n: tf.TensorSpec([None, None], tf.int32) for n in inputs}])
    def run(features):
        traces.append(1)
        return encoder(features)["sequence"]

    for batch, length in ((3, 12), (1, 5), (2, 2)):
        part = {name: value[:batch, :length] for name, value in inputs.items()}
        assert_close(run(part), sequence(encoder, part), 1e-5)
    assert len(traces) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match="longer than max_positions=24"):
        run({name: np.ones((1, 25), "int32") for name in inputs})


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        pytest.param("float32", None, marks=pytest.mark.slow),
        ("mixed_bfloat16", None),
        *(
            pytest.param("float32", x, marks=() if x in XLA_FIRST else pytest.mark.slow)
            for x in KINDS
        ),
    ],
)
def test_xla_computes_the_same(dtype, kind):
    import tensorflow as tf

    changes = KINDS.get(kind, {})
    if "global" not in changes.get("attention_pattern", ()):  # layers that are all alike
        changes = {**changes, "num_layers": 1}
    config = tiny_config(**changes)
    encoder, inputs = Encoder(config, dtype=dtype), tiny_inputs(config)
    randomise(encoder)
    run = tf.function(lambda x: encoder(x)["sequence"], jit_compile=True)
    tolerance = 1e-5 if dtype == "float32" else 0.1
    assert_close(to_numpy(run(inputs)), sequence(encoder, inputs), tolerance)


# In the fast tests `test_keras_citizen.py` trains by XLA, with dropout and frozen embeddings.
@pytest.mark.slow
@pytest.mark.tensorflow
def test_xla_trains_with_dropout(inputs):
    import tensorflow as tf

    encoder = Encoder(tiny_config(num_layers=1, dropout=0.1, attention_dropout=0.1))

    @tf.function(jit_compile=True)
    def gradients(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(features, training=True)["pooled"] ** 2)
        return tape.gradient(loss, [w.value for w in encoder.trainable_variables])

    for gradient in gradients(inputs):
        assert np.isfinite(tf.convert_to_tensor(gradient)).all()


@pytest.mark.slow
def test_a_small_encoder_learns_to_tell_two_words_apart():
    keras.utils.set_random_seed(0)
    config = EncoderConfig(
        vocabulary_size=10,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=8,
    )
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 10, (64, 8))
    labels = rng.integers(0, 2, 64)
    ids[np.arange(64), rng.integers(1, 8, 64)] = labels  # word 0 or 1 somewhere in the row
    symbol = keras.Input((8,), dtype="int32")
    logit = keras.layers.Dense(1)(Encoder(config)(symbol)["pooled"])
    model = keras.Model(symbol, logit)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    losses = model.fit(ids, labels, epochs=40, batch_size=32, verbose=0).history["loss"]
    assert losses[0] > 0.6
    assert losses[-1] < 0.2


@pytest.mark.tensorflow
def test_presets_load_under_a_strategy(mirrored, tmp_path, encoder, inputs):
    import tensorflow as tf

    encoder.save_to_preset(tmp_path)
    with mirrored.scope():
        loaded = Encoder.from_preset(tmp_path)
    run = tf.function(lambda: mirrored.run(lambda: loaded(inputs)["sequence"]))
    for replica in mirrored.experimental_local_results(run()):
        assert_close(replica, sequence(encoder, inputs), 1e-5)


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_no_value_of_a_class_hides_a_layer(kind):
    """On PyTorch it would: a layer lies where Python looks last, behind the class."""
    encoder = Encoder(tiny_config(**(KINDS[kind] if kind else {})))
    for layer in (encoder, *encoder._flatten_layers()):
        for name, value in vars(layer).items():
            if isinstance(value, keras.layers.Layer):
                assert not hasattr(type(layer), name), (type(layer), name)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_all_layers_models_and_heads_pass_on_other_backends(backend):
    """On JAX `make test` runs a part of them."""
    pytest.importorskip(backend)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/layers", "tests/models", "tests/heads"],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout


def packed_inputs(config, lengths=((7, 3, 2), (12,), (2, 7))):
    """Rows of 12 tokens that hold examples of these lengths, and the examples alone."""
    rng = np.random.default_rng(0)
    shape = (len(lengths), 12)
    packed = {
        name: np.zeros(shape, "int32")
        for name in ("token_ids", "segment_ids", "padding_mask", "position_ids", "example_ids")
    }
    packed["cls_positions"] = np.zeros((len(lengths), 3), "int32")
    has_global = config.part is not None and config.part["name"] == "global_tokens"
    if has_global:  # of each example the first and the third token
        packed["global_positions"] = np.full((len(lengths), 6), -1, "int32")
    alone = []
    for row, sizes in enumerate(lengths):
        begin = 0
        for number, size in enumerate(sizes):
            example = {
                "token_ids": rng.integers(0, config.vocabulary_size, size),
                "segment_ids": np.arange(size) > size // 2,
                "padding_mask": np.ones(size),
            }
            if has_global:
                places = np.array([0, 2 if size > 2 else -1])
                example["global_positions"] = places
                found = np.where(places < 0, -1, begin + places)
                packed["global_positions"][row, 2 * number : 2 * number + 2] = found
            inputs = {name: values[None].astype("int32") for name, values in example.items()}
            alone.append((row, begin, number, inputs))
            example |= {"position_ids": np.arange(size), "example_ids": np.full(size, number + 1)}
            for name, values in example.items():
                if name != "global_positions":
                    packed[name][row, begin : begin + size] = values
            is_last = config.pooling == "last"
            packed["cls_positions"][row, number] = begin + (size - 1 if is_last else 0)
            begin += size
    if not config.num_segments:
        for inputs in (packed, *(example for *_, example in alone)):
            del inputs["segment_ids"]
    return packed, alone


# Which read examples in an operation of their own, or pool them in another way.
PACKED_FIRST = (
    *("modern", "alibi", "grouped", "disentangled", "convolution", "relative bias"),
    *("global tokens", "xlnet"),
)


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        pytest.param("float32", None, marks=pytest.mark.slow),
        ("mixed_bfloat16", None),
        *(
            pytest.param("float32", kind, marks=() if kind in PACKED_FIRST else pytest.mark.slow)
            for kind in KINDS
        ),
    ],
)
def test_the_examples_of_a_packed_row_are_read_as_if_each_were_alone(dtype, kind):
    config = tiny_config(**KINDS.get(kind, {}))
    encoder = Encoder(config, dtype=dtype)
    randomise(encoder)
    packed, alone = packed_inputs(config)
    out = encoder(packed)
    spec = encoder.compute_output_spec(packed)
    assert tuple(out["pooled"].shape) == spec["pooled"].shape == (3, 3, 16)
    sequence, pooled = to_numpy(out["sequence"]), to_numpy(out["pooled"])
    atol = 1e-5 if dtype == "float32" else 0.06
    for row, begin, number, example in alone:
        expected = to_numpy(encoder(example))
        size = example["token_ids"].shape[1]
        assert_close(sequence[row, begin : begin + size], expected["sequence"][0], atol)
        assert_close(pooled[row, number], expected["pooled"][0], atol)


# Whose last layer has another program, or reads on in another way.
LAST_FIRST = (
    *("modern", "windows in the last layer", "alibi", "disentangled", "convolution"),
    *("relative bias", "global tokens", "bottleneck", "xlnet"),
)


@pytest.mark.jax_slow
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"pooler_activation": None}, {"num_layer_groups": 1}),
        *(
            pytest.param(changes, marks=() if kind in LAST_FIRST else pytest.mark.slow)
            for kind, changes in KINDS.items()
        ),
    ],
)
def test_the_last_layer_computes_only_what_is_read(changes, packed):
    """The same vectors and gradients, of fewer tokens; what is asked besides is whole."""
    config = tiny_config(**changes)
    encoder = Encoder(config)
    randomise(encoder)
    inputs = packed_inputs(config)[0] if packed else tiny_inputs(config)
    positions = np.array([[1, 3, 3, 11], [0, 2, 5, 0], [3, 3, 1, 2]], "int32")

    def gather(sequence):
        return ops.take_along_axis(sequence, positions[:, :, None], axis=1)

    whole = encoder(inputs)
    want = {**whole, "sequence": gather(whole["sequence"])}
    for more in ({}, {"return_hidden_states": True, "return_attention": True}):
        found = encoder(inputs, output_positions=positions, **more)
        spec = encoder.compute_output_spec(inputs, output_positions=positions, **more)
        for name in want:
            assert tuple(found[name].shape) == spec[name].shape
            assert_close(to_numpy(found[name]), to_numpy(want[name]), 1e-5)
    assert found["hidden_states"][-1].shape == whole["sequence"].shape

    def loss(function):
        return layer_gradients(encoder, lambda: ops.sum(ops.square(function()["sequence"])))

    freeze_unread(encoder)
    if encoder.pooler is not None:
        encoder.pooler.trainable = False  # not part of this loss
    if packed and config.padding_id is not None:
        encoder.embeddings.padding.trainable = False  # positions are given, none is padding's
    few = loss(lambda: encoder(inputs, output_positions=positions))
    all_ = loss(lambda: {"sequence": gather(encoder(inputs)["sequence"])})
    assert_gradients_close(few, all_)
    if encoder.pooler is not None:
        none = encoder(inputs, output_positions=positions[:, :0])
        assert none["sequence"].shape[1] == 0
        assert_close(to_numpy(none["pooled"]), to_numpy(whole["pooled"]), 1e-5)


@pytest.mark.parametrize("part", ["block", "attention"])
def test_parts_of_others_compute_every_token(part):
    """They are called as they always were; what is asked for is picked from what they give."""

    class OtherAttention(SelfAttention):
        def call(self, x, bias=None, training=False):
            return super().call(x, bias, training)

    class OtherBlock(Block):
        def call(self, x, bias=None, training=False):
            return super().call(x, bias, training)

    class Other(Part):
        kind = f"other_{part}"

        def count_parameters(self, config):
            return 0

        def make_block(self, config, *, layer, **kwargs):
            attention = (OtherAttention if part == "attention" else SelfAttention)(config.num_heads)
            kind = OtherBlock if part == "block" else Block
            return kind(attention, FeedForward(8, activation="gelu"), Dropout(0.0), **kwargs)

    config = tiny_config(part={"name": Other.kind})
    encoder = Encoder(config)
    inputs, positions = tiny_inputs(config), np.array([[1, 3], [0, 2], [4, 4]], "int32")
    whole, found = encoder(inputs), encoder(inputs, output_positions=positions)
    want = np.take_along_axis(to_numpy(whole["sequence"]), positions[:, :, None], axis=1)
    assert_close(to_numpy(found["sequence"]), want, 1e-6)


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("kind", "length"),
    [
        *(("modern", n) for n in (12, 1, 3, 6, 7, 23)),
        *(("alibi", n) for n in (12, 23)),
        *(("windows in the last layer", n) for n in (3, 7)),
        ("global tokens", 23),  # tests/models/parts has loops
        *(
            pytest.param(kind, n, marks=pytest.mark.slow)
            for kind, lengths in {
                "alibi": (1, 3, 6, 7),
                "windows in the last layer": (12, 1, 6, 23),
                "global tokens": (12, 1, 3, 6, 7),
            }.items()
            for n in lengths
        ),
    ],
)
def test_windows_in_blocks_compute_what_whole_rows_of_scores_do(kind, length):
    """Of every length, also one that no number of blocks fills."""
    config = tiny_config(**KINDS[kind])
    encoder, inputs = Encoder(config), tiny_inputs(config, length=length)
    randomise(encoder)
    whole = encoder(inputs, return_attention=True)
    real = inputs["padding_mask"] == 1
    assert_close(sequence(encoder, inputs)[real], to_numpy(whole["sequence"])[real], 1e-5)
    distances = np.abs(np.arange(length)[:, None] - np.arange(length))
    for layer, weights in enumerate(whole["attention"]):
        # The first row has no padding; tests/models/parts has the weights of global tokens.
        if config.window(layer) is not None and kind != "global tokens":
            assert to_numpy(weights)[0][:, distances > 2].max(initial=0.0) == 0
            assert to_numpy(weights)[0][:, distances <= 2].min() > 0


@pytest.mark.parametrize(
    "kind",
    [
        "modern",
        *(pytest.param(kind, marks=pytest.mark.jax_slow) for kind in ("alibi", "global tokens")),
    ],
)
@pytest.mark.parametrize("length", [4, 23])  # whole rows of scores, and blocks
def test_a_mask_may_be_of_booleans(kind, length):
    config = tiny_config(**KINDS[kind])
    encoder, inputs = Encoder(config), tiny_inputs(config, length=length)
    randomise(encoder)
    masked = {**inputs, "padding_mask": inputs["padding_mask"] > 0}
    wanted, found = encoder(inputs), encoder(masked)
    for name in ("sequence", *(["pooled"] if "pooled" in wanted else [])):
        np.testing.assert_array_equal(to_numpy(found[name]), to_numpy(wanted[name]))
    if config.part is None:
        inputs["causal_mask"] = np.array([[1], [0], [1]]) * np.ones_like(inputs["token_ids"])
        masked["causal_mask"] = inputs["causal_mask"] > 0
        wanted, found = sequence(encoder, inputs), sequence(encoder, masked)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "kind", ["modern", pytest.param("alibi", marks=pytest.mark.slow), "global tokens"]
)
def test_one_graph_reads_windows_of_every_length(kind):
    import tensorflow as tf

    config = tiny_config(**KINDS[kind])
    encoder = Encoder(config)
    randomise(encoder)
    inputs = tiny_inputs(config, length=23)
    spec = {name: tf.TensorSpec([None, None], tf.int32) for name in inputs}
    run = tf.function(lambda x: encoder(x)["sequence"], input_signature=[spec])
    for length in (1, 2, 5, 23):
        part = {name: x[:, :length] for name, x in inputs.items()}
        real = part["padding_mask"] == 1
        assert_close(to_numpy(run(part))[real], sequence(encoder, part)[real], 1e-5)


@pytest.mark.jax_slow
def test_kinds_round_trip_in_presets(tmp_path):
    for number, changes in enumerate(KINDS.values()):
        # Of equal configs and weights the outputs are equal, as others here assert.
        encoder = Encoder(tiny_config(**changes))
        randomise(encoder)
        encoder.save_to_preset(tmp_path / str(number))
        again = Encoder.from_preset(tmp_path / str(number))
        assert again.config == encoder.config
        found, expected = (get_arrays(x, "encoder") for x in (again, encoder))
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_examples_without_positions_of_their_own_are_refused(encoder):
    packed, _ = packed_inputs(tiny_config())
    del packed["position_ids"]
    with pytest.raises(ValueError, match=r"require `position_ids`, .*Received: token"):
        encoder(packed)


@pytest.mark.parametrize("pooling", ["mean", "late"])
def test_means_of_examples_without_their_first_tokens_are_refused(pooling):
    packed, _ = packed_inputs(tiny_config())
    del packed["cls_positions"]
    with pytest.raises(ValueError, match=r"require `cls_positions` .*Received: token"):
        Encoder(tiny_config(pooling=pooling))(packed)


def test_what_is_not_of_the_example_gets_no_attention():
    encoder = Encoder(tiny_config())
    randomise(encoder)
    packed, _ = packed_inputs(tiny_config())
    ids = packed["example_ids"]
    other = ids[:, None, :, None] != ids[:, None, None, :]
    for weights in encoder(packed, return_attention=True)["attention"]:
        assert to_numpy(weights)[np.broadcast_to(other, weights.shape)].max() == 0


@pytest.mark.jax_slow
def test_late_pooling_is_the_mean_of_what_the_pooler_makes_of_tokens():
    config = tiny_config(pooling="late", num_segments=0)
    encoder, inputs = Encoder(config), tiny_inputs(config)
    randomise(encoder)
    out = to_numpy(encoder(inputs))
    kernel, bias = to_numpy(encoder.pooler.kernel.value), to_numpy(encoder.pooler.bias.value)
    made = np.tanh(out["sequence"] @ kernel + bias)
    mask = inputs["padding_mask"][..., None]
    assert_close(out["pooled"], (made * mask).sum(1) / mask.sum(1), 1e-5)
    read = to_numpy(encoder(inputs, output_positions=np.array([[2], [0], [1]])))
    assert_close(read["pooled"], out["pooled"], 1e-6)
    assert_close(read["sequence"][0, 0], out["sequence"][0, 2], 1e-6)
