import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from kbert.training.run.best import BestWeights
from kbert.training.run.checkpoints import Checkpoints, named_state
from kbert.training.run.phases import Epochs
from kbert.training.run.settings import RunSettings
from kbert.training.run.values import NonFiniteLoss
from tests.training import toy_task
from tests.training.run.fine_tuning_toy import EPOCHS, STEPS_PER_EPOCH, compiled_task, main
from tests.training.run.of_functions import train

ROOT = Path(__file__).parents[3]
LAST = EPOCHS * STEPS_PER_EPOCH


def in_process(folder, **arguments) -> subprocess.CompletedProcess:
    command = [
        *(sys.executable, "-m", "tests.training.run.fine_tuning_toy"),
        *(str(folder), json.dumps(arguments)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


def weights(task) -> dict[str, list]:
    """What the model knows, as lists that compare bit by bit."""
    state = named_state(task).items()
    return {n: ops.convert_to_numpy(v.value).tolist() for n, v in state if n.startswith("weights/")}


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def scripted(*values):
    """An evaluation that gives these scores, one after the other."""
    left = iter(values)
    return lambda: {"score": next(left)}


def assert_same_run(folder, other):
    for name in ("steps.jsonl", "evaluations.jsonl"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    for file in (f"checkpoints/step-{LAST:08d}.safetensors", f"checkpoints/step-{LAST:08d}.json"):
        assert (folder / file).read_bytes() == (other / file).read_bytes()
    names = sorted(path.name for path in (folder / "best").iterdir())
    assert names == sorted(path.name for path in (other / "best").iterdir())
    assert (folder / "best" / names[-1]).read_bytes() == (other / "best" / names[-1]).read_bytes()


def eager_task() -> toy_task.ToyTask:
    """For what is no matter of numbers: nothing is traced."""
    return compiled_task(run_eagerly=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, optimized):
    """A run that nothing disturbed: its folder, its history, its task's weights."""
    folder = tmp_path_factory.mktemp("whole")
    task = compiled_task(micro_batches=2)
    return folder, main(folder, task=task), weights(task)


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(whole, tmp_path):
    """kill -9 in the second epoch, SIGTERM in the third: losses, best and final weights agree."""
    folder, expected, expected_weights = whole
    killed = in_process(tmp_path, send=[signal.SIGKILL, 9])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < Checkpoints(tmp_path / "checkpoints").latest()["step"] < 9
    # As if it had been killed while it wrote its best weights: between two files, and in one.
    (tmp_path / "best").mkdir(exist_ok=True)
    for name in ("step-00000003.safetensors", "step-00000006.safetensors.writing-17"):
        (tmp_path / "best" / name).write_bytes(b"weig")
    stopped = main(tmp_path, send=[signal.SIGTERM, 8])
    assert stopped.stopped_by == signal.SIGTERM
    assert 9 < stopped.step < LAST
    assert "stopped by SIGTERM" in str(stopped)
    assert "whose weights" not in str(stopped)
    again = compiled_task(micro_batches=2)
    history = main(tmp_path, task=again)

    assert_same_run(tmp_path, folder)
    assert weights(again) == expected_weights
    assert history.history == expected.history
    assert history.epoch == [0, 1, 2]
    assert (history.best_step, history.best_value) == (expected.best_step, expected.best_value)
    assert [line["step"] for line in lines(tmp_path / "steps.jsonl")] == list(range(1, LAST + 1))
    evaluated = [line["step"] for line in lines(tmp_path / "evaluations.jsonl")]
    assert evaluated == [4, 6, 8, 12, 16, 18]


def test_a_finished_run_is_only_loaded(whole):
    folder, expected, expected_weights = whole
    task = eager_task()
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    loaded = main(folder, task=task, evaluate=scripted())  # nothing is evaluated
    assert loaded.history == expected.history
    assert loaded.best_step == expected.best_step
    assert str(loaded).startswith("already finished, nothing is left to train: trained for 18")
    assert weights(task) == expected_weights
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")} == files


def test_a_damaged_checkpoint_is_passed_over(whole, tmp_path):
    main(tmp_path, send=[signal.SIGTERM, 13])
    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged and skipped"):
        history = main(tmp_path)
    assert history.history == whole[1].history
    assert_same_run(tmp_path, whole[0])


def test_damaged_best_weights_are_an_error(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    newest = max((tmp_path / "best").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match=r"best/step-.* its checksum differs"):
        main(tmp_path, task=eager_task())


class Log(keras.callbacks.Callback):
    """Notes what it is told."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append("begin")

    def on_train_end(self, logs=None):
        self.seen.append("end")

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(f"epoch {epoch} {logs['val_loss']:.3f}")
        logs["seen"] = np.float32(len(self.seen))  # which JSON does not know


def test_callbacks_of_a_restarted_epoch_see_what_is_left_of_one_fit(tmp_path):
    main(tmp_path, task=eager_task(), send=[signal.SIGTERM, 9])
    step = Checkpoints(tmp_path / "checkpoints").latest()["step"]
    log = Log()
    history = main(tmp_path, task=eager_task(), callbacks=[log])
    assert len(history.history["seen"]) == 2
    batches = [x for x in log.seen if isinstance(x, int)]
    assert batches == [*range(step % STEPS_PER_EPOCH, STEPS_PER_EPOCH), *range(STEPS_PER_EPOCH)]
    assert [log.seen[0], log.seen[-1]] == ["begin", "end"]
    assert log.seen.count("begin") == log.seen.count("end") == 1
    epochs = [x for x in log.seen if str(x).startswith("epoch")]
    assert epochs == [f"epoch {i} {history.history['val_loss'][i]:.3f}" for i in (1, 2)]


@pytest.mark.parametrize(
    ("metric", "best"), [pytest.param("score", 12, marks=pytest.mark.slow), ("score_loss", 6)]
)
def test_the_best_weights_are_set_at_the_end(metric, best):
    seen = {}
    task = eager_task()
    scores = iter([0.1, 0.9, 0.5])

    def evaluate():
        seen[int(task.optimizer.iterations)] = weights(task)
        return {metric: next(scores)}

    asked = {"metric": metric, "evaluate_every": None, "evaluate": evaluate}
    history = main(None, task=task, **asked)
    assert list(seen) == [6, 12, 18]
    assert weights(task) == seen[best]
    assert weights(task) != seen[18]
    assert (history.best_step, history.step) == (best, 18)
    assert history.history[f"val_{metric}"] == [0.1, 0.9, 0.5]
    assert re.search(
        rf"trained for 18 .* after step {best} \(epoch {best // 6} of 3\), whose", str(history)
    )


def test_the_smallest_value_of_a_loss_is_best_whatever_its_name():
    task = SimpleNamespace(step_state=SimpleNamespace(loss_names=("soft_targets",)))
    best = BestWeights(RunSettings(metric="soft_targets", keep_best=False))
    for step, value in [(1, 0.9), (2, 0.4), (3, 0.6)]:
        best.update(task, step, {"soft_targets": value})
    assert (best.step, best.value) == (2, 0.4)


def test_the_last_weights_stay_where_the_best_are_not_kept():
    task = eager_task()
    last = {}

    def evaluate():
        last["weights"] = weights(task)
        return {"score": -float(task.optimizer.iterations)}

    history = main(None, task=task, metric="score", keep_best=False, evaluate=evaluate)
    assert history.best_step == 4
    assert weights(task) == last["weights"]


@pytest.mark.parametrize("folder", [pytest.param(False, marks=pytest.mark.slow), True])
def test_patience_counts_evaluations_without_progress(tmp_path, folder):
    """At 4, 6, 8, 12, 16: equal is no progress, nor is NaN."""
    folder = tmp_path if folder else None
    scores = scripted(0.5, 0.6, 0.6, float("nan"), 0.1, 0.9)
    asked = {"metric": "score", "patience": 3}
    history = main(folder, task=eager_task(), evaluate=scores, **asked)
    assert (history.step, history.best_step, history.ended_by) == (16, 6, "patience")
    assert history.history["val_score"][0] == 0.6
    assert history.history["val_score"][2] == 0.1
    assert "ended by patience after 16 steps" in str(history)
    if folder:  # it is at its end
        again = main(folder, task=eager_task(), evaluate=scripted(), **asked)
        assert (again.step, again.best_step, again.ended_by) == (16, 6, "patience")


def test_patience_keeps_counting_after_a_restart(tmp_path):
    asked = {"metric": "score", "patience": 3}
    main(
        tmp_path,
        task=eager_task(),
        evaluate=scripted(0.5, 0.4, 0.3),
        send=[signal.SIGTERM, 10],
        **asked,
    )
    history = main(tmp_path, task=eager_task(), evaluate=scripted(0.2, 0.9), **asked)
    assert (history.step, history.best_step) == (12, 4)


def test_a_callback_may_end_the_run(tmp_path):
    early = keras.callbacks.EarlyStopping("val_score", mode="max", patience=1)
    asked = {"metric": "score", "evaluate_every": None}
    evaluate = scripted(0.5, 0.4, 0.9)
    history = main(tmp_path, task=eager_task(), evaluate=evaluate, callbacks=[early], **asked)
    assert (history.step, history.best_step, history.ended_by) == (12, 6, "a callback")
    assert main(tmp_path, task=eager_task(), evaluate=scripted(), **asked).step == 12


def test_nothing_is_evaluated_without_held_out_data(capsys):
    task = eager_task()
    data = toy_task.dataset(4)
    history = train(task, lambda *_: data, None, Epochs(epochs=2, steps_per_epoch=2), verbose=2)
    assert history.best_step is None
    assert not any(k.startswith("val_") for k in history.history)
    printed = capsys.readouterr().out
    assert "Epoch 2/2" in printed
    assert "loss: " in printed
    assert "trained for 4 steps" in printed


def test_a_loss_that_is_nan_ends_the_run(tmp_path):
    task = eager_task()
    data = toy_task.dataset(12).enumerate()

    def spoil(i, batch):
        return {**batch, "mask_weights": batch["mask_weights"] / float(i != 8)}

    with pytest.raises(
        NonFiniteLoss, match=r"mlm_loss is nan.* at step 9. The last good .* step 6"
    ):
        train(
            task,
            lambda *_: data.map(spoil),
            tmp_path,
            Epochs(epochs=2, steps_per_epoch=6),
            verbose=0,
        )
    assert all(np.isfinite(x).all() for x in weights(task).values())
    assert [line["step"] for line in lines(tmp_path / "steps.jsonl")] == list(range(1, 9))


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_dataset_that_ends_early_is_an_error():
    task = eager_task()
    data = toy_task.dataset(5)
    with pytest.raises(RuntimeError, match=r"its epoch needs 3 steps. Received: 2 steps"):
        train(task, lambda *_: data, None, Epochs(epochs=2, steps_per_epoch=3), verbose=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"plan": {"epochs": 0}}, "`epochs` must be at least 1. Received: 0"),
        ({"patience": 2}, "require held-out data. Received: patience=2 without"),
        ({"metric": "f1"}, "require held-out data. Received: metric='f1' without"),
        ({"checkpoint_every": 0}, "`checkpoint_every` must be .*of at least 1.* Received: 0"),
        ({"evaluate": dict, "patience": 1}, "requires `metric`, .* Received: None with patience=1"),
        ({"verbose": "line"}, 'verbose="line" is supported for phases'),
        ({"resume": "changed"}, r"a `model_dir`.* Received: resume='changed', model_dir=None"),
        ({"resume": "sometimes", "model_dir": "run"}, '`resume` must be "same"'),
        (
            {"evaluate": scripted(1.0), "metric": "f1"},
            "must be one of the values of the evaluation, score. Received: 'f1'",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    task = eager_task()
    data = toy_task.dataset(2)

    def run(plan=None, model_dir=None, **settings):
        plan = Epochs(**{"epochs": 1, "steps_per_epoch": 2, **(plan or {})})
        train(task, lambda *_: data, model_dir, plan, **{"verbose": 0, **settings})

    with pytest.raises(ValueError, match=message):
        run(**settings)


def test_other_settings_of_a_restarted_run_are_refused(tmp_path):
    main(tmp_path, task=eager_task(), send=[signal.SIGTERM, 8], record={"learning_rate": 0.05})
    changed = {"record": {"learning_rate": 0.1}}
    with pytest.raises(ValueError, match=r"Received: learning_rate was 0.05, is 0.1$"):
        main(tmp_path, task=eager_task(), **changed)
    history = main(tmp_path, task=eager_task(), resume="changed", **changed)
    assert history.step == LAST
    (change,) = json.loads((tmp_path / "run.json").read_text())["changes"]
    assert change["learning_rate"] == "was 0.05, is 0.1"
    main(tmp_path, task=eager_task(), **changed)  # from now on it is the run's


@pytest.mark.slow
@pytest.mark.tensorflow
def test_replicas_train_as_one_device(tmp_path, mirrored):
    """And a run that one device began is resumed on several, the sums of its epoch included."""
    settings = {"evaluate": lambda: {"score": 1.0}, "metric": "score"}
    alone = main(tmp_path / "alone", task=compiled_task(dropout=0.0), **settings)
    together = compiled_task(dropout=0.0, strategy=mirrored)
    main(tmp_path / "both", task=compiled_task(dropout=0.0), send=[signal.SIGTERM, 9], **settings)
    history = main(tmp_path / "both", task=together, **settings)
    for name in ("loss", "mlm_loss", "nsp_accuracy", "val_score"):
        expected = alone.history[name]
        np.testing.assert_allclose(history.history[name], expected, rtol=2e-4, err_msg=name)


def test_nan_is_never_better():
    best = BestWeights(RunSettings(metric="f1", keep_best=False))
    for step, value in enumerate([float("nan"), 0.1, float("nan"), 0.2]):
        best.update(None, step, {"f1": value})
    assert (best.step, best.value, best.waited) == (3, 0.2, 0)


@pytest.mark.parametrize("metric", ["mlm_loss", "nll", "perplexity", "rte/forward_perplexity"])
def test_of_these_the_smallest_is_best(metric):
    best = BestWeights(RunSettings(metric=metric, keep_best=False))
    for step, value in enumerate([5.0, 3.0, 4.0, 6.0]):
        best.update(None, step, {metric: value})
    assert (best.step, best.value, best.waited) == (1, 3.0, 2)


def test_a_loss_that_creeps_down_is_no_better_value():
    best = BestWeights(RunSettings(metric="accuracy", keep_best=False))
    for step in range(4):
        best.update(None, step, {"accuracy": 0.9, "loss": 1 - step * 1e-6})
    assert (best.step, best.waited) == (3, 3)


@pytest.mark.parametrize(
    ("loss_of_the_last", "wanted"),
    [(0.6, 12), (0.7, 6), pytest.param(0.9, 6, marks=pytest.mark.slow)],
)
def test_of_equal_values_the_smaller_loss_is_best(tmp_path, loss_of_the_last, wanted):
    left = iter([(0.5, 0.7), (0.5, loss_of_the_last), (0.4, 0.1)])
    task, seen = eager_task(), {}

    def evaluate():
        seen[int(task.optimizer.iterations)] = weights(task)
        score, loss = next(left)
        return {"loss": loss, "score": score}

    asked = {"metric": "score", "evaluate_every": None}
    history = main(tmp_path, task=task, evaluate=evaluate, **asked)
    assert history.best_step == wanted
    assert weights(task) == seen[wanted]
    again = main(tmp_path, task=eager_task(), evaluate=scripted(), **asked)
    assert (again.best_step, again.best_loss) == (wanted, history.best_loss)


def test_equal_values_are_compared_with_a_loss_of_before_a_restart():
    best = BestWeights(RunSettings(metric="f1", keep_best=False))
    best.update(None, 1, {"f1": 0.5, "loss": 0.7})
    for kept, wanted in ((True, 2), (False, 1)):  # a version before kept no loss: its first stays
        again = BestWeights(RunSettings(metric="f1", keep_best=False))
        again.load({k: v for k, v in best.state.items() if kept or k != "loss"})
        again.update(None, 2, {"f1": 0.5, "loss": 0.6})
        assert again.step == wanted


class Average(keras.callbacks.Callback):
    """Sets at the end of training what it was after the first epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if not epoch:
            self.kept = self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.kept)


@pytest.mark.parametrize(
    "kind",
    [
        "early at the last",
        "own",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("early", "lambda")),
    ],
)
def test_weights_that_a_callback_sets_at_the_end_stay(tmp_path, kind, capsys):
    """Also where they are those of the last epoch, and for who loads the finished run."""
    seen, task = {}, eager_task()
    falls = [0.3, 0.2, 0.1] if kind == "early at the last" else [0.1, 0.2, 0.3]
    left = iter(zip([0.1, 0.9, 0.5], falls, strict=True))

    def evaluate():
        seen[int(task.optimizer.iterations)] = weights(task)
        score, loss = next(left)
        return {"loss": loss, "score": score}

    early = keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True, patience=9)
    asked = {"metric": "score", "evaluate_every": None, "verbose": 2}
    kept = []
    function = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: kept.append(task.get_weights()),
        on_train_end=lambda logs: task.set_weights(kept[0]),
    )
    callbacks = [{"own": Average(), "lambda": function}.get(kind, early)]
    history = main(tmp_path, task=task, evaluate=evaluate, callbacks=callbacks, **asked)
    wanted = seen[18 if kind == "early at the last" else 6]
    assert weights(task) == wanted
    assert (history.best_step, history.weights_by) == (12, "a callback")
    assert "the task has the weights set by a callback" in str(history)
    again = eager_task()
    history = main(tmp_path, task=again, evaluate=scripted(), callbacks=callbacks, **asked)
    assert weights(again) == wanted
    assert history.weights_by == "a callback"


def test_a_callback_that_restores_knows_the_epochs_since_a_restart(tmp_path):
    asked = {"metric": "score"}
    main(tmp_path, task=eager_task(), evaluate=scripted(0.5, 0.4, 0.3), **asked, send=[15, 10])
    early = keras.callbacks.EarlyStopping("val_score", mode="max", restore_best_weights=True)
    evaluate = scripted(0.2, 0.9, 0.1, 0.1)
    with pytest.warns(UserWarning, match="^EarlyStopping restores .* since step 10, where"):
        main(tmp_path, task=eager_task(), evaluate=evaluate, callbacks=[early], **asked)


def test_an_average_of_keras_own_is_refused():
    task = eager_task()
    task.compile(keras.optimizers.Adam(use_ema=True))
    with pytest.raises(ValueError, match=r"Received: Adam with use_ema=True$"):
        main(None, task=task)
