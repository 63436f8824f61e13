"""Weights that are split over devices of JAX, on forced CPU devices."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from kbert.training.strategies import make_strategy

ROOT = Path(__file__).parents[2]

COMMON = """
import json, sys
import keras, kbert, numpy as np, tensorflow as tf
from kbert.training.strategies import make_strategy
from tests.harness import tiny_config

def make_task(optimizer, recompute=False, **changes):
    keras.utils.set_random_seed(0)
    config = tiny_config(**changes)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"w{i}" for i in range(config.vocabulary_size - len(names))]
    task = kbert.tasks.Pretraining(kbert.Encoder(config), kbert.WordPieceTokenizer(names))
    task.compile(optimizer, micro_batches=2, clip_norm=0.5, recompute=recompute)
    return task

def batch(number):
    rng = np.random.default_rng(number)
    shape, masks = (8, 12), (8, 3)
    return {
        "token_ids": rng.integers(5, 40, shape).astype("int32"),
        "segment_ids": np.zeros(shape, "int32"), "padding_mask": np.ones(shape, "int32"),
        "mask_positions": rng.integers(0, 12, masks).astype("int32"),
        "mask_ids": rng.integers(5, 40, masks).astype("int32"),
        "mask_weights": (rng.random(masks) < 0.6).astype("float32"),
        "next_sentence_labels": rng.integers(0, 2, 8).astype("int32"),
        "position": np.tile(np.array([0, 0, number + 1], "int32"), (8, 1)),
    }

def sums(variables):
    return {v.path: float(np.abs(np.asarray(v.value)).sum()) for v in variables}

def laid(variables):
    specs = lambda v: [x for x in getattr(v.value.sharding, "spec", ())]
    return {v.path: [specs(v), [x.data.size for x in v.value.addressable_shards], v.value.size]
            for v in variables}
"""

RUN = (
    COMMON
    + """
from kbert.training import AdamW, WarmupDecay
from kbert.training.run.phases import parse_phases
from tests.training.run.of_functions import train

folder, steps, how, changes = sys.argv[1], *map(json.loads, sys.argv[2:5])
strategy = make_strategy(**how)
with strategy.scope():
    task = make_task(AdamW(WarmupDecay(0.01, 6, 2)), **changes)

def data(phase, start):
    parts = [batch(number) for number in range(int(start[2]), 6)]
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return tf.data.Dataset.from_tensor_slices(stacked)

history = train(task, data, folder, parse_phases("12:1", steps, 8), strategy=strategy)
print(json.dumps({"steps": history.steps, "weights": sums(task.trainable_variables),
                  "replicas": strategy.num_replicas}))
"""
)

COMPARE = (
    COMMON
    + """
from kbert.training.optimization.optimizers import optimizer_class

how, optimizers, changes = map(json.loads, sys.argv[1:4])
frozen = changes.pop("frozen", None)

def train(strategy, name, settings):
    keras.utils.clear_session()  # the same names
    with strategy.scope():
        task = make_task(optimizer_class(name)(0.01, **settings), **changes)
        if frozen:
            task.encoder.get_layer(frozen).trainable = False
        logs = [task.train_on_batch(batch(number), return_dict=True) for number in range(3)]
        logs.append(task.test_on_batch(batch(3), return_dict=True))
    variables = [*task.variables, *task.optimizer.variables]
    values = sums(v for v in variables if v.dtype == "float32")
    return {"steps": [{k: float(x) for k, x in one.items()} for one in logs],
            "weights": values, "laid": laid(variables)}

for name, settings in optimizers.items():
    one, many = (train(s, name, settings) for s in (make_strategy(), make_strategy(**how)))
    print(json.dumps({"alone": one, "split": many}))
"""
)

STORE = (
    COMMON
    + """
from kbert.training import AdamW

import jax

how = json.loads(sys.argv[1])
with make_strategy(**how).scope():
    task = make_task(AdamW(0.01))
    task.prepare(batch(0))
    kinds = ("trainable", "non_trainable", "optimizer", "metrics")
    state = task._get_jax_state(**{f"{kind}_variables": True for kind in kinds})
    program = jax.jit(task.train_step).lower(state, batch(0)).as_text().splitlines()
print(json.dumps(laid([*task.variables, *task.optimizer.variables])))
moved = [line for line in program if "sharding_constraint" in line and "<16x48xf32>" in line]
from kbert.training.run.estimates import bytes_per_device
print(json.dumps({"moved": moved, "bytes": bytes_per_device(task.trainable_variables)}))
"""
)


def execute(program: str, devices: int, *arguments) -> list[dict]:
    """Returns the JSON objects that a program prints, in a process with so many CPU devices."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run(folder, devices: int, how: dict | None = None, steps: int = 6, **changes) -> dict:
    settings = map(json.dumps, (steps, how or {}, changes))
    return execute(RUN, devices, str(folder), *settings)[-1]


def compare(devices: int, how: dict, optimizers: dict | None = None, **changes) -> list[dict]:
    """Returns for each optimizer what one device found, "alone", and what several did, "split"."""
    optimizers = optimizers or {"adamw": {}}
    found = execute(COMPARE, devices, *map(json.dumps, (how, optimizers, changes)))
    assert len(found) == len(optimizers)
    return found


def assert_same(found: dict, alone: dict, skipped: str = "^$") -> None:
    weights, expected = (
        {path: x for path, x in one["weights"].items() if not re.search(skipped, path)}
        for one in (found, alone)
    )
    assert weights == pytest.approx(expected, rel=1e-5)
    for one, two in zip(alone["steps"], found["steps"], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-4) for name, value in one.items()}


SPLIT = {"name": "model_parallel", "model_devices": 2}
SHARDED = {"name": "fully_sharded"}
BOTH = {"name": "fully_sharded", "model_devices": 2}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}


def test_each_device_stores_its_part_of_matrices_and_of_their_moments():
    layouts, program = execute(STORE, 4, json.dumps(SHARDED))
    layer = "encoder/layers_0/"
    assert layouts[f"{layer}attention/qkv/kernel"][0] == [None, "batch"]
    assert layouts[f"{layer}feed_forward/output/kernel"][0] == ["batch", None]
    assert layouts["encoder/embeddings/token"][0] == ["batch", None]
    assert layouts["encoder/embeddings/segment"][0] == [None, "batch"]  # 2 x 16
    tables = ("embeddings/token", "embeddings/position", "embeddings/segment")
    matrices = [x for x in layouts if x.endswith("kernel") or x.endswith(tables)]
    assert len(matrices) == 14
    for path in matrices:
        slots = [f"adam_w/{path.replace('/', '_')}_{slot}" for slot in "mv"]
        for spec, parts, size in (layouts[name] for name in (path, *slots)):
            assert spec == layouts[path][0]
            assert parts == [size // 4] * 4
    trained = [x for x in layouts if not x.startswith("adam_w/") and "seed" not in x]
    assert program["bytes"] == 4 * sum(layouts[path][1][0] for path in trained)
    small = [found for path, found in layouts.items() if path.endswith(("bias", "gamma"))]
    assert all(parts == [size] * 4 for _, parts, size in small)
    # Of each layer's query, key and value: gathered forward and backward, and the gradient's parts.
    assert len(program["moved"]) == 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize("how", [SHARDED, BOTH])
def test_every_optimizer_updates_sharded_weights_as_whole_ones(how):
    """Norms of weights, means of rows and columns, rates of layers and moving averages."""
    scales = {"encoder/layers_0/attention/qkv/kernel": 0.5, "encoder/embeddings/token": 0.25}
    optimizers = {
        "adamw": {"ema": 0.9, "rate_scales": scales},
        "lamb": {},
        "adafactor": {"ema": 0.9},
        "muon": {},
        "adagrad": {},
    }
    for name, found in zip(optimizers, compare(4, how, optimizers), strict=True):
        # The bias of the keys has no gradient but rounding, which Adafactor scales up.
        assert_same(found["split"], found["alone"], skipped="attention.qkv.bias")
        layouts = found["split"]["laid"]
        assert sum(parts[0] < size for _, parts, size in layouts.values()) > 15, name
        averages = [parts for path, (_, parts, _) in layouts.items() if "kernel_average" in path]
        assert bool(averages) == (name in ("adamw", "adafactor"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [SHARDED, BOTH])
@pytest.mark.parametrize(
    "changes", [DROPOUT, {"recompute": True, **DROPOUT}, {"frozen": "embeddings"}]
)
def test_sharded_weights_train_as_whole_ones(how, changes):
    (found,) = compare(4, how, **changes)
    assert_same(found["split"], found["alone"])
    token = found["split"]["laid"]["encoder/embeddings/token"]
    assert token[1][0] == token[2] // 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "devices", "changes"),
    [
        (SPLIT, 2, {}),
        (SPLIT, 4, {"num_layer_groups": 1, "embedding_size": 8}),
        (SHARDED, 4, DROPOUT),
        (BOTH, 4, {"num_layer_groups": 1, "embedding_size": 8}),
    ],
)
def test_a_run_on_devices_resumes_on_one_and_back(tmp_path, how, devices, changes):
    """With clipping and micro-batches."""
    alone = run(tmp_path / "alone", 1, **changes)
    split = run(tmp_path / "split", devices, how, **changes)
    assert split["replicas"] == devices // how.get("model_devices", 1)
    assert_same(split, alone)
    for name, order in (
        ("there", ((devices, how), (1, None))),
        ("back", ((1, None), (devices, how))),
    ):
        run(tmp_path / name, *order[0], steps=3, **changes)
        assert_same(run(tmp_path / name, *order[1], **changes), alone)


@pytest.mark.slow
def test_kernels_and_their_moments_are_halved():
    (found,) = compare(2, SPLIT)
    layouts = found["split"]["laid"]
    halved = {path for path, (_, parts, size) in layouts.items() if parts[0] < size}
    layer = "encoder/layers_0/"
    for part in ("attention/qkv", "feed_forward/intermediate"):
        assert layouts[f"{layer}{part}/kernel"][0] == [None, "model"]
        assert layouts[f"{layer}{part}/bias"][0] == ["model"]
    for part in ("attention/output", "feed_forward/output"):
        assert layouts[f"{layer}{part}/kernel"][0] == ["model", None]
    for path in [path for path in halved if not path.startswith("adam_w")]:
        for slot in "mv":
            assert f"adam_w/{path.replace('/', '_')}_{slot}" in halved
        assert layouts[path][1] == [layouts[path][2] // 2] * 2
    assert not any("norm" in path or "pooler" in path for path in halved)
    kernels = {path for path in layouts if path.startswith(layer) and "kernel" in path}
    assert kernels < halved


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"strategy='mirrored', model_devices=2"):
        make_strategy("mirrored", 2)
    with pytest.raises(ValueError, match=r"model_parallel requires model_devices.*=None"):
        make_strategy("model_parallel")
    match = r"divisible by model_devices.*model_devices=64"
    if keras.backend.backend() != "jax":
        match = "requires JAX: set KERAS_BACKEND=jax. Received: KERAS_BACKEND="
    for name in ("model_parallel", "fully_sharded"):
        with pytest.raises(ValueError, match=match):
            make_strategy(name, 64)
