import numpy as np
import pytest
from keras import ops

from kbert.training.optimization.freezing import freeze, thaw
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.averaging import average_checkpoints, use_moving_average
from kbert.training.run.checkpoints import Checkpoints, named_state
from tests.training import toy_task


@pytest.fixture
def task():
    task = toy_task.ToyTask(dropout=0.1)
    task.compile(AdamW(0.05))
    return task


@pytest.fixture
def states(task, tmp_path):
    """Of four steps, as they were saved."""
    states, checkpoints = [], Checkpoints(tmp_path, keep=4)
    for step in range(1, 5):
        task.fit(toy_task.dataset(1, start=step), verbose=0)
        checkpoints.save(task, step)
        states.append(state(task))
    return states


def state(task):
    return {n: ops.convert_to_numpy(v.value).copy() for n, v in named_state(task).items()}


@pytest.mark.usefixtures("eagerly")
def test_weights_are_the_mean_and_all_else_stays(task, states, tmp_path):
    assert average_checkpoints(task, tmp_path, last=3) == [2, 3, 4]
    for name, value in state(task).items():
        if name.startswith("weights/"):
            mean = np.mean([s[name].astype("float64") for s in states[1:]], axis=0)
            np.testing.assert_allclose(value, mean, rtol=1e-6, atol=1e-8)
            assert (value != states[-1][name]).any()
        else:
            np.testing.assert_array_equal(value, states[-1][name])


@pytest.mark.usefixtures("eagerly")
def test_the_mean_of_one_is_that_one(task, states, tmp_path):
    for weight in task.trainable_variables:
        weight.assign(np.zeros(weight.shape))
    assert average_checkpoints(task, tmp_path, last=1) == [4]
    for name, value in state(task).items():
        np.testing.assert_array_equal(value, states[-1][name])


@pytest.mark.tensorflow
def test_all_replicas_have_it(tmp_path, mirrored):
    with mirrored.scope():
        task = toy_task.ToyTask()
        task.compile(AdamW(0.05))
        for step in (1, 2):
            task.fit(toy_task.dataset(1, start=step), verbose=0)
            Checkpoints(tmp_path).save(task, step)
        average_checkpoints(task, tmp_path, last=2)
        values = mirrored.experimental_local_results(task.tokens.kernel.value)
    kernels = [
        next(v for name, v in Checkpoints(tmp_path).read(s).items() if "tokens/kernel" in name)
        for s in (1, 2)
    ]
    for value in values:
        np.testing.assert_allclose(value, np.mean(kernels, axis=0), rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("eagerly")
def test_what_cannot_be_averaged_leaves_the_weights(task, states, tmp_path):
    with pytest.raises(ValueError, match=r"`last` must be at least 1. Received: 0"):
        average_checkpoints(task, tmp_path, last=0)
    with pytest.raises(ValueError, match=r"mean of 5 .* requires as many.*Received: 4 in"):
        average_checkpoints(task, tmp_path, last=5)
    path = tmp_path / "step-00000003.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"oops")
    with pytest.raises(ValueError, match=r"step-00000003.*checksum differs"):
        average_checkpoints(task, tmp_path, last=3)
    for name, value in state(task).items():
        np.testing.assert_array_equal(value, states[-1][name])


@pytest.mark.usefixtures("eagerly")
def test_frozen_weights_are_none_of_a_moving_average():
    task = toy_task.ToyTask()
    frozen = freeze(task, ["embedding/*", "label/*"])
    task.compile(AdamW(0.05, ema=0.5))
    task.fit(toy_task.dataset(3), verbose=0)
    thaw(task, "*")  # as `fit(freeze=…)` does at its end
    before = state(task)
    averages = dict(
        zip(
            (v.path for v in task.optimizer._trainable_variables),
            map(ops.convert_to_numpy, task.optimizer.averages),
            strict=True,
        )
    )
    use_moving_average(task)
    assert len(frozen) == 3
    for weight in task.trainable_variables:
        name = weight.path.removeprefix(f"{task.name}/")
        value = ops.convert_to_numpy(weight.value)
        if name in frozen:
            np.testing.assert_array_equal(value, before[f"weights/{name}"])
        else:
            np.testing.assert_array_equal(value, averages[weight.path])
            assert (value != before[f"weights/{name}"]).any()


@pytest.mark.usefixtures("eagerly")
def test_averages_of_what_is_gone_leave_the_weights():
    task = toy_task.ToyTask()
    task.compile(AdamW(0.05, ema=0.5))
    task.fit(toy_task.dataset(2), verbose=0)
    other = toy_task.ToyTask()
    other.optimizer = task.optimizer
    values = [ops.convert_to_numpy(v.value) for v in other.trainable_variables]
    with pytest.raises(ValueError, match=r"weights that the task still has.*Received: averages of"):
        use_moving_average(other)
    for value, weight in zip(values, other.trainable_variables, strict=True):
        np.testing.assert_array_equal(value, ops.convert_to_numpy(weight.value))
