"""Models for runtimes other than TensorFlow: rows of token ids in, named arrays out.

Shapes: B rows, T tokens, P masks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.signatures.requests import Signature

# Function of a runtime: arrays by the names of the inputs -> arrays by the names of the outputs.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
# Two sets of sizes that identify the axes of an output.
_SIZES = ({"batch": 2, "length": 5, "masks": 3}, {"batch": 3, "length": 7, "masks": 4})
# Logits below -_NEVER mean probability 0, such as -1e9 for padding.
_NEVER = 1e6
_LEAST = 1e-6  # unit of the differences if all numbers are 0


@dataclass(frozen=True)
class RowFunction:
    """A model on rows of token ids: the content of an export for any runtime.

    Args:
        function: function from a dict of int32 tensors to a dict of float32 tensors, or of int32
            tensors such as the ids of a generated text.
        inputs: name of an input -> names of its axes: "batch", "length" or "masks".

    Example:
        >>> count = RowFunction(lambda x: {"count": tf.reduce_sum(x["padding_mask"], 1)},
        ...                     {"padding_mask": ("batch", "length")})
        >>> count.outputs
        {'count': ('batch',)}
    """

    function: Callable[[dict[str, Any]], dict[str, tf.Tensor]]
    inputs: Mapping[str, tuple[str, ...]]

    def signature(self, sizes: Mapping[str, int] | None = None) -> Signature:
        """Returns the model as an entry point of a SavedModel.

        Args:
            sizes: name of an axis -> its fixed size; other axes have any size.
        """
        sizes = sizes or {}
        specs = [
            tf.TensorSpec([sizes.get(axis) for axis in axes], tf.int32, name)
            for name, axes in self.inputs.items()
        ]

        def rows(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            return dict(self.function(dict(zip(self.inputs, tensors, strict=True))))

        return Signature(rows, specs)

    @functools.cached_property
    def graph(self) -> tf.types.experimental.PolymorphicFunction:
        """The model as a graph for any number and length of rows."""
        signature = self.signature()
        specs = list(signature.inputs)
        return graph(signature.function, input_signature=specs, autograph=False)

    @functools.cached_property
    def concrete(self) -> Any:
        """The concrete function of the graph."""
        return self.graph.get_concrete_function()

    @property
    def whole(self) -> frozenset[str]:
        """Names of the outputs of integer type."""
        outputs = self.concrete.structured_outputs
        return frozenset(name for name, x in outputs.items() if x.dtype.is_integer)

    @functools.cached_property
    def outputs(self) -> dict[str, tuple[str | int, ...]]:
        """Name of an output -> its axes: names like those of the inputs, or fixed sizes."""
        small, large = (
            self.run({n: np.ones([sizes[a] for a in axes]) for n, axes in self.inputs.items()})
            for sizes in _SIZES
        )
        return {name: _axes(x.shape, large[name].shape) for name, x in small.items()}

    def run(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns name -> output, computed by TensorFlow; `features` are arrays by input name."""
        tensors = [tf.constant(np.asarray(features[name], np.int32)) for name in self.inputs]
        return {name: x.numpy() for name, x in self.graph(*tensors).items()}


def _axes(small: Sequence[int], large: Sequence[int]) -> tuple[str | int, ...]:
    """Returns the axes of an output: the names of variable axes, and the sizes of fixed ones.

    Args:
        small: shape of the output for inputs of the first sizes in `_SIZES`.
        large: shape of the output for inputs of the second sizes.
    """
    pairs = {(_SIZES[0][axis], _SIZES[1][axis]): axis for axis in _SIZES[0]}
    return tuple(pairs.get(both, both[0]) for both in zip(small, large, strict=True))


def differences(rows: RowFunction, samples: Sequence[Mapping[str, np.ndarray]], run: Run) -> dict:
    """Returns the largest difference between a runtime and TensorFlow for each output.

    In token-wise outputs padding does not count, because no answer depends on it. Logits that mean
    probability 0 on both sides do not count either. For integers, such as ids, it is the share of
    rows that differ.

    Args:
        rows: the model.
        samples: batches of inputs.
        run: function of the runtime.

    Returns:
        Name of an output -> largest difference, relative to the largest absolute value of
        TensorFlow's output; for integers a share from 0 to 1.
    """
    absolute_differences: dict[str, list[np.ndarray]] = {name: [] for name in rows.outputs}
    sizes: dict[str, float] = dict.fromkeys(rows.outputs, _LEAST)
    integer_outputs = rows.whole
    wrong: dict[str, list[np.ndarray]] = {name: [] for name in rows.outputs}
    for features in samples:
        expected, outputs = rows.run(features), run(features)
        for name, axes in rows.outputs.items():
            ours, theirs = expected[name], np.asarray(outputs[name])
            if name in integer_outputs:
                wrong[name].append((ours != theirs).reshape(len(ours), -1).any(axis=1))
                continue
            theirs = theirs.astype(np.float32)
            counts = ~((ours < -_NEVER) & (theirs < -_NEVER))
            if axes[:2] == ("batch", "length"):
                real = np.asarray(features["padding_mask"]).astype(bool)
                counts &= real.reshape(*real.shape, *[1] * (ours.ndim - 2))
            absolute_differences[name].append(np.abs(ours - theirs)[counts])
            sizes[name] = max(sizes[name], np.abs(ours[counts]).max(initial=0.0))
    return {
        name: float(np.concatenate(wrong[name]).mean())
        if wrong[name]
        else float(np.concatenate(arrays).max(initial=0.0) / sizes[name])
        for name, arrays in absolute_differences.items()
    }


def largest(differences: Mapping[str, float]) -> str:
    """Returns the name of the output with the largest difference; NaN is larger than any number.

    >>> largest({"a": 0.5, "b": float("nan"), "c": 2.0})
    'b'
    """
    return max(differences, key=lambda x: np.nan_to_num(differences[x], nan=np.inf))
