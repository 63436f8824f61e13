"""The Reformer beside transformers' classes, and what it can do by itself."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.configs import ReformerConfig
from kbert.core.contexts import recomputation
from kbert.heads import MaskedLMHead, SpanHead
from kbert.models import Encoder, Reformer, describe
from kbert.models.reformer.attention import LocalAttention, LSHAttention, _order
from kbert.models.weights import get_arrays, named_weights, set_arrays
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    dtype_of,
    layer_gradients,
    randomise,
    to_numpy,
)
from tests.models.references import as_tensors, gradients, randomised

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCABULARY, PLACES = 50, 32
LOCAL = {
    "hidden_size": 16,
    "attn_layers": ["local", "local", "local"],
    "num_attention_heads": 3,
    "attention_head_size": 4,
    "feed_forward_size": 24,
    "axial_pos_shape": [4, 8],
    "axial_pos_embds_dim": [6, 10],
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 8,
    "max_position_embeddings": PLACES,
    "num_buckets": 8,
    "hash_seed": 3,
    "hidden_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.0,
}
LSH = {**LOCAL, "attn_layers": ["local", "lsh", "lsh"]}
CASES = {
    "local": LOCAL,
    "local on both sides": {**LOCAL, "local_num_chunks_after": 1},
    "local, learned positions": {**LOCAL, "axial_pos_embds": False},
    "local, causal": {**LOCAL, "is_decoder": True, "local_num_chunks_before": 2},
    "lsh": LSH,
    "lsh, rounds": {**LSH, "num_hashes": 3, "lsh_num_chunks_after": 1},
    "lsh, factors of buckets": {**LSH, "num_buckets": [2, 4], "num_hashes": 2},
    "lsh, causal": {**LSH, "is_decoder": True, "num_hashes": 2},
    "feed-forward in chunks": {**LSH, "chunk_size_feed_forward": 8, "hidden_act": "gelu"},
}


def make_reference(ending="Model", **values):
    config = transformers.ReformerConfig(vocab_size=VOCABULARY, pad_token_id=0, **values)
    classes = {
        "Model": transformers.ReformerModel,
        "ForMaskedLM": transformers.ReformerForMaskedLM,
        "ModelWithLMHead": transformers.ReformerModelWithLMHead,
        "ForQuestionAnswering": transformers.ReformerForQuestionAnswering,
    }
    # In float64: where a token sees nothing but itself, the scores there are -1e5, which float32
    # has no places behind the point of, and the shares of rounds do not add up to 1.
    return randomised(classes[ending](config).eval()).double()


def make_encoder(model):
    values = {name: array.float().numpy() for name, array in model.state_dict().items()}
    checkpoint = import_model(model.config.to_dict(), values, "the reference")
    encoder = Encoder(checkpoint.config)
    set_arrays(encoder, "encoder", checkpoint.part("encoder/"), checkpoint.source)
    return encoder, checkpoint


@pytest.fixture
def same_rotations(monkeypatch):
    """Those of transformers' generator, which it begins anew with the seed in each layer."""

    def rotations(self, training):
        half = sum(self.bucket_factors) // 2
        torch.manual_seed(self.hash_seed or 0)
        shape = (self.num_heads, self.head_size, self.num_hashes, half)
        return torch.randn(shape, dtype=torch.float64).numpy()

    monkeypatch.setattr(LSHAttention, "rotations", rotations)


def make_inputs(length, padded, batch=3):
    rng = np.random.default_rng(length)
    columns = np.arange(length)
    lengths = np.linspace(length, length // 3, batch).astype(int)[:, None]
    mask = np.broadcast_to(columns < (lengths if padded else length), (batch, length))
    ids = rng.integers(1, VOCABULARY, (batch, length))
    features = {"token_ids": np.where(mask, ids, 0), "padding_mask": mask}
    return {name: np.ascontiguousarray(x, "int32") for name, x in features.items()}


# Are read in every length.
LENGTHS_FIRST = ("local", "local on both sides", "lsh, rounds", "lsh, causal")
# Have the gradients of all kinds of attention and of positions; the others have other numbers.
GRADIENTS_FIRST = ("local, learned positions", "lsh, rounds", "lsh, causal")


@pytest.mark.jax_slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("same_rotations")
def test_outputs_equal_hugging_face(case):
    model = make_reference(**CASES[case])
    encoder, _ = make_encoder(model)
    assert type(encoder) is Reformer
    assert describe(encoder.config).held_parameters == encoder.count_params()
    assert encoder.count_params() == sum(p.numel() for p in model.parameters())
    # Whole chunks, one chunk, less than one, and what is padded within.
    lengths = ((32, True), (24, False), (8, True), (3, False), (22, True), (5, False))
    if case not in LENGTHS_FIRST:
        lengths = lengths[1::2] + lengths[4:5]
    for length, padded in lengths if keras.backend.backend() == "tensorflow" else lengths[:1]:
        if "chunks" in case and length % 8:
            continue  # which transformers refuses
        features = make_inputs(length, padded)
        ours = to_numpy(encoder(features, return_hidden_states=True))
        with torch.no_grad():
            theirs = model(**as_tensors(features), output_hidden_states=True)
        real = features["padding_mask"] == 1
        found, expected = ours["sequence"], theirs.last_hidden_state.numpy()
        assert_close(found[real], expected[real], 1e-4, f"{length} tokens")
        states = zip(ours["hidden_states"][:-1], theirs.hidden_states, strict=False)
        for i, (a, b) in enumerate(states):
            assert_close(a[real][:, 16:], b[:, :length].numpy()[real], 1e-4, f"state {i}")
        assert len(ours["hidden_states"]) == len(theirs.hidden_states)
        np.testing.assert_array_equal(ours["hidden_states"][-1], ours["sequence"])


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in GRADIENTS_FIRST else pytest.mark.slow)
        for case in CASES
    ],
)
@pytest.mark.usefixtures("same_rotations")
def test_gradients_equal_hugging_face(case):
    """In training, where both run their layers backwards."""
    model = make_reference(**CASES[case]).train()
    encoder, _ = make_encoder(model)
    features = make_inputs(PLACES, padded=True)
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(3, PLACES, 32)).astype("float32")
    weight *= features["padding_mask"][..., None]
    out = model(**as_tensors(features))
    (out.last_hidden_state * torch.tensor(weight)).sum().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}
    expected = import_model(model.config.to_dict(), theirs, "the reference").arrays

    def loss():
        out = encoder(features, training=True)
        return ops.sum(out["sequence"] * ops.convert_to_tensor(weight))

    assert_gradients_close(gradients(loss, named_weights(encoder, "encoder")), expected)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("same_rotations")
@pytest.mark.parametrize("case", ["local, causal", "lsh, causal"])
def test_the_head_of_a_causal_model(case, tmp_path):
    """kbert has no task for it: its encoder is loaded, and its head named."""
    model = make_reference("ModelWithLMHead", **CASES[case])
    model.float().save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.task is None
    assert "ReformerModelWithLMHead that kbert has no task for (lm_head" in checkpoint.foreign_head
    encoder = Encoder.from_preset(tmp_path)
    assert encoder.config.attention == "causal"
    head = MaskedLMHead(encoder.config, encoder.token_embedding)
    head.table.assign(checkpoint.arrays["lm_head.decoder.weight"])
    features = make_inputs(PLACES, padded=False)
    with torch.no_grad():
        theirs = model.double()(**as_tensors(features)).logits.numpy()
    added = model.lm_head.decoder.bias  # None in 5.23, which adds a bias to nothing
    if added is not None:
        head.bias.assign(added.detach().float().numpy())
    assert_close(to_numpy(head(encoder(features)["sequence"])), theirs, 1e-4)
    other = {**features, "token_ids": features["token_ids"].copy()}
    other["token_ids"][:, 20:] = 1
    if case == "local, causal":  # the buckets of later tokens move earlier ones to other chunks
        found, expected = (to_numpy(encoder(x)["sequence"])[:, :20] for x in (other, features))
        assert_close(found, expected, 1e-6)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("same_rotations")
@pytest.mark.parametrize("ending", ["Model", "ForMaskedLM"])
def test_folders_go_both_ways(ending, tmp_path):
    model = make_reference(ending, **CASES["lsh, factors of buckets"]).float()
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    arrays = dict(checkpoint.arrays)
    write_checkpoint(tmp_path / "ours", checkpoint.config, arrays, "huggingface")
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    # Of 5.23, which has no bias there.
    assert set(report["unexpected_keys"]) <= {"lm_head.decoder.bias"}
    assert again.config.to_dict().keys() == model.config.to_dict().keys()
    for key in CASES["lsh, factors of buckets"]:
        assert getattr(again.config, key) == getattr(model.config, key), key
    theirs = again.state_dict()
    for name, weight in model.state_dict().items():
        if name != "lm_head.bias" or model.lm_head.decoder.bias is None:  # which has no use else
            np.testing.assert_array_equal(theirs[name].numpy(), weight.numpy(), err_msg=name)
    if ending == "Model":
        return
    assert checkpoint.task["kind"] == "pretrain"
    encoder, _ = make_encoder(model)
    head = MaskedLMHead(encoder.config, encoder.token_embedding)
    assert head.untied
    set_arrays(head, "masked_lm", checkpoint.part("masked_lm/"), "there")
    features = make_inputs(PLACES, padded=True)
    with torch.no_grad():
        expected = again.eval().double()(**as_tensors(features)).logits.numpy()
    found = to_numpy(head(encoder(features)["sequence"]))
    if again.lm_head.decoder.bias is None:  # 5.23 adds it to nothing
        found = found - to_numpy(head.bias)
    real = features["padding_mask"] == 1
    assert_close(found[real], expected[real], 1e-4)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("same_rotations")
def test_the_head_that_finds_answers():
    model = make_reference("ForQuestionAnswering", **LSH)
    encoder, checkpoint = make_encoder(model)
    head = SpanHead(encoder.config)
    set_arrays(head, "span", checkpoint.part("span/"), "there")
    features = make_inputs(PLACES, padded=True)
    with torch.no_grad():
        theirs = model(**as_tensors(features))
    ours = to_numpy(head(encoder(features)["sequence"]))
    real = features["padding_mask"] == 1
    for found, expected in zip(ours, (theirs.start_logits, theirs.end_logits), strict=True):
        assert_close(found[real], expected.numpy()[real], 1e-4)


def tiny_config(**changes):
    fields = {
        "vocabulary_size": VOCABULARY,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 2,
        "head_size": 4,
        "intermediate_size": 16,
        "max_positions": PLACES,
        "num_buckets": 4,
        "num_hashes": 2,
        "local_chunk_length": 4,
        "lsh_chunk_length": 4,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return ReformerConfig(**{**fields, **changes})


def tiny_encoder(dtype="float32", **changes):
    encoder = Encoder(tiny_config(**changes), dtype=dtype)
    randomise(encoder)
    return encoder


AXIAL = {"positions": "axial", "axial_shape": (4, 8), "axial_sizes": (3, 5)}
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.2, "lsh_dropout": 0.2}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(DROPOUT, marks=pytest.mark.jax_slow),
        pytest.param({**AXIAL, **DROPOUT, "attention": "causal"}, marks=pytest.mark.jax_slow),
        pytest.param({"num_layers": 3, "feed_forward_chunk": 4}, marks=pytest.mark.jax_slow),
    ],
)
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="torch does not train")
def test_running_backwards_has_the_gradients_of_the_graph(changes):
    """With the same masks of dropout and the same buckets, new ones in each step."""
    encoder = tiny_encoder(**changes)
    features = make_inputs(22, padded=True)
    weight = np.random.default_rng(1).normal(size=(3, 22, 16)).astype("float32")
    seeds = [v for v in encoder.variables if "seed" in v.name]
    start = [ops.convert_to_numpy(v.value) for v in seeds]
    found = []
    for options in ({"return_hidden_states": True}, {}):  # which it keeps
        for seed, value in zip(seeds, start, strict=True):
            seed.assign(value)
        outputs = to_numpy(encoder(features, training=True, **options)["sequence"])
        counters = [ops.convert_to_numpy(v.value) for v in seeds]

        def loss(options=options):
            out = encoder(features, training=True, **options)["sequence"]
            return ops.sum(out * ops.convert_to_tensor(weight))

        for seed, value in zip(seeds, start, strict=True):
            seed.assign(value)
        found.append((outputs, layer_gradients(encoder, loss), counters))
    (outputs, expected, counters), (again, gradients, counters_again) = found
    assert_close(again, outputs, 1e-5)
    assert_gradients_close(gradients, expected)
    np.testing.assert_array_equal(counters_again, counters)
    assert all((now != before).any() for now, before in zip(counters, start, strict=True))
    with recomputation() as run:
        encoder(features, training=True)
    assert run == [block.name for block in encoder.blocks]


@pytest.mark.jax_slow
def test_streams_are_float32_whatever_the_policy():
    """So that what was added can be taken away again; the same streams in both ways to run."""
    encoder, features = tiny_encoder("mixed_bfloat16", hash_seed=1), make_inputs(24, padded=True)
    x = np.random.default_rng(0).normal(size=(3, 24, 8)).astype("float32")
    first, second, _ = encoder.blocks[1](x, x)
    assert {dtype_of(first), dtype_of(second)} == {"float32"}
    out = encoder(features, training=True)["sequence"]
    kept = encoder(features, training=True, return_hidden_states=True)["sequence"]
    assert dtype_of(out) == "bfloat16"
    assert_close(to_numpy(out), to_numpy(kept), 0.02)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_training_takes_no_more_memory_for_more_layers():
    """But for their weights, gradients and buckets: 0.9 MiB a layer."""

    def measured(*arguments):
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("train_for_memory.py")), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        assert not done.returncode, done.stderr
        return int(done.stdout.split()[-1]) / 2**20

    few, many, kept = measured("2"), measured("12"), measured("12", "plain")
    print(f"2 layers {few:.0f} MiB, 12 layers {many:.0f}, all activations of them {kept:.0f}")
    assert many < 1.35 * few
    assert kept > 2 * many


@pytest.mark.tensorflow
@pytest.mark.parametrize(  # in float32 it computes in `test_xla_trains`
    "dtype", [pytest.param("float32", marks=pytest.mark.slow), "mixed_bfloat16"]
)
def test_xla_computes_the_same(dtype):
    encoder = tiny_encoder(dtype, **AXIAL)
    features = make_inputs(22, padded=True)
    expected = to_numpy(tiny_encoder(**AXIAL)(features)["sequence"])
    found = to_numpy(compiled(lambda x: encoder(x)["sequence"])(features))
    real = features["padding_mask"] == 1
    if dtype == "float32":
        assert_close(found[real], expected[real], 1e-5)
    else:  # a token that rounding puts into another bucket attends to others
        assert np.median(np.abs(found - expected)[real]) < 0.03


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_xla_trains(dtype):
    import tensorflow as tf

    encoder = tiny_encoder(dtype, **AXIAL, hash_seed=1)
    features = make_inputs(24, padded=True)
    weights = encoder.trainable_variables

    def step(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(encoder(features, training=True)["sequence"], "float32"))
        return [tf.convert_to_tensor(x) for x in tape.gradient(loss, [w.value for w in weights])]

    found = tf.function(step, jit_compile=True)(features)
    for weight, gradient, expected in zip(weights, found, step(features), strict=True):
        assert np.isfinite(gradient).all()
        if dtype == "float32":
            assert_close(gradient, expected, 1e-3 * np.abs(expected).max() + 1e-5, weight.path)


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LocalAttention, {"chunks_after": 1}),
        (LocalAttention, {"causal": True}),
        (LSHAttention, {"bucket_factors": (4,), "num_hashes": 3}),
        (LSHAttention, {"bucket_factors": (2, 2), "num_hashes": 2, "causal": True}),
    ],
)
@pytest.mark.parametrize("length", [16, 4])
def test_attention_is_what_the_values_are_weighted_with(kind, options, length):
    attention = kind(2, head_size=4, chunk_length=4, **options)
    x = np.random.default_rng(0).normal(size=(2, length, 6)).astype("float32")
    mask = np.ones((2, length), "int32")
    mask[1, -2:] = 0
    attention.build(x.shape)
    randomise(attention)
    outputs, *_, weights = attention(x, mask, return_attention=True)
    assert tuple(weights.shape) == (2, 2, length, length)
    value = attention._heads(ops.convert_to_tensor(x))[-1]
    again = attention._merged(ops.matmul(weights, value))
    assert_close(to_numpy(again), to_numpy(outputs), 1e-5)
    weights = to_numpy(weights)
    assert_close(weights.sum(-1), np.ones((2, 2, length)), 1e-5)
    assert weights[1, :, :-2, -2:].max() == 0
    if options.get("causal"):
        assert np.triu(weights, 1).max() == 0
    if kind is LSHAttention:  # itself where there is nothing else
        diagonal = np.diagonal(weights, axis1=-2, axis2=-1)
        assert ((diagonal < 1e-6) | (diagonal > 1e-6) & (diagonal <= 1.00001)).all()
        assert (diagonal < 1e-6).any()


@pytest.mark.jax_slow
def test_attention_and_states_of_rows_that_are_padded_within():
    encoder, features = tiny_encoder(), make_inputs(13, padded=True)
    asked = {"return_hidden_states": True, "return_attention": True}
    out, spec = encoder(features, **asked), encoder.compute_output_spec(features, **asked)
    for name in ("sequence", "hidden_states", "attention"):
        for x, expected in zip(*map(keras.tree.flatten, (out[name], spec[name])), strict=True):
            assert tuple(x.shape) == expected.shape
    for weights in to_numpy(out["attention"]):
        hidden = np.broadcast_to((features["padding_mask"] == 0)[:, None, None], weights.shape)
        real = features["padding_mask"] == 1
        assert np.moveaxis(np.where(hidden, weights, 0), 1, -1)[real].max() == 0
    positions = np.array([[0, 3]] * 3, "int32")
    few = encoder(features, output_positions=positions)["sequence"]
    np.testing.assert_array_equal(to_numpy(few), to_numpy(out["sequence"])[:, [0, 3]])


def test_tokens_of_a_bucket_stay_in_their_order():
    buckets = np.random.default_rng(0).integers(0, 3, (2, 2, 3, 50)).astype("int32")
    expected = np.argsort(buckets, axis=-1, kind="stable") + 50 * np.arange(3)[:, None]
    for function in (_order, compiled(_order)):
        found = ops.convert_to_numpy(function(ops.convert_to_tensor(buckets)))
        np.testing.assert_array_equal(found, expected.reshape(2, 2, 150))


def test_directions_are_new_in_training_alone():
    attention = LSHAttention(2, head_size=4, chunk_length=4, bucket_factors=(4, 6))
    a, b = (to_numpy(attention.rotations(training=True)) for _ in range(2))
    c, d = (to_numpy(attention.rotations(training=False)) for _ in range(2))
    assert a.shape == (2, 4, 1, 5)
    assert (a != b).all()
    np.testing.assert_array_equal(c, d)
    seeded = LSHAttention(2, head_size=4, chunk_length=4, bucket_factors=(4, 6), hash_seed=0)
    np.testing.assert_array_equal(to_numpy(seeded.rotations(training=True)), c)


@pytest.mark.tensorflow
def test_one_graph_reads_rows_of_every_length():
    import tensorflow as tf

    encoder = tiny_encoder(**AXIAL)
    spec = dict.fromkeys(("token_ids", "padding_mask"), tf.TensorSpec([None, None], tf.int32))
    run = tf.function(lambda x: encoder(x)["sequence"], input_signature=[spec])
    for length in (1, 3, 4, 5, 16, 22, 32):
        features = make_inputs(length, padded=True)
        real = features["padding_mask"] == 1
        found, expected = run(features), encoder(features)["sequence"]
        assert_close(to_numpy(found)[real], to_numpy(expected)[real], 1e-5)


@pytest.mark.jax_slow
def test_presets_and_keras_files(tmp_path):
    encoder = tiny_encoder(**AXIAL, num_buckets=(2, 4))
    features = make_inputs(22, padded=True)
    encoder.save_to_preset(tmp_path / "preset")
    encoder.save(tmp_path / "model.keras")
    for again in (
        Encoder.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert type(again) is Reformer
        assert again.config == encoder.config
        assert hash(again.config) == hash(encoder.config)
        found, expected = (to_numpy(x(features)["sequence"]) for x in (again, encoder))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_tasks_take_it(tmp_path, tiny_vocabulary):
    import tensorflow as tf

    from kbert.tasks import Pretraining, TextClassifier  # which torch does not train

    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    encoder = tiny_encoder(vocabulary_size=len(tiny_vocabulary), **DROPOUT)
    task = Pretraining(encoder, tokenizer, next_sentence=False)
    batch = {
        **make_inputs(16, padded=True),
        "mask_positions": np.array([[1, 3]] * 3, "int32"),
        "mask_ids": np.full((3, 2), 9, "int32"),
        "mask_weights": np.ones((3, 2), "float32"),
    }
    task.compile(keras.optimizers.Adam(0.01), run_eagerly=False)
    history = task.fit(tf.data.Dataset.from_tensors(batch).repeat(12), epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert task.evaluate(tf.data.Dataset.from_tensors(batch), verbose=0, return_dict=True)[
        "mlm_loss"
    ] < np.log(len(tiny_vocabulary))
    task.save_to_preset(tmp_path / "pretrained", format="huggingface")
    again = Pretraining.from_preset(tmp_path / "pretrained")
    (expected,), (found,) = (x.predict(["the [MASK] ."], top_k=2) for x in (task, again))
    assert found["tokens"] == expected["tokens"]
    classifier = TextClassifier.from_preset(
        tmp_path / "pretrained", labels=["no", "yes"], new_head=True
    )
    classifier.save_to_preset(tmp_path / "classifier")
    again = TextClassifier.from_preset(tmp_path / "classifier")
    (expected,), (found,) = classifier.predict(["the fox"]), again.predict(["the fox"])
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)
    classifier.export(tmp_path / "serving")


def test_what_it_cannot_be_asked_for():
    encoder, features = tiny_encoder(), make_inputs(8, padded=False)
    with pytest.raises(ValueError, match=r"not support `internals`: .*: return_internals=True"):
        encoder(features, return_internals=True)
    packed = {**features, "example_ids": features["padding_mask"]}
    with pytest.raises(ValueError, match=r"not support `example_ids`.*Received: token_ids"):
        encoder(packed)
    with pytest.raises(ValueError, match=r"without segments does not support `segment_ids`"):
        encoder({**features, "segment_ids": features["padding_mask"]})
    with pytest.raises(ValueError, match=r"33|longer"):
        encoder(np.ones((1, 33), "int32"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_pattern": ("local", "global")}, r'"local" or "lsh".*Received: .*global'),
        ({"attention_pattern": ()}, "must name"),
        ({"hidden_size": 15, "num_heads": 1}, "must be even: .* Received: 15"),
        ({"num_buckets": 7}, "one or more even numbers.*Received: 7"),
        ({"num_buckets": (4, 0)}, "one or more even numbers"),
        ({"num_buckets": ()}, r"one or more even numbers.*Received: \(\)"),
        ({"positions": "axial"}, "`axial_shape` must be two numbers. Received: None"),
        ({**AXIAL, "axial_shape": (2, 8)}, "must be at least `max_positions`"),
        ({**AXIAL, "axial_sizes": (4, 8)}, r"add up to .*Received: \(4, 8\), hidden_size=16"),
        ({"axial_shape": (4, 8)}, "require positions='axial'"),
        ({"num_segments": 2}, "not support `num_segments`"),
        ({"attention": "masked"}, "attention"),
        ({"hash_seed": -1}, "hash_seed"),
        ({"lsh_dropout": 1.0}, "lsh_dropout"),
        ({"positions": "rotary"}, "positions"),
    ],
)
def test_values_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


def test_buckets_that_no_config_names():
    """As many as transformers counts from a row of all positions."""
    for places, chunk in ((64, 4), (512, 4), (4096, 64), (65536, 4), (4, 4), (1024, 3)):
        config = tiny_config(max_positions=places, lsh_chunk_length=chunk, num_buckets=None)
        theirs = transformers.ReformerConfig(
            max_position_embeddings=places, lsh_attn_chunk_length=chunk, attn_layers=["lsh"]
        )
        layer = transformers.models.reformer.modeling_reformer.LSHSelfAttention(theirs)
        layer._set_num_buckets(places)
        found = layer.num_buckets
        assert config.bucket_factors == (tuple(found) if isinstance(found, list) else (found,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_layers": "local"}, "`attn_layers` must name"),
        ({"num_hidden_layers": 4}, "`num_hidden_layers` must be the number"),
        ({"hidden_size": "wide"}, "`hidden_size` must be a number"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"attn_layers": ["local", "full"]}, '"local" or "lsh"'),
    ],
)
def test_configs_of_other_models_are_refused(changes, message):
    content = {"model_type": "reformer", **LSH, **changes}
    with pytest.raises(ValueError, match=message):
        import_model(content, {}, "there")


def test_a_pooler_has_no_place_there(tmp_path):
    encoder = tiny_encoder(pooler_activation="tanh")
    assert describe(encoder.config).held_parameters == encoder.count_params()
    with pytest.raises(ValueError, match="not support this model: it has no pooler"):
        encoder.save_to_preset(tmp_path, format="huggingface")
    assert get_arrays(encoder, "encoder")["encoder/pooler/kernel"].shape == (16, 16)
