import json
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.training.strategies import Strategy, make_strategy

ROOT = Path(__file__).parents[2]


def test_one_device():
    strategy = make_strategy("one_device")
    assert (strategy.num_replicas, strategy.num_hosts, strategy.is_chief) == (1, 1, True)
    dataset = tf.data.Dataset.range(3)
    assert strategy.distribute(dataset) is dataset
    assert strategy.agrees(7)


@pytest.mark.tensorflow
@pytest.mark.parametrize("counted", ["rows", "tokens"])
def test_a_host_s_rows_go_to_its_devices(counted):
    """Batches that are counted in tokens differ in their rows."""
    engine = types.SimpleNamespace(distribute_datasets_from_function=lambda make: make(None))
    strategy = Strategy(name="x", num_replicas=4, num_hosts=2, host_index=0, engine=engine)
    sizes = (4, 4) if counted == "rows" else (4, 2)
    batches = [{"x": np.arange(2 * n).reshape(n, 2)} for n in sizes]
    shape = (4, 2) if counted == "rows" else (None, 2)
    dataset = tf.data.Dataset.from_generator(
        lambda: batches, output_signature={"x": tf.TensorSpec(shape, tf.int64)}
    )
    found = [part["x"].tolist() for part in strategy.distribute(dataset).as_numpy_iterator()]
    expected = [half.tolist() for batch in batches for half in np.split(batch["x"], 2)]
    assert found == expected


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match=r"must be one of .*Received: 'mirror'"):
        make_strategy("mirror")


def test_a_batch_must_divide_over_devices_and_micro_batches():
    strategy = make_strategy("one_device")
    strategy.check_batch(12, 3)
    with pytest.raises(ValueError, match="batch_size=12, 1 devices, micro_batches=5"):
        strategy.check_batch(12, 5)


def test_tpus_that_are_not_there():
    match = "no TPU" if keras.backend.backend() == "jax" else "set KERAS_BACKEND=jax for TPUs"
    with pytest.raises(RuntimeError, match=match):
        make_strategy("tpu")


WORKER = """
import json, sys
from kbert.training.strategies import make_strategy
strategy = make_strategy("multi_worker")  # before anything else touches a device
import keras, numpy as np
from kbert.training import train
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.phases import parse_phases
from kbert.training.optimization.schedules import WarmupDecay
from tests.training import toy_task

keras.utils.set_random_seed(0)
with strategy.scope():
    task = toy_task.ToyTask()
    task.compile(AdamW(WarmupDecay(0.05, 40, 5)), micro_batches=2, clip_norm=0.5)

def mine(steps, **settings):
    '''This host's rows of every global batch: the masks are very unevenly shared out.'''
    rows = 16 // strategy.num_hosts
    first = rows * strategy.host_index
    data = toy_task.dataset(steps, **settings).map(
        lambda batch: {name: x[first : first + rows] for name, x in batch.items()})
    return data

history = train(
    task, lambda phase, start: mine(12, start=int(start[2]) // 16), sys.argv[1],
    parse_phases("6:1", int(sys.argv[2]), 16), strategy=strategy, checkpoint_every=5,
    make_evaluation_dataset=lambda phase: mine(3, seed=5))
print(json.dumps({"chief": strategy.is_chief, "hosts": strategy.num_hosts,
                  "weights": [float(np.abs(v.numpy()).sum()) for v in task.trainable_variables],
                  "steps": history.steps, "evaluations": history.evaluations}))
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


def cluster(backend: str, addresses: list[str], index: int) -> dict[str, str]:
    """The variables by which the processes of a run find each other."""
    if backend == "tensorflow":
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        return {"TF_CONFIG": json.dumps(task)}
    prefix = "KERAS_DISTRIBUTION_"
    return {
        "JAX_PLATFORMS": "cpu",
        f"{prefix}JOB_ADDRESSES": addresses[0],
        f"{prefix}NUM_PROCESSES": str(len(addresses)),
        f"{prefix}PROCESS_ID": str(index),
    }


def run_workers(
    count: int, folder, steps: int, code: str = WORKER, backend: str = "tensorflow"
) -> list[dict]:
    """`count` processes on this machine, as `--strategy=multi_worker` has them."""
    addresses = [f"localhost:{free_port()}" for _ in range(count)]
    processes = []
    for index in range(count):
        found = {"KERAS_BACKEND": backend, **cluster(backend, addresses, index)}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **found}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", code, str(folder), str(steps)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_two_hosts_train_as_one_and_resume(tmp_path, backend):
    """With very uneven counts of masks, clipping and micro-batches; stopped after 7 steps."""
    (alone,) = run_workers(1, tmp_path / "alone", 12, backend=backend)
    run_workers(2, tmp_path / "hosts", 7, backend=backend)
    hosts = run_workers(2, tmp_path / "hosts", 12, backend=backend)
    assert [host["chief"] for host in hosts] == [True, False]
    assert hosts[0]["weights"] == hosts[1]["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    for one, two in zip(alone["steps"], hosts[0]["steps"], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-4) for name, value in one.items()}
    last = alone["evaluations"][-1]
    assert hosts[0]["evaluations"][-1] == {k: pytest.approx(v, rel=1e-4) for k, v in last.items()}
