"""Models that are split over devices of JAX, on forced CPU devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from kbert.training.strategies import make_strategy

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, sys
from kbert.training.strategies import make_strategy
folder, steps, split = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
strategy = make_strategy("model_parallel", split) if split else make_strategy()
import keras, kbert, numpy as np, tensorflow as tf
from kbert.training import AdamW, WarmupDecay
from tests.training.run.of_functions import train
from kbert.training.run.phases import parse_phases
from tests.harness import tiny_config

keras.utils.set_random_seed(0)
config = tiny_config(dropout=0.0, attention_dropout=0.0, num_heads=4, **json.loads(sys.argv[4]))
names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
names += [f"w{i}" for i in range(config.vocabulary_size - len(names))]
with strategy.scope():
    task = kbert.tasks.Pretraining(kbert.Encoder(config), kbert.WordPieceTokenizer(names))
    task.compile(AdamW(WarmupDecay(0.01, 6, 2)), micro_batches=2, clip_norm=0.5)

def batch(number):
    rng = np.random.default_rng(number)
    shape, masks = (8, 12), (8, 3)
    return {
        "token_ids": rng.integers(5, config.vocabulary_size, shape).astype("int32"),
        "segment_ids": np.zeros(shape, "int32"), "padding_mask": np.ones(shape, "int32"),
        "mask_positions": rng.integers(0, 12, masks).astype("int32"),
        "mask_ids": rng.integers(5, config.vocabulary_size, masks).astype("int32"),
        "mask_weights": (rng.random(masks) < 0.6).astype("float32"),
        "next_sentence_labels": rng.integers(0, 2, 8).astype("int32"),
        "position": np.tile(np.array([0, 0, number + 1], "int32"), (8, 1)),
    }

def data(phase, start):
    parts = [batch(number) for number in range(int(start[2]), 6)]
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    return tf.data.Dataset.from_tensor_slices(stacked)

history = train(task, data, folder, parse_phases("12:1", steps, 8), strategy=strategy)
weights = {v.path: float(np.abs(np.asarray(v.value)).sum()) for v in task.trainable_variables}
spec = lambda v: list(v.value.sharding.spec) if split else None
laid = {v.path: [spec(v), v.value.addressable_data(0).size]
        for v in (*task.trainable_variables, *task.optimizer.variables)}
print(json.dumps({"steps": history.steps, "weights": weights, "laid": laid,
                  "replicas": strategy.num_replicas}))
"""


def run(folder, devices: int, split: int, steps: int = 6, **changes) -> dict:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    arguments = [str(folder), str(steps), str(split), json.dumps(changes)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same(found: dict, alone: dict) -> None:
    assert found["weights"] == pytest.approx(alone["weights"], rel=1e-5)
    for one, two in zip(alone["steps"], found["steps"], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-4) for name, value in one.items()}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("changes", [{}, {"num_layer_groups": 1, "embedding_size": 8}])
def test_a_split_model_trains_as_a_whole_one(tmp_path, devices, changes):
    """With clipping and micro-batches; stopped on the devices and resumed on one, and back."""
    alone = run(tmp_path / "alone", 1, 0, **changes)
    split = run(tmp_path / "split", devices, 2, **changes)
    assert split["replicas"] == devices // 2
    assert_same(split, alone)
    for name, order in (("there", ((devices, 2), (1, 0))), ("back", ((1, 0), (devices, 2)))):
        run(tmp_path / name, *order[0], steps=3, **changes)
        assert_same(run(tmp_path / name, *order[1], **changes), alone)


@pytest.mark.slow
def test_kernels_and_their_moments_are_halved(tmp_path):
    whole, split = (run(tmp_path / str(n), n, n if n > 1 else 0, steps=1) for n in (1, 2))
    halved = {path for path, (_, size) in split["laid"].items() if size < whole["laid"][path][1]}
    layer = "encoder/layers_0/"
    for part in ("attention/qkv", "feed_forward/intermediate"):
        assert split["laid"][f"{layer}{part}/kernel"][0] == [None, "model"]
        assert split["laid"][f"{layer}{part}/bias"][0] == ["model"]
    for part in ("attention/output", "feed_forward/output"):
        assert split["laid"][f"{layer}{part}/kernel"][0] == ["model", None]
    for path in [path for path in halved if not path.startswith("adam_w")]:
        for slot in "mv":
            assert f"adam_w/{path.replace('/', '_')}_{slot}" in halved
        assert 2 * split["laid"][path][1] == whole["laid"][path][1]
    assert not any("norm" in path or "pooler" in path for path in halved)
    kernels = {path for path in whole["laid"] if path.startswith(layer) and "kernel" in path}
    assert kernels < halved


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"strategy='mirrored', model_devices=2"):
        make_strategy("mirrored", 2)
    with pytest.raises(ValueError, match=r"strategy='model_parallel', model_devices=None"):
        make_strategy("model_parallel")
    match = r"divisible by model_devices.*model_devices=64"
    if keras.backend.backend() != "jax":
        match = "set KERAS_BACKEND=jax. Received: KERAS_BACKEND="
    with pytest.raises(ValueError, match=match):
        make_strategy("model_parallel", 64)
