import json

import keras
import numpy as np
import pytest
from keras import ops

from kbert.training.optimization.adafactor import Adafactor
from kbert.training.optimization.optimizers import AdamW, Lamb
from kbert.training.run.checkpoints import Checkpoints, named_state
from tests.training import toy_task


def trained_task(steps=2, dropout=0.3, optimizer=AdamW) -> toy_task.ToyTask:
    keras.utils.set_random_seed(0)
    task = toy_task.ToyTask(dropout)
    task.compile(optimizer(0.01))
    task.fit(toy_task.dataset(steps), verbose=0)
    return task


def state(task) -> dict[str, list]:
    return {n: ops.convert_to_numpy(v.value).tolist() for n, v in named_state(task).items()}


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("optimizer", [AdamW, Adafactor])
def test_restores_everything(tmp_path, optimizer):
    task, checkpoints = trained_task(optimizer=optimizer), Checkpoints(tmp_path)
    checkpoints.save(task, 2)
    saved = state(task)
    assert checkpoints.latest()["position"] == [0, 0, 32] == saved["data_position"]
    assert saved["optimizer/iteration"] == 2
    assert saved["seeds/0"][1] == 2
    task.fit(toy_task.dataset(3), verbose=0)
    assert state(task) != saved
    checkpoints.restore(task, 2)
    assert state(task) == saved


@pytest.mark.usefixtures("eagerly")
def test_names_do_not_depend_on_what_was_made_before(tmp_path):
    first = trained_task()
    Checkpoints(tmp_path).save(first, 2)
    keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(1)])  # Keras counts these
    second = trained_task(steps=1)
    Checkpoints(tmp_path).restore(second, 2)
    assert state(second) == state(first)


@pytest.mark.tensorflow
def test_a_mirrored_run_resumes_on_one_device_and_back(tmp_path, mirrored):
    alone = trained_task()
    Checkpoints(tmp_path).save(alone, 2)
    with mirrored.scope():
        task = trained_task(steps=1)
        Checkpoints(tmp_path).restore(task, 2)
        replicas = mirrored.experimental_local_results(task.tokens.kernel.value)
    assert state(task) == state(alone)
    assert all((r.numpy() == alone.tokens.kernel.numpy()).all() for r in replicas)


@pytest.mark.usefixtures("eagerly")
def test_keeps_the_newest(tmp_path):
    task, checkpoints = trained_task(), Checkpoints(tmp_path, keep=2)
    for step in (5, 10, 15):
        checkpoints.save(task, step)
    assert checkpoints.steps() == [10, 15]
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.usefixtures("eagerly")
def test_what_bridged_a_stop_makes_room(tmp_path):
    """Or what is averaged in the end would depend on when a run was stopped."""
    task, checkpoints = trained_task(), Checkpoints(tmp_path, keep=2)
    for step in (5, 10):
        checkpoints.save(task, step)
    Checkpoints(tmp_path, keep=9).save(task, 13, {"bridge": True})
    assert checkpoints.steps() == [5, 10, 13]
    checkpoints.remove_bridges(13)  # the run resumes from it
    checkpoints.save(task, 15)
    assert checkpoints.steps() == [10, 15]
    # The process may die between writing and removing.
    Checkpoints(tmp_path, keep=9).save(task, 13, {"bridge": True})
    checkpoints.remove_bridges(15)
    assert checkpoints.steps() == [10, 15]


@pytest.mark.usefixtures("eagerly")
def test_what_is_not_finite_is_no_checkpoint(tmp_path):
    task, checkpoints = trained_task(), Checkpoints(tmp_path)
    kernel = ops.convert_to_numpy(task.tokens.kernel.value).copy()
    kernel[0, 0] = np.nan
    task.tokens.kernel.assign(kernel)
    with pytest.raises(ValueError, match=r"must be finite.* NaN or infinity in weights/tokens/ker"):
        checkpoints.save(task, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("eagerly")
def test_a_save_that_was_cut_off_is_no_checkpoint(tmp_path):
    """Arrays without their JSON are what a process killed while writing leaves behind."""
    task, checkpoints = trained_task(), Checkpoints(tmp_path)
    checkpoints.save(task, 1)
    (tmp_path / "step-00000002.safetensors").write_bytes(b"half")
    assert checkpoints.latest()["step"] == 1
    checkpoints.save(task, 2)
    assert checkpoints.latest()["step"] == 2


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_checkpoint_is_passed_over_loudly(tmp_path, damage):
    task, checkpoints = trained_task(), Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(task, step)
    path = tmp_path / "step-00000002.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    damaged = {"cut": bytes(content[:100]), "changed": bytes(content)}
    path.unlink() if damage == "gone" else path.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match="step 2 is damaged and skipped: .*step-00000002"):
        assert checkpoints.latest()["step"] == 1


@pytest.mark.usefixtures("eagerly")
def test_no_whole_checkpoint_is_an_error(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(trained_task(), 1)
    (tmp_path / "step-00000001.safetensors").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(ValueError, match=r"Every checkpoint of the run is damaged.*step-00000001"),
    ):
        checkpoints.latest()


@pytest.mark.usefixtures("eagerly")
def test_another_format_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(trained_task(), 1)
    path = tmp_path / "step-00000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(ValueError, match=r"must be of format 1. Received: 99"),
    ):
        checkpoints.latest()


@pytest.mark.usefixtures("eagerly")
def test_differences_are_listed_and_nothing_is_set(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(trained_task(optimizer=Lamb, dropout=0.0), 1)
    other = trained_task(steps=1)
    other.compile(keras.optimizers.SGD(0.1))
    other.fit(toy_task.dataset(1), verbose=0)
    before = state(other)
    with pytest.raises(ValueError, match=r"step-00000001.safetensors") as error:
        checkpoints.restore(other, 1)
    assert "- missing seeds/0" in str(error.value)
    assert "+ unexpected optimizer/" in str(error.value)
    assert state(other) == before


@pytest.mark.usefixtures("eagerly")
def test_a_float_is_stored_exactly(tmp_path):
    task = trained_task()
    values = np.array([1e-38, np.pi, -0.0, 3e38], "float32")
    kernel = ops.convert_to_numpy(task.tokens.kernel.value).copy()
    kernel[0, :4] = values
    task.tokens.kernel.assign(kernel)
    Checkpoints(tmp_path).save(task, 1)
    task.tokens.kernel.assign(kernel * 0)
    Checkpoints(tmp_path).restore(task, 1)
    assert ops.convert_to_numpy(task.tokens.kernel.value)[0, :4].tobytes() == values.tobytes()


@pytest.mark.usefixtures("eagerly")
def test_leftovers_of_a_kill_are_removed(tmp_path):
    task, checkpoints = trained_task(), Checkpoints(tmp_path)
    checkpoints.save(task, 1)
    whole = sorted(tmp_path.iterdir())
    (tmp_path / "step-00000002.safetensors").write_bytes(b"an orphan: its JSON never came")
    (tmp_path / "step-00000003.safetensors.writing-77").write_bytes(b"half")
    checkpoints.remove_leftovers()
    assert sorted(tmp_path.iterdir()) == whole
    Checkpoints(tmp_path / "none").remove_leftovers()  # a run that begins has no folder yet


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", ["step-00000002 (copy)", "step-00000001.old", "step-", "step-2"])
def test_files_of_others_are_left_alone(tmp_path, name):
    task, checkpoints = trained_task(), Checkpoints(tmp_path, keep=1)
    checkpoints.save(task, 1)
    foreign = [tmp_path / f"{name}.json", tmp_path / f"{name} again.safetensors"]
    for path in foreign:
        path.write_text("{}")
    assert checkpoints.steps() == [1]
    assert checkpoints.latest()["step"] == 1
    checkpoints.remove_leftovers()
    checkpoints.save(task, 123456789)
    assert checkpoints.steps() == [123456789]
    assert all(path.exists() for path in foreign)
