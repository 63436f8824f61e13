import json
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbert.models import Encoder
from kbert.tasks import TextClassifier
from kbert.tokenizers import WordPieceTokenizer
from kbert.training.strategies import Strategy, make_strategy
from tests.harness import tiny_config
from tests.waiting import PATIENCE

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
import json, os, sys, threading
from kbert.training.strategies import make_strategy
strategy = make_strategy("multi_worker")  # before anything else touches a device
import keras, numpy as np
from kbert.training import Checkpoints
from kbert.training.hosts import Hosts
from tests.training.run.of_functions import train
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.phases import parse_phases
from kbert.training.optimization.schedules import WarmupDecay
from tests.training import toy_task
from tests.waiting import until

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

agreed, agree = threading.Event(), Hosts._agree
Hosts._agree = lambda hosts, number: (agree(hosts, number), agreed.set())

class Signalled(keras.callbacks.Callback):
    '''One host gets a signal in the middle, behind the first checkpoint.'''
    def on_train_batch_end(self, batch, logs=None):
        victim, number = map(int, sys.argv[3:5])
        if (strategy.host_index, batch) == (victim, 12):
            until(lambda: Checkpoints(sys.argv[1] + "/checkpoints").steps())
            os.kill(os.getpid(), number)
            until(agreed.is_set)  # else the steps may be over before the hosts have agreed

history = train(
    task, lambda phase, start: mine(40, start=int(start[2]) // 16), sys.argv[1],
    parse_phases("6:1", int(sys.argv[2]), 16), strategy=strategy, checkpoint_every=5,
    make_evaluation_dataset=lambda phase: mine(3, seed=5), callbacks=[Signalled()])
print(json.dumps({"chief": strategy.is_chief, "hosts": strategy.num_hosts,
                  "stopped_by": history.stopped_by, "step": history.step,
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


def slurm(backend: str, count: int, index: int) -> dict[str, str]:
    """What `srun` sets for a task of a step."""
    found = {
        **{"JOB_ID": "4242", "STEP_NODELIST": "localhost", "STEP_TASKS_PER_NODE": str(count)},
        **{"NTASKS": str(count), "STEP_NUM_TASKS": str(count)},
        **{"PROCID": str(index), "LOCALID": str(index)},
    }
    devices = {"JAX_PLATFORMS": "cpu"} if backend == "jax" else {}
    return {f"SLURM_{name}": value for name, value in found.items()} | devices


def start_workers(
    count: int, backend: str, *arguments, on_slurm: bool = False
) -> list[subprocess.Popen]:
    """`count` processes on this machine, as `--strategy=multi_worker` has them."""
    addresses = [f"localhost:{free_port()}" for _ in range(count)]
    processes = []
    for index in range(count):
        found = {"KERAS_BACKEND": backend}
        found |= slurm(backend, count, index) if on_slurm else cluster(backend, addresses, index)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **found}
        processes.append(
            subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
    return processes


def run_workers(
    count: int,
    folder,
    steps: int,
    backend: str = "tensorflow",
    code: str = WORKER,
    on_slurm: bool = False,
) -> list[dict]:
    """Their last lines, once all have ended well."""
    processes = start_workers(count, backend, "-c", code, folder, steps, -1, 0, on_slurm=on_slurm)
    try:
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
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


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_slurm_s_variables_are_enough(tmp_path, backend):
    found = run_workers(2, tmp_path, 2, backend, on_slurm=True)
    assert [(host["chief"], host["hosts"]) for host in found] == [(True, 2), (False, 2)]
    assert found[0]["weights"] == found[1]["weights"]


def signal_one(folder, backend, victim, number) -> list[tuple[int, str, str]]:
    """Two hosts, of which one gets a signal in the middle: how both end."""
    processes = start_workers(2, backend, "-c", WORKER, folder, 40, victim, int(number))
    try:
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *found) for p, found in zip(processes, outputs, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_signal_to_one_host_stops_all_after_the_same_step(tmp_path, backend):
    ends = signal_one(tmp_path / "hosts", backend, 1, signal.SIGTERM)
    assert [code for code, _, _ in ends] == [0, 0], ends
    found = [json.loads(out.splitlines()[-1]) for _, out, _ in ends]
    assert [x["stopped_by"] for x in found] == [signal.SIGTERM] * 2
    assert 5 <= found[0]["step"] == found[1]["step"] < 40
    assert found[0]["weights"] == found[1]["weights"]
    (alone,) = run_workers(1, tmp_path / "alone", 40, backend)
    hosts = run_workers(2, tmp_path / "hosts", 40, backend)
    assert hosts[0]["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    assert [step["step"] for step in hosts[0]["steps"]] == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_host_that_is_killed_ends_the_others_and_all_resume(tmp_path, backend, victim):
    ends = signal_one(tmp_path / "hosts", backend, victim, signal.SIGKILL)
    code, _, errors = ends[1 - victim]
    assert code not in (0, -signal.SIGKILL), errors
    if (backend, victim) == ("jax", 0):  # JAX ends a process that has lost the service itself
        assert "another task died" in errors
    else:
        assert "Another host of this run ended, or cannot be reached, after step" in errors
        assert "The last good checkpoint is that of step" in errors
    (alone,) = run_workers(1, tmp_path / "alone", 40, backend)
    hosts = run_workers(2, tmp_path / "hosts", 40, backend)
    assert hosts[0]["weights"] == pytest.approx(alone["weights"], rel=1e-5)


@pytest.mark.slow
def test_another_number_of_hosts_goes_on_with_the_same_numbers(tmp_path):
    """Stopped on two, resumed on one, and the other way round."""
    (alone,) = run_workers(1, tmp_path / "alone", 12)
    for name, counts in (("fewer", (2, 1)), ("more", (1, 2))):
        run_workers(counts[0], tmp_path / name, 7)
        found = run_workers(counts[1], tmp_path / name, 12)[0]
        assert found["weights"] == pytest.approx(alone["weights"], rel=1e-5)
        for one, two in zip(alone["steps"], found["steps"], strict=True):
            assert two == {k: pytest.approx(value, rel=1e-4) for k, value in one.items()}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_fine_tuning_on_two_hosts_is_that_of_one(tmp_path, backend):
    """kbert-finetune, with an evaluation an epoch, the best weights and a test set."""
    words = [f"w{i}" for i in range(20)]
    rng = np.random.default_rng(0)
    for name, count in (("train", 90), ("dev", 30), ("test", 20)):
        rows = [rng.choice(words, rng.integers(3, 12)) for _ in range(count)]
        lines = [f"{' '.join(row)}\t{int('w3' in row)}" for row in rows]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    config = tiny_config(
        vocabulary_size=tokenizer.vocabulary_size, dropout=0.0, attention_dropout=0.0
    )
    TextClassifier(Encoder(config), tokenizer, ["0", "1"]).save_to_preset(tmp_path / "preset")
    arguments = [
        "-m", "pipelines.finetune", "--task=classify", f"--preset={tmp_path}/preset",
        *(f"--{name}={tmp_path}/{name}.tsv" for name in ("train", "dev", "test")),
        "--epochs=2", "--batch_size=16", "--learning_rate=1e-2", "--micro_batches=2",
    ]  # fmt: skip
    found = {}
    for count in (1, 2):
        strategy = "multi_worker" if count == 2 else "one_device"
        folder = tmp_path / f"hosts-{count}"
        processes = start_workers(
            count, backend, *arguments, f"--output_dir={folder}", f"--strategy={strategy}"
        )
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
        assert [p.returncode for p in processes] == [0] * count, outputs
        steps = [json.loads(x) for x in (folder / "training/steps.jsonl").read_text().splitlines()]
        result = json.loads((folder / "results.json").read_text())
        found[count] = steps, [result[k] for k in ("dev", "test", "best_step", "steps")]
    assert len(found[1][0]) == 12
    for one, two in zip(found[1][0], found[2][0], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-3) for name, value in one.items()}
    for one, two in zip(found[1][1], found[2][1], strict=True):
        assert two == pytest.approx(one, rel=1e-3)
