"""Which precision devices are given: devices that are not here are told of by their details."""

import types

import keras
import pytest
import tensorflow as tf

from kbert.training import fastest_precision

A100, T4, V100, P100 = (8, 0), (7, 5), (7, 0), (6, 0)
GPUS = [
    ([], "float32"),
    ([A100], "mixed_bfloat16"),
    ([(12, 0)], "mixed_bfloat16"),
    ([T4], "mixed_float16"),
    ([V100], "mixed_float16"),
    ([P100], "float32"),
    ([A100, T4], "mixed_float16"),
]


@pytest.mark.parametrize(("capabilities", "expected"), GPUS)
def test_tensorflow(monkeypatch, capabilities, expected):
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: capabilities if kind == "GPU" else []
    )
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda x: {"compute_capability": x}
    )
    assert fastest_precision() == expected


def test_a_gpu_that_tells_nothing(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [kind] if kind == "GPU" else []
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda x: {})
    assert fastest_precision() == "float32"


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([{"platform": "cpu"}], "float32"),
        ([{"platform": "tpu"}] * 8, "mixed_bfloat16"),
        ([{"platform": "gpu", "compute_capability": "9.0"}], "mixed_bfloat16"),
        ([{"platform": "gpu", "compute_capability": "7.5"}], "mixed_float16"),
        ([{"platform": "gpu", "compute_capability": "gfx90a"}], "float32"),
    ],
)
def test_jax(monkeypatch, devices, expected):
    jax = pytest.importorskip("jax")
    found = [types.SimpleNamespace(**device) for device in devices]
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(jax, "devices", lambda: found)
    assert fastest_precision() == expected
