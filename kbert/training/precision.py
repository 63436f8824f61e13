"""Choice of the fastest precision for a machine's devices."""

import keras

from kbert.core.late import tf

# NVIDIA's compute capability: Ampere has bfloat16 in its tensor cores, Volta float16.
_BFLOAT16, _FLOAT16 = (8, 0), (7, 0)


def fastest_precision() -> str:
    """Returns the fastest precision for training on the available devices, for `dtype`.

    "mixed_bfloat16" on TPUs and on NVIDIA GPUs from Ampere on, "mixed_float16" on Volta and Turing
    (V100, T4), "float32" on older GPUs and on CPUs. Few CPUs are faster with less
    (`python -m kbert.doctor` reports it). The slowest of several devices decides. Weights are
    always float32.

    Returns:
        The name of a Keras dtype policy.

    Example:
        >>> fastest_precision() in ("float32", "mixed_bfloat16", "mixed_float16")
        True
    """
    on_jax = keras.backend.backend() == "jax"
    capabilities = _capabilities_of_jax() if on_jax else _capabilities_of_tensorflow()
    slowest = min(capabilities, default=(0, 0))
    if slowest >= _BFLOAT16:
        return "mixed_bfloat16"
    return "mixed_float16" if slowest >= _FLOAT16 else "float32"


def _capabilities_of_tensorflow() -> list[tuple[int, int]]:
    """Returns (major, minor) compute capability of each GPU; a TPU counts as Ampere."""
    if tf.config.list_physical_devices("TPU"):
        return [_BFLOAT16]
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    return [detail.get("compute_capability", (0, 0)) for detail in details]


def _capabilities_of_jax() -> list[tuple[int, int]]:
    """Returns (major, minor) compute capability of each device: a TPU as Ampere, a CPU (0, 0)."""
    import jax

    capabilities = []
    for device in jax.devices():
        if device.platform == "tpu":
            capabilities.append(_BFLOAT16)
        else:  # "8.0" of an NVIDIA GPU
            major, _, minor = str(getattr(device, "compute_capability", "0.0")).partition(".")
            capabilities.append((int(major), int(minor)) if f"{major}{minor}".isdigit() else (0, 0))
    return capabilities
