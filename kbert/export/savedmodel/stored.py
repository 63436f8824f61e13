"""Weights that a SavedModel stores in 8 bits and converts to float32 when it is loaded.

TensorFlow has no product of float32 with int8 that is as fast as one of float32. So this only saves
space: on disk, and in the transfer to servers.
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

_SMALLEST = 4096  # numbers of a weight; smaller weights and vectors are stored unchanged


class StoredWeights:
    """Weights in 8 bits, with one scale for each column of a kernel and each row of a table.

    Args:
        variables: variables of a model; vectors and small variables are skipped.

    Attributes:
        resources: objects that a SavedModel must track for the weights.

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
        """Returns the same entry point, with these weights instead of the model's variables."""

        def function(*tensors: tf.Tensor, **numbers: Any) -> dict[str, tf.Tensor]:
            with self._read():
                return signature.function(*tensors, **numbers)

        return replace(signature, function=function)

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        """Makes the model's variables have the stored values in a `with` block."""
        values = [stored.read() for stored in self.resources]
        with keras.StatelessScope(zip(self._variables, values, strict=True)):
            yield


class _Stored(tf.saved_model.experimental.TrackableResource):
    """A float32 variable that is not in the checkpoint but computed when a model is loaded.

    Both loaders of TensorFlow run the initializers of lookup tables after reading the variables;
    they treat this object as such a table.

    Args:
        variable: variable whose value is stored, rounded to 8 bits.
    """

    def __init__(self, variable: keras.Variable) -> None:
        super().__init__()
        values = keras.ops.convert_to_numpy(variable.value).astype("float32")
        # A product reads a kernel by its columns, and a table by its rows.
        axes = tuple(range(values.ndim - 1)) if "kernel" in variable.name else -1
        codes, scale = to_8_bits(values, axes)
        self._shape, self._dtype = values.shape, variable.dtype
        # A process may have many models, and resources are found only by name.
        self._name = f"{uuid.uuid4().hex}/{variable.path}"
        self._codes = self._tracked("codes", codes)
        self._scale = self._tracked("scale", scale)
        self._initialize()

    def _tracked(self, name: str, value: np.ndarray) -> tf.Variable:
        """Returns a new variable with the value, which the SavedModel stores under the name."""
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
        """Returns the variable's value, restored from the codes, as a tensor of its dtype."""
        value = tf.raw_ops.ReadVariableOp(resource=self.resource_handle, dtype=self._dtype)
        return tf.ensure_shape(value, self._shape)
