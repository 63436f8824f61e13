import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.io import atomic
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.files import RunFiles
from kbert.training.run.phases import parse_phases
from kbert.training.run.settings import RunSettings
from kbert.training.run.values import NonFiniteLoss
from kbert.training.strategies import make_strategy
from tests.training import toy_task
from tests.training.run import of_functions, run_toy
from tests.training.run.of_functions import train
from tests.waiting import until

ROOT = Path(__file__).parents[3]
HOST = re.escape(socket.gethostname())


def in_process(folder, **arguments) -> subprocess.CompletedProcess:
    """The same run in a process of its own, which may be killed."""
    command = [
        sys.executable,
        "-m",
        "tests.training.run.run_toy",
        str(folder),
        json.dumps(arguments),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_killed_runs_resume_bit_for_bit(tmp_path, optimized):
    """kill -9 in the first phase, SIGTERM in the second: every loss and weight is the same."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_toy.main(whole)
    killed = in_process(broken, send=[signal.SIGKILL, 0, 12])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert Checkpoints(broken / "checkpoints").steps() == [7]
    ended = run_toy.main(broken, send=[signal.SIGTERM, 1, 8])
    assert ended.interrupted
    assert 15 < ended.step < 30
    run_toy.main(broken)
    assert_same_run(broken, whole)


@pytest.mark.usefixtures("eagerly")
def test_a_run_that_was_stopped_resumes_bit_for_bit(tmp_path):
    """SIGTERM in the second phase; behind its checkpoint are lines, as a killed run leaves them."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    asked = {"steps": 12, "evaluate_every": 5, "checkpoint_every": 4}
    run_toy.main(whole, **asked)
    ended = run_toy.main(broken, **asked, send=[signal.SIGTERM, 1, 3])
    assert ended.interrupted
    assert 6 < ended.step < 12
    with (broken / "steps.jsonl").open("a") as file:
        file.write(json.dumps({"step": ended.step + 1, "loss": 0.0}) + "\n")
    run_toy.main(broken, **asked)
    assert_same_run(broken, whole, 12)


def assert_same_run(broken, whole, steps=30):
    for name in ("steps.jsonl", "evaluations.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert [line["step"] for line in lines(whole / "steps.jsonl")] == list(range(1, steps + 1))
    last = f"checkpoints/step-{steps:08d}.safetensors"
    assert (broken / last).read_bytes() == (whole / last).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_a_run_in_two_calls_is_a_run(tmp_path):
    """The first stops within a phase; phases, dropout and evaluations follow as in one call."""
    keras.utils.set_random_seed(5)
    whole = run_toy.main(tmp_path / "whole", steps=20)
    run_toy.main(tmp_path / "halves", steps=20, send=[signal.SIGTERM, 0, 4])
    halves = run_toy.main(tmp_path / "halves", steps=20)
    assert whole.steps == halves.steps
    assert whole.evaluations == halves.evaluations
    assert [line["step"] for line in whole.evaluations] == [10, 20]
    assert halves.step == 20
    assert not halves.interrupted


@pytest.mark.usefixtures("eagerly")
def test_batches_are_asked_for_with_what_is_done_of_their_phase(tmp_path):
    asked = []

    def make_dataset(phase, start):
        asked.append((phase.first_step, phase.done))
        batches = toy_task.dataset(9)
        first = len(asked) == 1
        return toy_task.with_signal(batches, signal.SIGTERM, 2) if first else batches

    for _ in range(2):
        task = toy_task.ToyTask()
        task.compile(AdamW(0.01))
        history = train(task, make_dataset, tmp_path, parse_phases("6:0.5,6:0.5", 8, 16))
    step = history.steps[-1]["step"]
    assert (step, asked[0], asked[2]) == (8, (0, 0), (4, 0))
    assert asked[1][0] == 0
    assert 0 < asked[1][1] < 4


def toy_train(folder, steps, **settings):
    """`train` on endless toy batches, with nothing asked that `settings` do not ask."""
    task = toy_task.ToyTask()
    task.compile(AdamW(0.01))
    settings = {"checkpoint_every": None, **settings}
    return train(
        task, lambda *_: toy_task.dataset(steps), folder, parse_phases("6:1", steps, 16), **settings
    )


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_an_evaluation_ends_with_a_checkpoint(tmp_path, number):
    handler = signal.signal(number, signal.default_int_handler)
    try:
        history = toy_train(
            tmp_path,
            9,
            make_evaluation_dataset=lambda _: toy_task.with_signal(toy_task.dataset(2), number, 1),
            evaluate_every=3,
        )
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, handler)
    assert (history.step, history.stopped_by, history.interrupted) == (3, number, True)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [3]


@pytest.mark.usefixtures("eagerly")
def test_a_checkpoint_of_a_stop_goes_when_the_next_is_there(tmp_path):
    run_toy.main(tmp_path, steps=8, send=[signal.SIGTERM, 0, 2], checkpoint_every=None)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert len(checkpoints.steps()) == 1
    assert checkpoints.latest()["step"] < 8
    assert checkpoints.latest()["progress"]["bridge"]
    run_toy.main(tmp_path, steps=8, checkpoint_every=None)
    assert checkpoints.steps() == [8]


@pytest.mark.usefixtures("eagerly")
def test_checkpoints_by_the_clock_do_not_count_beside_those_by_steps(tmp_path):
    """The mean of the last ones would depend on the speed of the machine."""
    own = {"steps": 8, "checkpoint_minutes": 0, "keep_checkpoints": 3}
    run_toy.main(tmp_path / "both", **own, checkpoint_every=3)
    assert Checkpoints(tmp_path / "both" / "checkpoints").steps() == [3, 6, 8]
    run_toy.main(tmp_path / "clock", **own, checkpoint_every=None)
    assert Checkpoints(tmp_path / "clock" / "checkpoints").steps() == [6, 7, 8]


@pytest.mark.usefixtures("eagerly")
def test_evaluations_measure_more_than_losses(tmp_path, capsys):
    scores = iter([{"bleu": 12.5}, {"bleu": 25.0}])
    asked = {"steps": 4, "evaluate_every": 2}
    history = run_toy.main(tmp_path, **asked, extra_scores=lambda: next(scores))
    assert [line["bleu"] for line in history.evaluations] == [12.5, 25.0]
    assert all("mlm_loss" in line for line in history.evaluations)
    out = capsys.readouterr().out
    assert "evaluation after step 2: " in out
    assert " · bleu 12.5\n" in out
    assert "step 4/4 · loss" in out
    assert " · bleu 12.5 · " in out


@pytest.mark.usefixtures("eagerly")
def test_a_start_removes_leftovers_of_a_kill(tmp_path):
    leftovers = [
        tmp_path / "run.json.writing-77",
        tmp_path / "checkpoints" / "step-00000001.safetensors",
        tmp_path / "checkpoints" / "step-00000001.json.writing-77",
    ]
    leftovers[-1].parent.mkdir()
    for path in leftovers:
        path.write_bytes(b"half")
    toy_train(tmp_path, 2)
    assert not any(path.exists() for path in leftovers)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]


@pytest.mark.usefixtures("eagerly")
def test_only_the_chief_writes_and_reads_logs(tmp_path):
    other = dataclasses.replace(make_strategy(), host_index=1)
    history = toy_train(tmp_path / "other", 2, strategy=other)
    assert (history.step, history.steps) == (2, [])
    assert not (tmp_path / "other").exists()


def weights_after(monkeypatch, folder, steps):
    """The history of a toy run and its task's weights when `train` returns."""
    tasks, inner = [], of_functions.train

    def train(task, *args, **kwargs):
        tasks.append(task)
        return inner(task, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(of_functions, "train", train)
        history = run_toy.main(folder, steps=steps)
    return history, [w.numpy() for w in (*tasks[0].weights, *tasks[0].optimizer.variables)]


@pytest.mark.usefixtures("eagerly")
def test_a_finished_run_trains_nothing_and_has_its_weights(tmp_path, monkeypatch, capsys):
    first, trained = weights_after(monkeypatch, tmp_path, 4)
    capsys.readouterr()
    again, restored = weights_after(monkeypatch, tmp_path, 4)
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "already finished, nothing is left to train: trained for 4 steps"
    ]
    assert again.steps == first.steps
    assert (again.step, again.evaluations) == (first.step, first.evaluations)
    assert len(restored) == len(trained)
    for a, b in zip(restored, trained, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("eagerly")
def test_a_run_beyond_its_end_is_told(tmp_path, monkeypatch):
    _, trained = weights_after(monkeypatch, tmp_path, 6)
    with pytest.warns(UserWarning, match="ends at step 4, but its checkpoint is that of step 6"):
        history, restored = weights_after(monkeypatch, tmp_path, 4)
    assert history.step == 6
    np.testing.assert_array_equal(restored[0], trained[0])


def test_each_phase_traces_once(tmp_path):
    traced = []

    class Counting(toy_task.ToyTask):
        def loss_terms(self, batch, training):
            traced.append((batch["token_ids"].shape[1], training))
            return super().loss_terms(batch, training)

    task = Counting()
    task.compile(AdamW(0.01))
    phases = parse_phases("6:0.5,12:0.5", 8, 16)
    train(
        task,
        lambda phase, start: toy_task.dataset(8, length=phase.sequence_length),
        tmp_path,
        phases,
        checkpoint_every=None,
    )
    assert [length for length, training in traced if training] == [6, 12]


def poisoned(step: int) -> tf.data.Dataset:
    """Batches of which one makes the loss NaN."""
    batches = toy_task.batches(20)
    batches[step]["mask_weights"][0, 0] = np.nan
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    return tf.data.Dataset.from_tensor_slices(stacked)


@pytest.mark.usefixtures("eagerly")
def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    task = toy_task.ToyTask()
    task.compile(AdamW(0.01))
    phases = parse_phases("6:1", 20, 16)
    message = "loss is nan.*mlm_loss is nan.* at step 9. The last good checkpoint is that of step 8"
    with pytest.raises(NonFiniteLoss, match=message):
        train(task, lambda *_: poisoned(8), tmp_path, phases, checkpoint_every=4)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4, 8]
    assert lines(tmp_path / "steps.jsonl")[-1]["step"] == 8
    assert all(np.isfinite(v.numpy()).all() for v in (*task.weights, *task.optimizer.variables))


@pytest.mark.usefixtures("eagerly")
def test_a_dataset_that_ends_is_an_error(tmp_path):
    task = toy_task.ToyTask()
    task.compile(AdamW(0.01))
    with pytest.raises(RuntimeError, match=r"its phase needs 20 steps. Received: 3 steps"):
        train(task, lambda *_: toy_task.dataset(3), tmp_path, parse_phases("6:1", 20, 16))


def test_batches_must_divide_over_micro_batches(tmp_path):
    task = toy_task.ToyTask()
    task.compile(AdamW(0.01), micro_batches=3)
    with pytest.raises(ValueError, match="batch_size=16, 1 devices, micro_batches=3"):
        train(task, lambda *_: toy_task.dataset(3), tmp_path, parse_phases("6:1", 20, 16))


@pytest.mark.usefixtures("eagerly")
def test_settings_are_kept_and_changes_are_refused(tmp_path):
    run_toy.main(tmp_path, steps=4, record={"settings": {"rate": 0.1}, "seed": 1})
    assert json.loads((tmp_path / "run.json").read_text())["settings"] == {"rate": 0.1}
    other = {"settings": {"rate": 0.2}, "seed": 2}
    with pytest.raises(
        ValueError,
        match=r"--allow_changes=seed,rate. Received: seed was 1, is 2; settings.rate was",
    ):
        run_toy.main(tmp_path, steps=4, record=other)
    with pytest.raises(ValueError, match=r"Received: seed was 1, is 2$"):
        run_toy.main(tmp_path, steps=4, record=other, resume=["settings.rate"])
    with pytest.raises(ValueError, match=r"Received: settings.rate was 0.1, is 0.2$"):
        run_toy.main(tmp_path, steps=4, record=other, unchecked=["seed"])
    run_toy.main(tmp_path, steps=4, record=other, resume=["rate", "seed"])
    assert json.loads((tmp_path / "run.json").read_text())["seed"] == 2


@pytest.mark.usefixtures("eagerly")
def test_a_change_that_ends_a_run_before_its_checkpoint_is_refused(tmp_path):
    run_toy.main(tmp_path, steps=6, record={"steps": 6})
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match=r"at least 6 steps. Received: an end after step 4 of "):
        run_toy.main(tmp_path, steps=4, record={"steps": 4}, resume=["steps"])
    assert (tmp_path / "run.json").read_bytes() == before
    assert run_toy.main(tmp_path, steps=6, record={"steps": 6}).step == 6


@pytest.mark.usefixtures("eagerly")
def test_checkpoints_without_settings_are_told(tmp_path):
    run_toy.main(tmp_path, steps=4, record={"rate": 0.1})
    (tmp_path / "run.json").unlink()
    with pytest.warns(UserWarning, match="has checkpoints but no run.json.* step 4 is resumed"):
        run_toy.main(tmp_path, steps=4, record={"rate": 0.2})
    assert json.loads((tmp_path / "run.json").read_text())["rate"] == 0.2


@pytest.mark.usefixtures("eagerly")
def test_a_tokenizer_is_compared_where_the_file_says_which(tmp_path):
    run_toy.main(tmp_path, steps=4, record={"data": "a"})  # as before the setting was there
    run_toy.main(tmp_path, steps=4, record={"data": "a", "tokenizer": "x"})
    changed = {"data": "b", "tokenizer": "x"}
    run_toy.main(tmp_path, steps=4, record=changed, resume=["data"])
    with pytest.raises(ValueError, match=r"Received: tokenizer was 'x', is 'y'$"):
        run_toy.main(tmp_path, steps=4, record={"data": "c", "tokenizer": "y"}, resume=["data"])


@pytest.mark.usefixtures("eagerly")
def test_one_process_at_a_time_writes(tmp_path):
    with (
        atomic.refusing_others(tmp_path),
        pytest.raises(RuntimeError, match=rf"in use by process {os.getpid()} on {HOST}"),
    ):
        toy_train(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []
    assert toy_train(tmp_path, 2).step == 2
    assert not (tmp_path / ".lock").exists()


@pytest.mark.usefixtures("eagerly")
def test_a_disk_that_is_full_ends_the_run(tmp_path, monkeypatch):
    """The checkpoint is written in the background: what goes wrong there is not lost."""

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "write", fail)
    with pytest.raises(OSError, match="No space left on device"):
        toy_train(tmp_path, 9, checkpoint_every=2)
    assert len(lines(tmp_path / "steps.jsonl")) < 9


@pytest.mark.usefixtures("eagerly")
def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """And it is of its step, whatever was trained meanwhile."""
    task, seen = toy_task.ToyTask(), {}
    task.compile(AdamW(0.01))
    write = Checkpoints.write

    def slow(self, arrays, step, info):
        until(lambda: int(task.optimizer.iterations) >= min(step + 2, 9))
        write(self, arrays, step, info)

    class Weights(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[batch + 1] = self.model.tokens.kernel.numpy()

    monkeypatch.setattr(Checkpoints, "write", slow)
    train(
        task,
        lambda *_: toy_task.dataset(9),
        tmp_path,
        parse_phases("6:1", 9, 16),
        checkpoint_every=3,
        callbacks=[Weights()],
    )
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.steps() == [3, 6, 9]
    for step in checkpoints.steps():
        np.testing.assert_array_equal(checkpoints.read(step)["weights/tokens/kernel"], seen[step])


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            self.model.stop_training = True


@pytest.mark.usefixtures("eagerly")
def test_a_callback_may_end_a_run_of_phases(tmp_path):
    history = toy_train(tmp_path, 9, callbacks=[Stop()])
    assert (history.step, history.ended_by, history.epoch) == (5, "a callback", [0])
    assert toy_train(tmp_path, 9).step == 5


@pytest.mark.usefixtures("eagerly")
def test_progress_says_loss_speed_and_time(tmp_path, capsys):
    run_toy.main(tmp_path, steps=4)
    out = capsys.readouterr().out
    assert "step 1/4 · loss" in out
    assert "tokens/s · 0 s left" in out.splitlines()[-3]
    assert "evaluation after step 4: loss" in out


@pytest.mark.usefixtures("eagerly")
def test_curves_for_tensorboard(tmp_path):
    run_toy.main(tmp_path, steps=4, tensorboard=True)
    (file,) = (tmp_path / "tensorboard").iterdir()
    tags = set()
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        tags |= {value.tag for value in event.summary.value}
    assert {"train/loss", "train/learning_rate", "evaluation/perplexity"} <= tags


@pytest.mark.parametrize(
    ("is_installed", "is_chief", "is_told"),
    [(False, True, True), (True, True, False), (False, False, False)],
)
def test_a_run_tells_when_it_begins_that_there_is_no_tensorboard(
    tmp_path, is_installed, is_chief, is_told, monkeypatch, caplog
):
    stand_in = ModuleType("tensorboard") if is_installed else None
    monkeypatch.setitem(sys.modules, "tensorboard", stand_in)
    RunFiles(tmp_path, RunSettings(tensorboard=True), is_chief=is_chief)
    RunFiles(tmp_path, RunSettings(), is_chief=is_chief)
    start = f"Viewing {tmp_path}/tensorboard needs the extra: pip install 'kbert[tensorboard]'"
    told = [x for x in caplog.messages if x.startswith(start)]
    assert len(told) == is_told
    assert all(x.endswith("The curves are written without it.") for x in told)
