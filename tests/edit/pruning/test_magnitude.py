"""Kernels with ever more zeros: as many as the schedule says, in every step, on any devices."""

import keras
import numpy as np
import pytest

import kbert
from kbert.distillation import Distiller, SoftTargets
from kbert.edit.pruning import MagnitudePruning, keep_layers, sparsity
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from kbert.tasks import TextClassifier
from kbert.training import AdamW
from tests.harness import randomise, tiny_config

TEXTS = ["the red fox", "a dog", "the old man and the king", "moon"] * 2
LABELS = ["no", "yes", "no", "yes"] * 2
HOW = {"batch_size": 4, "verbose": 0, "seed": 3}  # two updates an epoch


def made(tokenizer, **changes):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, num_layers=1, **changes)
    task = TextClassifier(Encoder(config), tokenizer, ["no", "yes"], max_length=12)
    randomise(task, sigma=0.3)
    return task


class Seen(keras.callbacks.Callback):
    """Shares of zeros after each update, before any callback can have moved a weight."""

    def __init__(self):
        super().__init__()
        self.shares = []

    def on_train_batch_end(self, batch, logs=None):
        self.shares.append(sorted(set(sparsity(self.model).values())))


def test_every_kernel_has_the_share_of_the_schedule(tokenizer):
    task, seen = made(tokenizer), Seen()
    pruning = MagnitudePruning(0.75, begin_step=1, end_step=5, frequency=2)
    before = get_arrays(task.encoder, "encoder")
    task.fit(TEXTS, LABELS, epochs=4, callbacks=[seen, pruning], **HOW)
    # Chosen before updates 2, 4 and 6, at 1, 3 and 5 updates: 0, 7/8 and all of 0.75.
    wanted = [0.0, 0.0, 0.0, 0.65625, 0.65625, 0.75, 0.75, 0.75]
    assert [len(shares) for shares in seen.shares] == [1] * 8
    np.testing.assert_allclose(np.ravel(seen.shares), wanted, atol=1e-3)
    after = get_arrays(task.encoder, "encoder")
    for name, share in sparsity(task).items():
        assert share == round(0.75 * before[name].size) / before[name].size
        assert not np.array_equal(before[name], after[name])
    others = [name for name in after if name not in sparsity(task) and "kernel" in name]
    assert others == ["encoder/pooler/kernel"]
    assert all((after[name] != 0).all() for name in others)
    assert all(weight.constraint is None for weight in task.weights)


def test_the_smallest_go_and_do_not_come_back(tokenizer):
    """At a rate of nearly 0 the weights that are left are those that were the largest."""
    task, name = made(tokenizer), "encoder/layers/0/attention/qkv/kernel"
    before = get_arrays(task.encoder, "encoder")[name]
    pruning = MagnitudePruning(0.5, end_step=2, kernels=["*/qkv/kernel", "classifier/*/kernel"])
    task.fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], learning_rate=1e-9, **HOW)
    after = get_arrays(task.encoder, "encoder")[name]
    largest = np.abs(before) > np.median(np.abs(before))
    np.testing.assert_array_equal(after != 0, largest)
    np.testing.assert_allclose(after[largest], before[largest], atol=1e-6)
    assert sparsity(task, "classifier/*") == {"classifier/dense/kernel": 0.5}
    # Once more: zeros are kept, and new ones are added.
    task.fit(TEXTS, LABELS, epochs=2, callbacks=[MagnitudePruning(0.75, end_step=2)], **HOW)
    again = get_arrays(task.encoder, "encoder")[name]
    assert (again == 0).mean() == 0.75
    assert (again[~largest] == 0).all()


@pytest.mark.graphs
@pytest.mark.slow
def test_a_step_that_was_traced_before_and_one_after(tokenizer):
    task = made(tokenizer)
    task.compile(AdamW(1e-2))
    task.fit(TEXTS, LABELS, epochs=1, **HOW)
    # Steps are the optimizer's, from the third on.
    task.fit(TEXTS, LABELS, epochs=1, callbacks=[MagnitudePruning(0.5, end_step=3)], **HOW)
    assert set(sparsity(task).values()) == {0.5}
    task.fit(TEXTS, LABELS, epochs=1, **HOW)
    assert max(sparsity(task).values()) < 0.5  # zeros are weights again


@pytest.mark.slow
def test_a_run_that_was_ended_resumes_exactly(tokenizer, tmp_path):
    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 5:
                raise OSError("pulled")

    def run(folder, *more):
        task, pruning = made(tokenizer), MagnitudePruning(0.6, end_step=6, frequency=2)
        how = {"model_dir": folder, "checkpoint_every": 2, "epochs": 4, **HOW}
        task.fit(TEXTS, LABELS, callbacks=[pruning, *more], learning_rate=1e-2, **how)
        return get_arrays(task, "task")

    wanted = run(tmp_path / "whole")
    with pytest.raises(OSError, match="pulled"):
        run(tmp_path / "ended", End())
    for name, array in run(tmp_path / "ended").items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


def test_the_best_weights_are_those_of_the_full_sparsity(tokenizer):
    """Evaluations of before are not counted, though they were better."""
    task = made(tokenizer)
    how = {"validation_data": (TEXTS, LABELS), "metric": "loss", "learning_rate": 1e-9, **HOW}
    pruning = MagnitudePruning(0.9, end_step=5)
    history = task.fit(TEXTS, LABELS, epochs=4, callbacks=[pruning], **how)
    losses = history.history["val_loss"]
    assert history.best_step == 6 + 2 * int(losses[3] < losses[2])
    assert {round(x, 2) for x in sparsity(task).values()} == {0.9}


@pytest.mark.slow
def test_on_two_devices_it_is_the_same(tokenizer, mirrored):
    def run():
        task = made(tokenizer)
        pruning = MagnitudePruning(0.6, end_step=3)
        task.fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], learning_rate=1e-3, **HOW)
        assert {round(x, 1) for x in sparsity(task).values()} == {0.6}
        return get_arrays(task, "task")

    wanted = run()
    with mirrored.scope():
        found = run()
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5, err_msg=name)


def test_a_student_is_pruned_while_it_is_distilled(tokenizer):
    teacher = made(tokenizer)
    student = keep_layers(teacher, "bottom", 1)
    distiller = Distiller(student, teacher, [SoftTargets()])
    pruning = MagnitudePruning(0.5, end_step=1)
    distiller.fit(TEXTS, LABELS, epochs=1, callbacks=[pruning], **HOW)
    assert set(sparsity(student).values()) == {0.5}
    assert set(sparsity(teacher).values()) == {0.0}


def test_it_is_saved_as_it_is(tokenizer, tmp_path):
    task = made(tokenizer)
    task.fit(TEXTS, LABELS, epochs=2, callbacks=[MagnitudePruning(0.5, end_step=1)], **HOW)
    task.save_to_preset(tmp_path)
    assert sparsity(kbert.tasks.Task.from_preset(tmp_path)) == sparsity(task)
    assert sparsity(Encoder.from_preset(tmp_path)) == sparsity(task.encoder)


def test_the_schedule_is_the_papers():
    pruning = MagnitudePruning(0.9, begin_step=100, end_step=500, initial_sparsity=0.1)
    for step, left in ((100, 1.0), (200, 0.75), (300, 0.5), (500, 0.0)):
        assert pruning.sparsity_after(step) == pytest.approx(0.9 - 0.8 * left**3)
    assert pruning.sparsity_after(99) == 0
    assert pruning.sparsity_after(10**6) == 0.9


@pytest.mark.slow
def test_steps_may_be_shares_of_the_run(tokenizer):
    """Of a run of 8 updates; a run that resumes has the same."""
    task, seen = made(tokenizer), Seen()
    pruning = MagnitudePruning(0.75, begin_step=0.125, end_step=0.625, frequency=2)
    task.fit(TEXTS, LABELS, epochs=4, callbacks=[seen, pruning], **HOW)
    assert (pruning.begin_step, pruning.end_step) == (1, 5)
    wanted = [0.0, 0.0, 0.0, 0.65625, 0.65625, 0.75, 0.75, 0.75]
    np.testing.assert_allclose(np.ravel(seen.shares), wanted, atol=1e-3)
    # The same object in another run, of 12.
    task.fit(TEXTS, LABELS, epochs=6, callbacks=[pruning], **HOW)
    assert (pruning.begin_step, pruning.end_step) == (2, 8)
    short = MagnitudePruning(0.5, begin_step=0.5, end_step=0.6)
    with pytest.raises(
        ValueError, match=r"must be after `begin_step`. Received: begin_step=1, end_step=1"
    ):
        task.fit(TEXTS, LABELS, epochs=1, callbacks=[short], **HOW)
    short.set_params({"epochs": 1, "steps": 2})  # as of Keras' own loop
    with pytest.raises(ValueError, match=r"must be a number of updates .*: begin_step=0.5"):
        short.on_train_begin()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, r"`sparsity` must be .* above 0 and below 1. Received: 1.0"),
        ({"sparsity": 0.5, "initial_sparsity": 0.6}, "`initial_sparsity` must be at most"),
        ({"sparsity": 0.5, "begin_step": 4}, r"after `begin_step`.*begin_step=4, end_step=4"),
        ({"sparsity": 0.5, "frequency": 0}, "`frequency` must be .* at least 1. Received: 0"),
        ({"sparsity": 0.5, "end_step": 4.0}, r"shares of the run below 1.*end_step=4.0"),
        ({"sparsity": 0.5, "begin_step": 0.8, "end_step": 0.7}, "begin_step=0.8, end_step=0.7"),
        ({"sparsity": 0.5, "begin_step": -0.1}, "`begin_step` must be .*Received: -0.1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MagnitudePruning(**{"end_step": 4, **settings})


def test_what_cannot_be_pruned_so_is_refused(tokenizer, caplog):
    task = made(tokenizer)

    def fit(pruning):
        task.fit(TEXTS, LABELS, epochs=2, callbacks=[pruning], **HOW)

    with pytest.raises(ValueError, match=r"less than the 4 updates .* Received: end_step=4"):
        fit(MagnitudePruning(0.5, end_step=4))
    with pytest.raises(ValueError, match=r"Received: '\*/query/kernel' for a TextClassifier"):
        fit(MagnitudePruning(0.5, end_step=2, kernels="*/query/kernel"))
    task.compile(AdamW(1e-3, ema=0.99))
    with pytest.raises(ValueError, match=r"moving average.*ema=0.99"):
        fit(MagnitudePruning(0.5, end_step=2))


def test_kernels_are_free_after_a_fit_that_fails(tokenizer):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    task = made(tokenizer)
    callbacks = [MagnitudePruning(0.5, end_step=1), Interrupt()]
    with pytest.raises(KeyboardInterrupt):
        task.fit(TEXTS, LABELS, epochs=2, callbacks=callbacks, **HOW)
    assert set(sparsity(task).values()) == {0.5}
    assert all(weight.constraint is None for weight in task.weights)
    task.fit(TEXTS, LABELS, epochs=1, **HOW)
    assert max(sparsity(task).values()) < 0.1


def test_a_run_that_ends_too_early_says_so(tokenizer, caplog):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    callbacks = [Stop(), MagnitudePruning(0.5, end_step=3)]
    made(tokenizer).fit(TEXTS, LABELS, epochs=2, callbacks=callbacks, **HOW)
    assert "ended after 2 updates, before the end of the pruning after 3" in caplog.text
