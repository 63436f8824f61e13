"""Gathers of tokens beside NumPy's, and on several devices."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from kbert.layers.gather import gather_positions, gather_rows
from tests.harness import to_numpy

RNG = np.random.default_rng(0)
POSITIONS = np.array([[4, 0, 0], [1, 3, 2]])


def test_positions_are_gathered_from_each_sequence():
    sequence = RNG.normal(size=(2, 5, 3)).astype("float32")
    found = to_numpy(gather_positions(ops.array(sequence), ops.array(POSITIONS)))
    np.testing.assert_array_equal(found, np.take_along_axis(sequence, POSITIONS[..., None], 1))


@pytest.mark.parametrize("shape", [(2, 4, 5, 3), (2, 1, 5, 5), (1, 1, 5, 5), (1, 4, 5, 3)])
def test_rows_are_gathered_from_each_head(shape):
    x = RNG.normal(size=shape).astype("float32")
    found = to_numpy(gather_rows(ops.array(x), ops.array(POSITIONS)))
    whole = np.broadcast_to(x, (2, *shape[1:]))
    np.testing.assert_array_equal(found, np.take_along_axis(whole, POSITIONS[:, None, :, None], 2))


PROGRAM = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from kbert.layers.gather import gather_positions, gather_rows

rows = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), PartitionSpec("batch"))

def loss(sequence, heads, positions):
    gathered = gather_positions(sequence, positions), gather_rows(heads, positions)
    return sum((x * x).sum() for x in gathered)

arguments = [jax.device_put(np.ones(shape, dtype), rows) for shape, dtype in (
    ((4, 5, 3), "float32"), ((4, 2, 5, 3), "float32"), ((4, 2), "int32"))]
program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile().as_text()
print([name for name in ("all-gather", "all-reduce", "all-to-all") if f" {name}(" in program])
"""


def test_devices_gather_from_their_own_sequences():
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[]"
