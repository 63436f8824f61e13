"""Weights that a SavedModel stores in 8 bits, and has in float32 once it is loaded.

TensorFlow has no product of float32 with int8 that is as fast as one of float32, so that what is
saved here is space: on the disk, and on the way to the servers.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbert.io.arrays import to_8_bits
from kbert.signatures.requests import Signature

_SMALLEST = 4096  # numbers; what is smaller is stored as it is, and so are vectors


class StoredWeights:
    """Weights in 8 bits, each column of a kernel and each row of a table with a scale of its own.

    Args:
        variables: of a model; those that are no matrices, and small ones, are left out.

    Attributes:
        resources: what a SavedModel must track for them.

    Example:
        >>> variable = keras.Variable(np.eye(64), dtype="float32", name="kernel")
        >>> weights = StoredWeights([variable])
        >>> double = Signature(lambda x: {"y": x @ variable * 2.0},
        ...                    [tf.TensorSpec([None, 64], tf.float32, "x")])
        >>> float(weights.signature(double).function(tf.ones((1, 64)))["y"][0, 0])
        2.0
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        unique = {id(v): v for v in variables}
        large = [
            v
            for v in unique.values()
            if len(v.shape) > 1 and np.prod(v.shape) >= _SMALLEST and "float" in v.dtype
        ]
        self._variables = large
        self.resources = [_Stored(v) for v in large]

    def signature(self, signature: Signature) -> Signature:
        """The same entry point, which reads them in the place of the model's weights."""

        def function(*tensors: tf.Tensor, **numbers: Any) -> dict[str, tf.Tensor]:
            with self._read():
                return signature.function(*tensors, **numbers)

        return replace(signature, function=function)

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        values = [stored.read() for stored in self.resources]
        with keras.StatelessScope(zip(self._variables, values, strict=True)):
            yield


class _Stored(tf.saved_model.experimental.TrackableResource):
    """A variable in float32 that no checkpoint holds: it is computed when a model is loaded.

    Both of TensorFlow's loaders run the initializers of tables once the variables are read; this is
    such a table to them.

    Args:
        variable: what it holds, rounded.
    """

    def __init__(self, variable: keras.Variable) -> None:
        super().__init__()
        values = keras.ops.convert_to_numpy(variable.value).astype("float32")
        # A product reads a kernel by its columns, and a table by its rows.
        axes = tuple(range(values.ndim - 1)) if "kernel" in variable.name else -1
        codes, scale = to_8_bits(values, axes)
        self._shape, self._dtype = values.shape, variable.dtype
        # In one process there may be many models, and resources are found by their names alone.
        self._name = f"{uuid.uuid4().hex}/{variable.path}"
        self._codes = self._tracked("codes", codes)
        self._scale = self._tracked("scale", scale)
        self._initialize()

    def _tracked(self, name: str, value: np.ndarray) -> tf.Variable:
        variable = tf.Variable(value, trainable=False, name=name)
        self._track_trackable(variable, name)
        return variable

    def _create_resource(self) -> tf.Tensor:
        return tf.raw_ops.VarHandleOp(
            dtype=self._dtype, shape=self._shape, shared_name=self._name, container=""
        )

    def _initialize(self) -> None:
        value = tf.cast(tf.cast(self._codes, tf.float32) * self._scale, self._dtype)
        tf.raw_ops.AssignVariableOp(resource=self.resource_handle, value=value)

    def read(self) -> tf.Tensor:
        """What it holds."""
        value = tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._shape)
