"""Ids of table rows: type and range checks, and the lookup."""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Tensor

# Half-precision type -> the number up to which it represents all whole numbers.
_NARROW = {"bfloat16": 256, "float16": 2048}


def whole_numbers(x: Any, name: str = "ids") -> Any:
    """Returns ids or a mask as int32 or int64; casts booleans, other integers and floats.

    Floats are accepted because Keras revives a subclassed model with float inputs, and
    `keras.layers.Embedding` accepts them too. Half precision rounds ids and raises, except while
    Keras only infers shapes.

    Args:
        x: tensor of ids; a value without a dtype is returned unchanged.
        name: name of the input, for the error message.

    Raises:
        ValueError: floats of half precision, or other floats that are not whole numbers, if their
            values are known.

    Example:
        >>> ops.convert_to_numpy(whole_numbers(ops.array([True, False]))).tolist()
        [1, 0]
        >>> ops.convert_to_numpy(whole_numbers(ops.array([7.0]))).tolist()
        [7]
    """
    if getattr(x, "dtype", None) is None:
        return x
    dtype = keras.backend.standardize_dtype(x.dtype)
    if dtype in ("int32", "int64"):
        return x
    if dtype in _NARROW and not _infers_shapes():
        raise ValueError(
            f"`{name}` must be integers: {dtype} rounds whole numbers above {_NARROW[dtype]}. A "
            f"mixed-precision model casts its float inputs: pass int32. Received: {name} of dtype "
            f"{dtype}"
        )
    check_whole(name, x)
    return ops.cast(x, "int32")


def check_whole(name: str, x: Any) -> None:
    """Raises ValueError for floats that are not whole numbers, if their values are known.

    `name` is the name of the input x, for the error message. Without this check a cast would turn
    0.5 in a mask into 0.
    """
    values = known_values(x)
    if values is None or values.dtype.kind != "f":
        return
    wrong = values != np.floor(values)
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"`{name}` must be whole numbers. Received: {values[tuple(where)]} at {where}"
        )


def check_ids(name: str, ids: Any, rows: int) -> None:
    """Raises if ids are outside of a table, provided that their values are known (not in a graph).

    In a graph the lookup (`take_rows`) rejects such ids on TensorFlow's CPU kernels; GPUs and
    compiled code do not check.

    Args:
        name: name of the input, for the error message.
        ids: integers, or floats with whole numbers.
        rows: number of rows of the table.

    Raises:
        ValueError: an id below 0, an id of `rows` or more, or one that is not a whole number.

    Example:
        >>> check_ids("segment_ids", np.array([[0, 5]]), 2)
        Traceback (most recent call last):
        ValueError: `segment_ids` must be whole numbers from 0 to 1. Received: 5 at [0, 1]
    """
    values = known_values(ids)
    if values is None or values.size == 0 or values.dtype.kind not in "iuf":
        return
    if values.dtype.kind != "f" and values.min() >= 0 and values.max() < rows:
        return
    # Comparisons, not a cast: NaN and infinity cannot be cast.
    wrong = ~((values >= 0) & (values < rows) & (values == np.floor(values)))
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"`{name}` must be whole numbers from 0 to {rows - 1}. "
            f"Received: {values[tuple(where)]} at {where}"
        )


def assert_ids(name: str, ids: Any, rows: int | None) -> Any:
    """Returns the ids with a TensorFlow assertion that each is inside of its table.

    For graphs that run on the host: the signature of a SavedModel, a dataset.

    Args:
        name: name of the input, for the error message.
        ids: integers, or floats with whole numbers.
        rows: number of rows of the table; None = whole numbers of any size, such as a mask.
    """
    import tensorflow as tf

    ids = tf.convert_to_tensor(ids)
    right = tf.ones_like(ids, tf.bool)
    rule = f"`{name}` must be whole numbers"
    if rows is not None:
        right &= (ids >= 0) & (ids < tf.cast(rows, ids.dtype))
        rule += f" from 0 to {rows - 1}"
    if ids.dtype.is_floating:
        right &= tf.equal(ids, tf.floor(ids))
    inside, rule = tf.reduce_all(right), f"{rule}. Received:"
    passed = tf.debugging.Assert(inside, [rule, tf.reduce_min(ids), "to", tf.reduce_max(ids)])
    with tf.control_dependencies([] if passed is None else [passed]):
        return tf.identity(ids)


def known_values(x: Any) -> np.ndarray | None:
    """Returns the values of a NumPy array or an eager tensor; None for a symbolic tensor."""
    if isinstance(x, np.ndarray):
        return x
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # A symbolic tensor has no such method.
        return x.numpy() if isinstance(x, tf.Tensor) and hasattr(x, "numpy") else None
    if backend == "jax":
        import jax

        is_concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
        return np.asarray(x) if is_concrete and x.is_fully_addressable else None
    if backend == "torch":
        import torch

        # During an export, tensors are of a subclass without values.
        is_concrete = type(x) is torch.Tensor and not torch.compiler.is_compiling()
        if is_concrete and x.device.type != "meta":
            x = x.detach().cpu()
            return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return None


def take_rows(table: Any, ids: Tensor) -> Tensor:
    """Returns the rows (..., E) of a table (R, E) for ids (...).

    `keras.ops.take` counts negative ids from the end of the table. TensorFlow's own gather needs
    fewer operations, and its CPU kernel raises for any id outside of the table.

    Example:
        >>> ops.convert_to_numpy(take_rows(ops.array([[5.0], [7.0]]), ops.array([1, 0]))).tolist()
        [[7.0], [5.0]]
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(ops.convert_to_tensor(table), ids)
    return ops.take(table, ids, axis=0)


def _infers_shapes() -> bool:
    """Whether Keras is calling a model only to infer the shapes of its outputs."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return in_symbolic_scope()
