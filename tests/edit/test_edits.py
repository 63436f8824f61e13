"""Edits on every family: what they leave, what is trained, saved, revived, and taken off again."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.conversion.lengthening import lengthen
from kbert.core.contexts import without_rounding
from kbert.edit import adapters, pruning, quantization
from kbert.edit.base import products
from kbert.models.generators.as_decoder import config_of_decoder
from kbert.models.generators.warm_start import config_of_encoder
from kbert.models.parts import Part
from kbert.models.weights import get_arrays
from tests.edit.adapters.conftest import WORDS, reviews
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy

# XLNet has a class of its own, grouped products no kernel that is one.
PLAIN = {
    name: dict(changes)
    for name, changes in KINDS.items()
    if name not in ("xlnet", "grouped products")
}
PLAIN["convolution"] = {**KINDS["convolution"], "part": {"name": "dynamic_convolution"}}
PRUNED = {"kind": "pruned", "heads": [1, 3], "intermediate_sizes": [32, 7]}
PLAIN["pruned"] = {"edits": [PRUNED]}
# How each edit is put on and taken off, and under what it changes nothing.
EDITS = {
    "rounding": (quantization.quantization_aware, quantization.rounded, without_rounding),
    "movement": (pruning.with_movement, pruning.apply_movement, contextlib.nullcontext),
}
IDS = np.random.default_rng(0).integers(0, 40, (3, 9))
BOTH = [{"kind": "movement"}, {"kind": "rounding"}]
# Their products are those of BERT or of "modern": others are positions, windows, masks, sharing.
ORDINARY = ("windows in the last layer", "alibi", "padding by id", "sines", "shared")
# Those whose second edit is slow, by the edit that is not.
FAST_EDIT = {
    **{"modern": "rounding", "grouped": "movement", "bottleneck": "rounding"},
    **{"convolution": "movement", "relative bias": "rounding", "global tokens": "movement"},
    "pruned": "rounding",
}
HOW = {"epochs": 1, "batch_size": 8, "learning_rate": 3e-3, "verbose": 0, "seed": 1}


def ordinary_slow(kinds):
    return [pytest.param(x, marks=pytest.mark.slow) if x in ORDINARY else x for x in kinds]


def marks_of(kind, edit):
    """On JAX every shape is compiled: there one family stands for the others."""
    if kind == "disentangled":
        return []
    is_fast = FAST_EDIT.get(kind) == edit
    return [pytest.mark.jax_slow, *([] if is_fast else [pytest.mark.slow])]


class ForeignBlock(keras.layers.Layer):
    """A user's, without a layer that an edit acts on."""

    def build(self, input_shape):
        """It has no weights."""

    def call(self, x, bias=None, training=False):
        return x


class Foreign(Part):
    kind = "foreign"

    def count_parameters(self, config):
        return 0

    def make_block(self, config, *, layer, **kwargs):
        return ForeignBlock(**kwargs)


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


def make_encoder(kind, seed=0, **changes):
    made = kbert.Encoder(tiny_config(**{**PLAIN[kind], **changes}))
    randomise(made, seed=seed)
    return made


def sequence(model):
    inputs = IDS if isinstance(model, kbert.Decoder) else tiny_inputs(model.config)
    return to_numpy(model(inputs))["sequence"]


@pytest.mark.parametrize(
    ("kind", "edit"),
    [pytest.param(k, e, marks=marks_of(k, e)) for k in PLAIN for e in EDITS],
)
def test_an_edit_is_put_on_and_taken_off(kind, edit, tmp_path):
    put_on, take_off, neutral = EDITS[edit]
    plain = make_encoder(kind)
    edited = put_on(plain)
    assert edited.config.edits == (*plain.config.edits, {"kind": edit})
    assert edited.count_params() == kbert.describe(edited.config).parameters
    assert all(len(layer.edits) == 1 for layer in products(edited))
    before = sequence(plain)
    with neutral():
        assert_close(sequence(edited), before, 1e-6)
    paths = [weight.path for weight in edited.weights]
    assert len(set(paths)) == len(paths)
    assert get_arrays(edited, "encoder").keys() >= get_arrays(plain, "encoder").keys()
    after = sequence(edited)
    edited.save_to_preset(tmp_path / "preset")
    edited.save(tmp_path / "model.keras")
    edited.save_weights(tmp_path / "model.weights.h5")
    fresh = kbert.Encoder(edited.config)
    fresh.load_weights(tmp_path / "model.weights.h5")
    read = kbert.Encoder.from_preset(tmp_path / "preset")
    for again in (read, keras.models.load_model(tmp_path / "model.keras"), fresh):
        assert again.config == edited.config
        assert_close(sequence(again), after, 1e-6)
    bare = take_off(edited)
    assert bare.config == plain.config
    if edit == "movement":
        assert_close(sequence(bare), before, 0)


@pytest.mark.jax_slow
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("changes", [{}, {"block": "post_norm"}, {"positions": "rotary"}])
def test_a_decoder_is_edited_and_writes_on(changes, edit, tmp_path):
    put_on, take_off, neutral = EDITS[edit]
    plain = kbert.Decoder(tiny_config("decoder", **changes))
    randomise(plain)
    edited = put_on(plain)
    assert edited.count_params() == kbert.describe(edited.config).parameters
    assert edited.embeddings.edits == []  # the table also computes logits
    with neutral():
        assert_close(sequence(edited), sequence(plain), 1e-6)
    whole = to_numpy(edited.logits(edited(IDS)["sequence"]))
    first, _ = edited.prefill(IDS[:, :5], None, 3)  # the cache is of what is edited
    assert_close(to_numpy(first), whole[:, 4], 1e-4)
    edited.save_to_preset(tmp_path / "preset")
    assert_close(sequence(kbert.Decoder.from_preset(tmp_path / "preset")), sequence(edited), 1e-6)
    bare = take_off(edited)
    assert bare.config == plain.config
    tables = (to_numpy(x.token_embedding.value) for x in (bare, plain))
    np.testing.assert_array_equal(*tables)  # it makes the logits too


def test_two_edits_act_in_their_order():
    encoder = make_encoder("disentangled", edits=BOTH)
    assert encoder.count_params() == kbert.describe(encoder.config).parameters
    layer = products(encoder)[0]
    assert [edit.name for edit in layer.edits] == ["movement", "fake_quantization"]
    layer.movement.mask.assign(np.eye(*layer.kernel.shape))
    layer.bias.assign(np.zeros(layer.bias.shape))
    layer.fake_quantization.range.assign(0.0)  # rows stay as they are
    _, kernel = layer.movement(ops.ones((1, 1)), layer.kernel)
    largest = np.abs(to_numpy(kernel)).max(0)
    steps = to_numpy(layer.product(ops.eye(layer.kernel.shape[0])))
    steps = steps / np.where(largest > 0, largest / 127, 1)
    assert_close(steps, np.round(steps), 1e-3)
    plain = quantization.rounded(encoder)
    assert plain.config.edits == ({"kind": "movement"},)
    with pytest.raises(ValueError, match=r"'movement' can follow only 'pruned'.*'rounding'"):
        pruning.with_movement(quantization.quantization_aware(make_encoder("disentangled")))


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([{"kind": "painted"}], r"An edit must be one of .*'painted'"),
        ([{"kind": "rounding", "bits": 4}], "bits"),
        ([{"kind": "rounding"}] * 2, r"`edits` must be .*each with another name"),
        ([{"kind": 3}], r"`edits` must be .* another name"),
        ([{"kind": ["rounding"]}], r"`edits` must be .* another name"),
        (["rounding"], r"`edits` must be a list of objects"),
        ("rounding", r"`edits` must be a list of objects"),
    ],
)
def test_what_is_no_edit_is_refused(edits, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kbert.Encoder(tiny_config(edits=edits))


def test_a_description_names_them():
    assert "edits               movement, rounding" in str(kbert.describe(tiny_config(edits=BOTH)))


def test_what_takes_no_edits_says_so():
    with pytest.raises(ValueError, match="XlnetConfig does not support `edits`"):
        quantization.quantization_aware(kbert.Encoder(tiny_config(**KINDS["xlnet"])))
    with pytest.raises(ValueError, match=r"requires kbert.layers.Dense.*blocks of Foreign"):
        kbert.Encoder(tiny_config(part={"name": "foreign"}, edits=[{"kind": "rounding"}]))
    with pytest.raises(ValueError, match="`edits` require num_groups=1"):
        kbert.Encoder(tiny_config(**KINDS["convolution"], edits=[{"kind": "rounding"}]))
    with pytest.raises(ValueError, match=r"pruned before other edits.*'rounding'"):
        pruning.prune_heads(make_encoder("shared", edits=[{"kind": "rounding"}]), 0.5)
    plain = tiny_config(num_segments=0, edits=[{"kind": "rounding"}])
    with pytest.raises(ValueError, match=r"An encoder that becomes a decoder must have edits=\(\)"):
        config_of_decoder(plain)
    with pytest.raises(ValueError, match=r"every field .* must have its default.*rounding"):
        config_of_encoder(plain, 2)
    with pytest.raises(ValueError, match="lengthened before it is edited"):
        lengthen(plain, {}, window=4, max_positions=48)
    edited = make_encoder("disentangled", edits=[{"kind": "rounding"}])
    with pytest.raises(ValueError, match="edits"):
        edited.save_to_preset("nowhere", "huggingface")


def test_parts_of_the_version_before_are_edits():
    for name, kind in (("quantized", "rounding"), ("movement", "movement")):
        fields = {**tiny_config().to_dict(), "part": {"name": name}}
        assert kbert.EncoderConfig.from_dict(fields) == tiny_config(edits=[{"kind": kind}])
    more = {**fields, "part": {"name": "quantized"}, "edits": [{"kind": "movement"}]}
    assert kbert.EncoderConfig.from_dict(more).edits == tuple(BOTH)  # none is lost
    strange = {**fields, "part": {"name": "quantized", "bits": 4}}
    with pytest.raises((ValueError, TypeError), match="bits"):
        kbert.Encoder(kbert.EncoderConfig.from_dict(strange))


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", [*ordinary_slow(PLAIN), "convolution in groups"])
def test_lora_lies_beside_every_family_and_is_taken_out_again(kind, tmp_path):
    plain = kbert.Encoder(tiny_config(**PLAIN.get(kind, KINDS["convolution"])))
    randomise(plain)
    before = sequence(plain)
    adapters.add(plain, "lora", rank=2)
    assert_close(sequence(plain), before, 1e-6)  # its second matrix is zero
    trained = plain.trainable_weights
    assert trained
    assert all("adapter_lora" in weight.path for weight in trained)
    rng = np.random.default_rng(1)
    for weight in trained:
        weight.assign(rng.normal(size=weight.shape, scale=0.1))
    after = sequence(plain)
    assert np.abs(after - before).max() > 1e-3
    plain.save_to_preset(tmp_path / "preset")
    assert_close(sequence(kbert.Encoder.from_preset(tmp_path / "preset")), after, 1e-6)
    plain.save(tmp_path / "model.keras")
    assert_close(sequence(keras.saving.load_model(tmp_path / "model.keras")), after, 1e-6)
    adapters.remove(plain, "lora")
    assert_close(sequence(plain), before, 1e-6)


@pytest.mark.tensorflow
@pytest.mark.graphs
@pytest.mark.parametrize(
    "kind",
    [
        "modern",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("disentangled", "bottleneck")),
        pytest.param("global tokens", marks=pytest.mark.slow),
    ],
)
def test_lora_is_trained_on_a_base_of_8_bits(kind, tokenizer, tmp_path):
    """The step with LoRA is a graph; the one before, and the answers, need none."""
    import tensorflow as tf

    texts, labels = reviews(16)
    size = {"vocabulary_size": tokenizer.vocabulary_size}
    task = kbert.tasks.TextClassifier(
        make_encoder(kind, **size), tokenizer, ["no", "yes"], max_length=16
    )
    task = quantization.quantization_aware(task)
    tf.config.run_functions_eagerly(True)
    task.fit(texts, labels, **HOW)
    tf.config.run_functions_eagerly(False)
    base = get_arrays(task.encoder, "encoder")
    adapters.add(task, "lora", rank=2)
    task.fit(texts, labels, **HOW)
    tf.config.run_functions_eagerly(True)
    after = get_arrays(task.encoder, "encoder")
    kernels = [name for name in base if name.endswith("kernel") and "/layers/" in name]
    assert all(np.array_equal(base[name], after[name]) for name in kernels)
    trained = [name for name in after if name not in base]
    assert trained
    task.save_to_preset(tmp_path / "preset")
    again = kbert.tasks.Task.from_preset(tmp_path / "preset")
    ours, theirs = (x.predict(texts[:5], verbose=0) for x in (task, again))
    assert [x["label"] for x in ours] == [x["label"] for x in theirs]
    assert_close(*([x["probability"] for x in found] for found in (theirs, ours)), 1e-6)
    with pytest.raises(ValueError, match="its sum with the weights would be rounded"):
        adapters.merge(task)
    adapters.remove(task, "lora")
    assert get_arrays(task.encoder, "encoder").keys() == base.keys()


@pytest.mark.tensorflow
@pytest.mark.graphs
@pytest.mark.parametrize(
    "kind",
    [
        "convolution",
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ("disentangled", "bottleneck", "relative bias")
        ),
    ],
)
def test_small_weights_of_every_family_become_zeros(kind, tokenizer):
    texts, labels = reviews(32)
    size = {"vocabulary_size": tokenizer.vocabulary_size}
    task = kbert.tasks.TextClassifier(
        make_encoder(kind, **size), tokenizer, ["no", "yes"], max_length=16
    )
    task.fit(texts, labels, callbacks=[pruning.MagnitudePruning(0.5, end_step=3)], **HOW)
    shares = pruning.sparsity(task)
    assert len(shares) >= len(products(task.encoder))
    assert {round(share, 2) for share in shares.values()} == {0.5}


@pytest.mark.tensorflow
@pytest.mark.graphs
@pytest.mark.slow
@pytest.mark.parametrize("kind", PLAIN)
def test_every_family_learns_is_exported_and_resumes(kind, tokenizer, tmp_path):
    """In 8 bits, with scores by movement, from a run that was ended as from one that was not."""
    import tensorflow as tf

    texts, labels = reviews(48)
    size = {"vocabulary_size": tokenizer.vocabulary_size}
    if "padding_id" in PLAIN[kind]:
        size["padding_id"] = tokenizer.pad_id

    def make():
        task = kbert.tasks.TextClassifier(
            make_encoder(kind, **size, edits=BOTH), tokenizer, ["no", "yes"], max_length=16
        )
        randomise(task)
        return task

    masks = pruning.MovementPruning(0.5, begin_step=2, end_step=8)
    how = {**HOW, "epochs": 2}
    whole = make()
    whole.fit(texts, labels, callbacks=[masks], **how)
    shares = set(np.round(list(pruning.sparsity(whole).values()), 2))
    assert len(shares) == 1
    assert abs(shares.pop() - 0.5) < 0.02

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations.numpy()) == 7:
                raise RuntimeError("ended")

    options = {**how, "model_dir": tmp_path / "run", "checkpoint_every": 3}
    masks = pruning.MovementPruning(0.5, begin_step=2, end_step=8)
    with pytest.raises(RuntimeError, match="ended"):
        make().fit(texts, labels, callbacks=[masks, Ends()], **options)
    second = make()
    masks = pruning.MovementPruning(0.5, begin_step=2, end_step=8)
    second.fit(texts, labels, callbacks=[masks], **options)
    expected, found = (get_arrays(x.encoder, "encoder") for x in (whole, second))
    for name, x in expected.items():
        assert np.array_equal(found[name], x), name
    loaded = tf.saved_model.load(whole.export(tmp_path / "model"))
    there = loaded.signatures["classify"](text=tf.constant(texts[:6]))
    ours = whole.predict(texts[:6], verbose=0)
    assert [x["label"].encode() for x in ours] == there["label"].numpy().tolist()
