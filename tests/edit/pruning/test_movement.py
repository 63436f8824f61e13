"""Kernels that lose what training moves towards zero: gradients, choice, resume, the end."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.distillation import Distiller, SoftTargets
from kbert.edit.movement import MovementMask
from kbert.edit.pruning import (
    MagnitudePruning,
    MovementPruning,
    apply_movement,
    sparsity,
    with_movement,
)
from kbert.edit.pruning.movement import _highest
from kbert.layers import Dense
from kbert.models import Encoder
from kbert.models.weights import get_arrays, named_weights
from kbert.tasks import TextClassifier
from kbert.training import AdamW
from tests.harness import KINDS, randomise, tiny_config, tiny_inputs, to_numpy

TEXTS = ["the red fox", "a dog", "the old man and the king", "moon"] * 2
LABELS = ["no", "yes", "no", "yes"] * 2
HOW = {"batch_size": 4, "verbose": 0, "seed": 3}  # two updates an epoch
QKV = "encoder/layers/0/attention/qkv"


def made(tokenizer, **changes):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **changes)
    task = TextClassifier(Encoder(config), tokenizer, ["no", "yes"], max_length=12)
    randomise(task, sigma=0.3)
    return with_movement(task)


def parts_of(task, ending):
    return {
        name: weight.numpy()
        for name, weight in named_weights(task.encoder, "encoder").items()
        if name.endswith(ending)
    }


@pytest.mark.graphs
@pytest.mark.parametrize("how", [{}, {"jit_compile": True}])
def test_gradients_are_those_of_the_paper(how):
    """G ⊙ W for the scores, G ⊙ M for the kernel; G that of the masked kernel."""
    rng = np.random.default_rng(0)
    dense = Dense(3)
    dense.build((None, 4))
    dense.add_edit(MovementMask(name="movement"), (4, 3))
    kernel, upstream = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    mask = rng.integers(0, 2, (4, 3)).astype("float32")
    dense.kernel.assign(kernel)
    dense.movement.mask.assign(mask)
    dense.movement.scores.assign(rng.normal(size=(4, 3)))
    x = rng.normal(size=(5, 4)).astype("float32")

    @tf.function(**how)
    def gradients():
        with tf.GradientTape() as tape:
            outputs = dense(x, training=True)
            loss = tf.reduce_sum(outputs * upstream)
        weights = [dense.kernel.value, dense.movement.scores.value]
        return outputs, dense(x), *tape.gradient(loss, weights)

    trained, outputs, of_kernel, of_scores = (y.numpy() for y in gradients())
    np.testing.assert_allclose(outputs, x @ (kernel * mask), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(trained, outputs)
    of_masked = x.T @ upstream
    np.testing.assert_allclose(of_kernel, of_masked * mask, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_scores, of_masked * kernel, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["scores", "ties", "zeros", "all equal"])
@pytest.mark.parametrize("number", [1, 7, 60, 100])
def test_exactly_so_many_of_the_highest_are_kept(kind, number):
    rng = np.random.default_rng(1)
    scores, sizes = rng.normal(size=100), np.abs(rng.normal(size=100))
    if kind == "ties":
        scores = np.round(scores)
        sizes = np.round(sizes, 1)
    elif kind == "zeros":  # of both signs, which are equal
        scores = np.where(np.arange(100) % 3, scores * 0.0, scores)
        scores[1] = -0.0
    elif kind == "all equal":
        scores, sizes = np.zeros(100), np.ones(100)
    scores, sizes = scores.astype("float32"), sizes.astype("float32")
    kept = _highest(scores, sizes, number).numpy()
    # By the score, the size, and the place; the last key counts most.
    order = np.lexsort((-np.arange(100), sizes, scores + 0.0))
    wanted = np.zeros(100)
    wanted[order[100 - number :]] = 1
    np.testing.assert_array_equal(kept, wanted)


class Seen(keras.callbacks.Callback):
    """Shares after each update, and masks and scores before it."""

    def __init__(self):
        super().__init__()
        self.shares, self.masks, self.scores = [], [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.masks.append(parts_of(self.model, "/mask"))
        self.scores.append(parts_of(self.model, "/scores"))

    def on_train_batch_end(self, batch, logs=None):
        self.shares.append(sorted(set(sparsity(self.model).values())))


@pytest.mark.graphs
def test_the_share_is_that_of_the_schedule_and_masks_follow_the_scores(tokenizer):
    task, seen = made(tokenizer), Seen()
    pruning = MovementPruning(0.75, begin_step=1, end_step=5, frequency=2)
    task.fit(TEXTS, LABELS, epochs=5, callbacks=[pruning, seen], learning_rate=1e-2, **HOW)
    # Chosen before updates 2, 4, 6, 8 and 10: at 1, 3, 5, 7 and 9 updates.
    wanted = [0.0, 0.0, 0.0, 0.65625, 0.65625, 0.75, 0.75, 0.75, 0.75, 0.75]
    assert [len(shares) for shares in seen.shares] == [1] * 10
    np.testing.assert_allclose(np.ravel(seen.shares), wanted, atol=1e-3)
    for step in (3, 5, 7, 9):
        for name, mask in seen.masks[step].items():
            scores = seen.scores[step][name.replace("/mask", "/scores")]
            assert scores[mask == 1].min() >= scores[mask == 0].max()
    # In the cool-down the share stays, and the choice goes on.
    assert any((seen.masks[5][name] != mask).any() for name, mask in seen.masks[9].items())


def test_the_whole_is_one_and_the_same(tokenizer, tmp_path):
    """Masked, baked and saved: one model; the baked one is ordinary."""
    task = made(tokenizer)
    task.fit(TEXTS, LABELS, epochs=4, callbacks=[MovementPruning(0.6, end_step=5)], **HOW)
    sparse = apply_movement(task)
    assert sparsity(sparse) == sparsity(task)
    for name, share in sparsity(sparse).items():
        size = get_arrays(sparse.encoder, "encoder")[name].size
        assert share == round(0.6 * size) / size
    rows = tiny_inputs(task.encoder.config)
    ours, theirs = to_numpy(task.encoder(rows)), to_numpy(sparse.encoder(rows))
    np.testing.assert_allclose(ours["sequence"], theirs["sequence"], atol=1e-6)
    assert sparse.encoder.config.part is None
    assert not [w.path for w in sparse.weights if "movement" in w.path]
    # A preset of the masked one resumes and bakes; one of the baked one knows nothing of it.
    task.save_to_preset(tmp_path / "masked")
    sparse.save_to_preset(tmp_path / "baked")
    again = apply_movement(kbert.tasks.Task.from_preset(tmp_path / "masked"))
    loaded = kbert.tasks.Task.from_preset(tmp_path / "baked")
    for name, array in get_arrays(sparse, "task").items():
        np.testing.assert_array_equal(get_arrays(again, "task")[name], array)
        np.testing.assert_array_equal(get_arrays(loaded, "task")[name], array)
    sparse.fit(TEXTS, LABELS, epochs=1, **HOW)


@pytest.mark.parametrize("kind", ["bert", "modern", "grouped", "shared"])
def test_every_kind_of_block_has_scores_and_is_counted(kind):
    encoder = Encoder(tiny_config(**KINDS.get(kind, {})))
    randomise(encoder)
    scored = with_movement(encoder)
    assert scored.count_params() == kbert.describe(scored.config).parameters
    assert len([w for w in scored.weights if w.path.endswith("/scores")]) == 4 * len(scored.blocks)
    rows = tiny_inputs(encoder.config)
    before, after = to_numpy(encoder(rows)), to_numpy(scored(rows))
    np.testing.assert_array_equal(before["sequence"], after["sequence"])
    name = "encoder/layers/0/feed_forward/intermediate"
    named_weights(scored, "encoder")[f"{name}/movement/mask"][:3].assign(0)
    baked = apply_movement(scored)
    assert (get_arrays(baked, "encoder")[f"{name}/kernel"][:3] == 0).all()
    before, after = to_numpy(scored(rows)), to_numpy(baked(rows))
    np.testing.assert_allclose(before["sequence"], after["sequence"], atol=1e-6)


@pytest.mark.slow
def test_a_run_that_was_ended_resumes_exactly(tokenizer, tmp_path):
    class End(keras.callbacks.Callback):
        def __init__(self, ended):
            super().__init__()
            self.ended = ended

        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == self.ended:
                raise OSError("pulled")

    def run(folder, *more):
        task, pruning = made(tokenizer), MovementPruning(0.6, end_step=6, frequency=3)
        how = {"model_dir": folder, "checkpoint_every": 2, "epochs": 6, **HOW}
        task.fit(TEXTS, LABELS, callbacks=[pruning, *more], learning_rate=1e-2, **how)
        return get_arrays(task, "task")

    wanted = run(tmp_path / "whole")
    for ended in (5, 9):  # in the schedule, and in the cool-down
        with pytest.raises(OSError, match="pulled"):
            run(tmp_path / "ended", End(ended))
    found = run(tmp_path / "ended")
    scores = [name for name in found if name.endswith("movement/scores")]
    assert len(scores) == 4
    assert all(found[name].any() for name in scores)
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


def test_movement_is_not_magnitude():
    """A small weight that grows is kept, a large one that shrinks is pruned."""
    target = np.array([[1.0], [0.5]], "float32")

    class Line(kbert.training.TrainStep, keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = Dense(1, use_bias=False)
            self.dense.build((None, 2))
            self.dense.add_edit(MovementMask(name="movement"), (2, 1))
            self.built = True

        def loss_terms(self, batch, training):
            error = self.dense(batch["x"], training=training) - batch["x"] @ target
            return {"error": (tf.reduce_sum(error**2), tf.cast(tf.size(error), "float32"))}, {}

    line = Line()
    line.dense.kernel.assign([[0.1], [2.0]])
    line.compile(AdamW(1e-2, weight_decay=0.0))
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    line.fit({"x": x}, epochs=5, batch_size=16, verbose=0)
    kernel, scores = line.dense.kernel.numpy()[:, 0], line.dense.movement.scores.numpy()[:, 0]
    assert abs(kernel[0]) < abs(kernel[1])  # by magnitude the first would go
    assert scores[0] > 0 > scores[1]
    kept = _highest(scores, np.abs(kernel), 1).numpy()
    np.testing.assert_array_equal(kept, [1, 0])


@pytest.mark.slow
def test_the_rate_of_the_scores_chooses_nothing(tokenizer):
    """At a rate 1,024 times as high they are 1,024 times as large, and all else is equal."""

    def run(factor):
        task = made(tokenizer)
        scales = {w.path: factor for w in task.trainable_weights if w.path.endswith("/scores")}
        task.compile(AdamW(1e-2, rate_scales=scales))
        task.fit(TEXTS, LABELS, epochs=4, callbacks=[MovementPruning(0.8, end_step=5)], **HOW)
        return get_arrays(task, "task")

    once, often = run(1.0), run(1024.0)
    for name, array in once.items():
        factor = 1024 if name.endswith("/scores") else 1
        np.testing.assert_array_equal(factor * array, often[name], err_msg=name)
    assert any(array.any() for name, array in once.items() if name.endswith("/scores"))


def test_the_share_of_all_kernels_together(tokenizer):
    task = made(tokenizer)
    pruning = MovementPruning(0.7, end_step=3, globally=True)
    task.fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], **HOW)
    masks = [mask.ravel() for mask in parts_of(task, "/mask").values()]
    whole = np.concatenate(masks)
    assert (whole == 0).sum() == round(0.7 * whole.size)
    assert len({round(float(mask.mean()), 2) for mask in masks}) > 1


@pytest.mark.graphs
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.slow
def test_in_a_graph_in_bfloat16_with_micro_batches_and_recomputation(tokenizer, xla):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, num_layers=1)
    encoder = Encoder(config, dtype="mixed_bfloat16")
    task = with_movement(TextClassifier(encoder, tokenizer, ["no", "yes"], max_length=12))
    task.compile(AdamW(1e-2), jit_compile=xla, micro_batches=2, recompute=True)
    before = get_arrays(task.encoder, "encoder")
    task.fit(TEXTS, LABELS, epochs=3, callbacks=[MovementPruning(0.5, end_step=4)], **HOW)
    assert set(sparsity(task).values()) == {0.5}
    after = get_arrays(task.encoder, "encoder")
    scores = [name for name in after if name.endswith("/scores")]
    for name in scores:
        assert after[name].dtype == np.float32
        assert after[name].any(), name
        kernel = name.replace("movement/scores", "kernel")
        assert not np.array_equal(before[kernel], after[kernel])
    assert len(scores) == 4


@pytest.mark.slow
def test_on_two_devices_it_is_the_same(tokenizer, mirrored):
    def run():
        task = made(tokenizer)
        pruning = MovementPruning(0.6, end_step=3)
        task.fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], learning_rate=1e-3, **HOW)
        assert {round(x, 1) for x in sparsity(task).values()} == {0.6}
        return get_arrays(apply_movement(task), "task")

    wanted = run()
    with mirrored.scope():
        found = run()
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_what_is_not_chosen_yet_is_not_the_best_and_said(tokenizer, caplog):
    task = made(tokenizer)
    how = {"validation_data": (TEXTS, LABELS), "metric": "loss", **HOW}
    pruning = MovementPruning(0.9, end_step=5)
    history = task.fit(TEXTS, LABELS, epochs=4, callbacks=[pruning], **how)
    assert history.best_step in (6, 8)
    assert {round(x, 2) for x in sparsity(apply_movement(task)).values()} == {0.9}

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    callbacks = [Stop(), MovementPruning(0.5, end_step=3)]
    made(tokenizer).fit(TEXTS, LABELS, epochs=2, callbacks=callbacks, **HOW)
    assert "ended after 2 updates, before the end of the pruning after 3" in caplog.text


def test_an_optimizer_that_is_behind_the_end_chooses_at_once(tokenizer):
    task = made(tokenizer)
    task.compile(AdamW(1e-3))
    task.fit(TEXTS, LABELS, epochs=2, **HOW)
    pruning = MovementPruning(0.5, end_step=3, frequency=100)
    task.fit(TEXTS, LABELS, epochs=1, callbacks=[pruning], **HOW)
    assert set(sparsity(task).values()) == {0.5}


def test_a_student_is_pruned_while_it_is_distilled(tokenizer):
    student = made(tokenizer)
    distiller = Distiller(student, apply_movement(student), [SoftTargets()])
    pruning = MovementPruning(0.5, end_step=1)
    distiller.fit(TEXTS, LABELS, epochs=1, callbacks=[pruning], **HOW)
    assert set(sparsity(apply_movement(student)).values()) == {0.5}


def test_too_many_weights_in_one_update_are_warned_of(tokenizer, caplog):
    for share, is_warned in ((1e-4, False), (0.5, True)):
        caplog.clear()
        pruning = MovementPruning(share, end_step=3)
        made(tokenizer).fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], **HOW)
        assert ("masked in one update" in caplog.text) == is_warned


def test_what_cannot_be_is_refused(tokenizer):
    task = made(tokenizer)
    plain = apply_movement(task)
    with pytest.raises(ValueError, match=r"`sparsity` must be .* below 1. Received: 1.0"):
        MovementPruning(1.0, end_step=4)
    with pytest.raises(ValueError, match=r"must be after `begin_step`.*begin_step=4, end_step=4"):
        MovementPruning(0.5, begin_step=4, end_step=4)
    with pytest.raises(TypeError, match=r"MovementPruning has no such argument.*'kernels'"):
        MovementPruning(0.5, kernels="*")
    with pytest.raises(ValueError, match=r"less than the 4 updates .* Received: end_step=4"):
        task.fit(TEXTS, LABELS, epochs=2, callbacks=[MovementPruning(0.5, end_step=4)], **HOW)
    with pytest.raises(ValueError, match=r"which with_movement adds. Received: edits=\[\]"):
        plain.fit(TEXTS, LABELS, epochs=2, callbacks=[MovementPruning(0.5, end_step=2)], **HOW)
    with pytest.raises(ValueError, match=r"which with_movement adds. Received: edits=\[\]"):
        apply_movement(plain)
    with pytest.raises(ValueError, match=r"`edits` must be .*each with another name"):
        with_movement(task)
    with pytest.raises(ValueError, match=r"changes the kernels.*with the edit 'movement'"):
        kbert.edit.adapters.add(task, "lora")
    with pytest.raises(TypeError, match=r"Received: a str"):
        with_movement("bert")
    # Scores do not decay, nor do they keep others from it.
    scored = {w.path: w for w in task.encoder.trainable_weights}
    decays = kbert.training.optimization.optimizers.decays
    assert not any(decays(w) for path, w in scored.items() if path.endswith("scores"))
    assert QKV in "".join(named_weights(task.encoder, "encoder"))


def test_magnitude_and_movement_know_each_others_zeros(tokenizer):
    """Zeros of the kernel and of the mask are counted once."""
    task = made(tokenizer)
    weights = named_weights(task.encoder, "encoder")
    kernel, mask = weights[f"{QKV}/kernel"], weights[f"{QKV}/movement/mask"]
    kernel.assign(np.where(np.arange(16)[:, None] < 4, 0, kernel.numpy()))
    mask.assign(np.where(np.arange(16)[:, None] < 8, 0, mask.numpy()))
    assert sparsity(task, f"{QKV}/kernel") == {f"{QKV}/kernel": 0.5}
    assert MagnitudePruning(0.5, end_step=4).sparsity_after(2) == pytest.approx(
        MovementPruning(0.5, end_step=4).sparsity_after(2)
    )
