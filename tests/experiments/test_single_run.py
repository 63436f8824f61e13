"""One run from a pretrained model to results."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import keras
import pytest

import kbert
from kbert.experiments import Experiment, Stopped, run
from kbert.io import atomic

ROOT = Path(__file__).parents[2]
SETTINGS = {"epochs": 4, "batch_size": 16, "learning_rate": 3e-2}


def test_it_learns_measures_and_is_not_made_again(preset, mail, tmp_path, monkeypatch):
    made = []
    make_task = Experiment.make_task

    def spy(self, settings):
        task = make_task(self, settings)
        made.append(weakref.ref(task))
        return task

    monkeypatch.setattr(Experiment, "make_task", spy)
    data = {"train": mail, "dev_share": 0.25, "test": mail}
    experiment = Experiment("classify", preset=preset, **data)
    result = run(experiment, tmp_path, verbose=0, **SETTINGS)
    assert result.dev["accuracy"] == result.test["accuracy"] == 1.0
    assert result.steps == 12
    assert result.seconds > 0
    assert result.peak_memory > 10**8
    assert result.confusion["names"] == ["ham", "spam"]
    assert json.loads((tmp_path / "results.json").read_text())["dev"] == result.dev
    assert "spam" in (tmp_path / "test_report.txt").read_text()
    assert not (tmp_path / "training" / "checkpoints").exists()

    gc.collect()
    assert made[0]() is None  # the memory of a finished run is free

    task = kbert.tasks.Task.from_preset(tmp_path / "preset")
    assert task.predict(["the red fox king ."], verbose=0)[0]["label"] == "spam"

    assert run(experiment, tmp_path, verbose=0, **SETTINGS) == result
    assert len(made) == 1
    with pytest.raises(ValueError, match=r"holds another run.*settings.seed was 0, is 1"):
        run(experiment, tmp_path, verbose=0, **SETTINGS, seed=1)
    other = Experiment("classify", preset=preset, train=mail, dev_share=0.5, test=mail)
    with pytest.raises(ValueError, match=r"another run.*data.train was '48 rows.*, is '32 rows"):
        run(other, tmp_path, verbose=0, **SETTINGS)
    with pytest.raises(ValueError, match=r"is finished"):  # it is at its end
        run(experiment, tmp_path, verbose=0, **SETTINGS, seed=1, resume="changed")

    moved = tmp_path / "moved"
    shutil.copytree(preset, moved)
    again = Experiment("classify", preset=moved, **data)
    assert run(again, tmp_path, verbose=0, **SETTINGS) == result
    shutil.rmtree(moved)
    assert run(again, tmp_path, verbose=0, **SETTINGS) == result
    task.save_to_preset(moved)
    with pytest.raises(ValueError, match=r"another run.*Received: preset_checksum was '\w+', is '"):
        run(again, tmp_path, verbose=0, **SETTINGS)
    with (
        atomic.refusing_others(tmp_path),
        pytest.raises(RuntimeError, match="in use by process"),
    ):
        run(experiment, tmp_path, verbose=0, **SETTINGS)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
def test_a_signal_stops_it_and_the_same_call_resumes(preset, mail, tmp_path, monkeypatch):
    class Signal(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                signal.raise_signal(signal.SIGTERM)

    experiment = Experiment("classify", preset=preset, train=mail, dev=mail)
    settings = {"epochs": 1, "batch_size": 8, "checkpoint_every": 1}
    whole = run(experiment, tmp_path / "whole", verbose=0, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "callbacks", lambda self, settings: [Signal()])
        with pytest.raises(Stopped, match="stopped by SIGTERM after step") as stopped:
            run(experiment, tmp_path / "broken", verbose=0, **settings)
    assert stopped.value.signal == signal.SIGTERM
    other = {**settings, "learning_rate": 1e-3}
    with pytest.raises(ValueError, match=r"Received: settings.learning_rate was 5e-05, is 0.001$"):
        run(experiment, tmp_path / "broken", verbose=0, **other)
    shutil.copytree(tmp_path / "broken", tmp_path / "changed")
    changed = run(experiment, tmp_path / "changed", verbose=0, **other, resume=["learning_rate"])
    assert changed.steps == whole.steps
    again = run(experiment, tmp_path / "broken", verbose=0, **settings)
    assert again.dev == whole.dev
    weights = [tmp_path / name / "preset" / "model.safetensors" for name in ("whole", "broken")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.usefixtures("eagerly")
def test_batches_of_another_size_are_refused_before_anything_is_written(
    preset, mail, tmp_path, monkeypatch
):
    """A checkpoint's position counts batches: the run would skip rows, or train nothing."""

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                raise KeyboardInterrupt

    experiment = Experiment("classify", preset=preset, train=mail, dev=mail)
    settings = {"epochs": 1, "batch_size": 8, "checkpoint_every": 2, "verbose": 0}
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "callbacks", lambda self, settings: [Kill()])
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path, **settings)
    records = [tmp_path / "run.json", tmp_path / "training" / "run.json"]
    written = [path.read_bytes() for path in records]
    for resume in ("same", "changed", ["batch_size"]):
        with pytest.raises(ValueError, match=r"cannot change.*settings.batch_size was 8") as error:
            run(experiment, tmp_path, **{**settings, "batch_size": 64}, resume=resume)
        assert "allow_changes" not in str(error.value)
    more = {name: column + column[:8] for name, column in mail.items()}
    longer = Experiment("classify", preset=preset, train=more, dev=mail)
    with pytest.raises(ValueError, match=r"cannot change.*Received: steps_per_epoch was 8, is 9$"):
        run(longer, tmp_path, **settings, resume="changed")
    assert [path.read_bytes() for path in records] == written
    result = run(experiment, tmp_path, **settings)
    assert (result.steps, result.best_step) == (8, 8)


def test_a_test_set_without_labels_is_answered_as_glue_takes_it(preset, tmp_path):
    pairs = [("the red fox", "the fox")] * 8
    labelled = (pairs, ["entailment", "not_entailment"] * 4)
    test = tmp_path / "test.tsv"
    rows = "".join(f"{n}\tthe fox\tthe dog\n" for n in range(146))
    test.write_text(f"index\tsentence1\tsentence2\n{rows}")
    experiment = Experiment("wnli", preset=preset, train=labelled, dev=labelled, test=test)
    result = run(experiment, tmp_path / "out", verbose=0, epochs=1, batch_size=32)
    assert result.test is None
    assert result.metric == "accuracy"
    assert len((tmp_path / "out" / "WNLI.tsv").read_text().splitlines()) == 147
    assert len((tmp_path / "out" / "test_answers.jsonl").read_text().splitlines()) == 146


def test_the_threshold_is_tuned_on_development_data(preset, tmp_path):
    data = {"text": ["red fox", "tree", "red tree", "moon"], "label": [["x"], ["y"], ["x"], []]}
    experiment = Experiment("multilabel", preset=preset, train=data, dev=data)
    result = run(experiment, tmp_path, verbose=0, epochs=1, batch_size=4)
    threshold = kbert.tasks.Task.from_preset(result.preset).threshold
    assert result.threshold == f"threshold={threshold:.4g}"
    assert threshold != 0.5


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_devices_learn_what_one_does(preset, mail, tmp_path):
    experiment = Experiment("classify", preset=preset, train=mail, dev=mail)
    settings = {"epochs": 1, "batch_size": 8, "verbose": 0, "metric": "loss"}
    one = run(experiment, tmp_path / "one", **settings)
    two = run(experiment, tmp_path / "two", strategy="mirrored", **settings)
    assert two.best_value == pytest.approx(one.best_value, rel=1e-4)


SPLIT = """
import json, sys
from kbert.experiments import Experiment, run
preset, folder, mail, split = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:5])
experiment = Experiment("classify", preset=preset, train=mail, dev=mail)
finish, parts = experiment.finish, []

def count(task, settings):
    values = [weight.value for weight in task.weights]
    parts.append(sum(x.addressable_data(0).size < x.size for x in values))
    return finish(task, settings)

experiment.finish = count
how = {"epochs": 2, "batch_size": 8, "learning_rate": 2e-2, "verbose": 0, "metric": "loss"}
result = run(experiment, folder, **how, **split)
print(json.dumps([result.best_value, result.dev["accuracy"], *parts]))
"""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_model_split_over_devices_learns_what_one_device_does(preset, mail, tmp_path):
    flags = "--xla_force_host_platform_device_count=4"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": flags,
        "PYTHONPATH": str(ROOT),
    }

    def learn(name, **split):
        arguments = (str(preset), str(tmp_path / name), json.dumps(mail), json.dumps(split))
        done = subprocess.run(
            [sys.executable, "-c", SPLIT, *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    *one, whole = learn("one")
    assert one[1] > 0.9
    assert whole == 0
    for name, settings in (("model_parallel", {"model_devices": 2}), ("fully_sharded", {})):
        *split, parts = learn(name, strategy=name, **settings)
        assert split == pytest.approx(one, rel=1e-4)
        assert parts > 0
