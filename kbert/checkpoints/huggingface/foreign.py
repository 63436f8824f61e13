"""Reads weights of transformers' TensorFlow and Flax classes, by the names of its PyTorch classes.

The TensorFlow classes (until version 4) wrote Keras' HDF5: GROUP/MODEL/path/of/layers/kernel:0,
where the groups are the model's direct layers. A layer that shares the token table has a copy of
it. The Flax classes wrote nested dicts of arrays in MessagePack. Both use the names of the PyTorch
classes, except for the names and the orientation of the leaves. (modeling_tf_pytorch_utils.py and
modeling_flax_pytorch_utils.py of transformers 4; flax/serialization.py.)
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from kbert.checkpoints.hdf5 import open_datasets
from kbert.core.late import optional
from kbert.io.arrays import widened
from kbert.io.paths import Path

_KERNELS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "kernel": np.transpose,  # of a dense layer
    "depthwise_kernel": lambda kernel: kernel.transpose(1, 2, 0),
    "pointwise_kernel": lambda kernel: kernel.transpose(2, 1, 0),
}
# Names of leaves of tables and norms; other leaves have the same name everywhere.
_LEAVES = {
    **dict.fromkeys(("embeddings", "gamma", "embedding", "scale"), "weight"),
    "beta": "bias",
}
# In PyTorch, the two parts of a separable convolution are separate layers.
_CONVOLUTIONS = {"depthwise_kernel": "depthwise.weight", "pointwise_kernel": "pointwise.weight"}
# `layer_._0` is item 0 of the list `layer`; in `mlm___cls`, `mlm` distinguishes two layers `cls`.
_ITEM, _TOLD_APART = re.compile(r"_\._(?=\d+$)"), re.compile(r".*___")
_ARRAY, _SCALAR = 1, 3  # MessagePack extension codes of Flax
_CHUNKED = "__msgpack_chunked_array__"  # in Flax, the key of an array of more than a gigabyte
_DTYPES = frozenset(
    "float16 float32 float64 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)


def read_tensorflow(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a `tf_model.h5`.

    Args:
        path: path of the file.

    Returns:
        Name in the PyTorch class -> array; float16 is cast to float32.

    Raises:
        ValueError: the file is damaged, or two copies of an array differ.
    """
    arrays: dict[str, np.ndarray] = {}
    with open_datasets(path) as datasets:
        for key, dataset in datasets.items():
            parts = [
                _ITEM.sub(".", _TOLD_APART.sub("", part))
                for part in key.removesuffix(":0").split("/")[2:]
            ]
            if not parts:
                raise ValueError(
                    f"An array of a tf_model.h5 must be in a layer of a model. Received: {key} in "
                    f"{path}"
                )
            name, array = _renamed(parts, widened(dataset[()]))
            if name in arrays and not np.array_equal(arrays[name], array):
                raise ValueError(
                    f"Copies of an array that layers share must be equal. Received: two of {name} "
                    f"in {path}"
                )
            arrays[name] = array
    # ALBERT's TensorFlow class has two biases and adds only the second.
    if "predictions.decoder.bias" in arrays:
        arrays["predictions.bias"] = arrays["predictions.decoder.bias"]
    return arrays


def read_flax(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a `flax_model.msgpack`.

    Args:
        path: path of the file.

    Returns:
        Name in the PyTorch class -> array; bfloat16 and float16 are cast to float32.

    Raises:
        ImportError: msgpack is not installed.
        ValueError: the file is damaged, or contains anything but nested dicts of arrays.
    """
    msgpack = optional("msgpack", "msgpack", str(path))
    arrays: dict[str, np.ndarray] = {}
    content = path.read_bytes()
    try:
        # No string, list or array can be longer than the file; msgpack checks before it allocates.
        value = msgpack.unpackb(content, ext_hook=_extension, max_ext_len=len(content))
        _flatten(value, [], arrays)
    except (ValueError, TypeError, KeyError, RecursionError, msgpack.UnpackException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"The file is damaged, truncated or not a Flax file ({reason}). Received: {path}"
        ) from error
    return arrays


def _renamed(parts: list[str], array: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the name in the PyTorch class and the array in its orientation.

    Args:
        parts: path of the array through the layers; the last part is the kind of weight.
        array: array in the TensorFlow or Flax class.
    """
    *layers, leaf = parts
    if leaf in _KERNELS:
        array = np.ascontiguousarray(_KERNELS[leaf](array))
        leaf = _CONVOLUTIONS.get(leaf, "weight")
    elif leaf == "bias" and array.ndim == 2:
        array = array[0]  # (1, outputs) in GPT's convolutions of width 1
    return ".".join([*layers, _LEAVES.get(leaf, leaf)]), array


def _extension(code: int, content: bytes) -> np.ndarray:
    """Decodes an array of Flax, as the hook of MessagePack's extensions.

    Raises ValueError for any other object.

    Args:
        code: extension code.
        content: shape, dtype and elements of the array, packed.
    """
    import msgpack

    if code not in (_ARRAY, _SCALAR):
        raise ValueError(f"an extension {code} that is not for arrays")
    shape, kind, numbers = msgpack.unpackb(content, max_bin_len=len(content))
    if kind not in _DTYPES:
        raise ValueError(f"an array of {kind!r:.40}")
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    return np.frombuffer(numbers, dtype).reshape(shape).copy()  # writable, like other arrays


def _flatten(value: Any, parts: list[str], arrays: dict[str, np.ndarray]) -> None:
    """Adds all arrays of nested dicts to `arrays`, by their names in the PyTorch class.

    Raises ValueError for a value that is neither a dict nor an array.

    Args:
        value: array or dict.
        parts: keys that lead to `value`.
        arrays: name -> array; changed in place.
    """
    if isinstance(value, np.ndarray):
        name, array = _renamed(parts, widened(value))
        arrays[name] = array
    elif not isinstance(value, dict):
        raise ValueError(f"{'/'.join(parts)[:80] or 'the whole'} is a {type(value).__name__}")
    elif _CHUNKED in value:
        chunks, shape = (list(value[name].values()) for name in ("chunks", "shape"))
        _flatten(np.concatenate(chunks).reshape([int(size) for size in shape]), parts, arrays)
    else:
        for key, item in value.items():
            _flatten(item, [*parts, str(key)], arrays)
