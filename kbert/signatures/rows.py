"""What runtimes other than TensorFlow are given: rows of token ids in, named numbers out.

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

# What runs an export: arrays by the names of the inputs -> arrays by the names of the outputs.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
# Sizes that tell the axes of an output apart.
_SIZES = ({"batch": 2, "length": 5, "masks": 3}, {"batch": 3, "length": 7, "masks": 4})
# Beyond this a logit stands for "never", such as -1e9 of what is no token.
_NEVER = 1e6
_LEAST = 1e-6  # where all numbers are 0, a unit


@dataclass(frozen=True)
class RowFunction:
    """A model on rows of ids: what an export holds, whatever runs it.

    Args:
        function: of a dict of int32 tensors, gives a dict of float32 tensors, or of int32 ones such
            as the ids of a text that is written.
        inputs: name -> names of its axes, each "batch", "length" or "masks".

    Example:
        >>> count = RowFunction(lambda x: {"count": tf.reduce_sum(x["padding_mask"], 1)},
        ...                     {"padding_mask": ("batch", "length")})
        >>> count.outputs
        {'count': ('batch',)}
    """

    function: Callable[[dict[str, Any]], dict[str, tf.Tensor]]
    inputs: Mapping[str, tuple[str, ...]]

    def signature(self, sizes: Mapping[str, int] | None = None) -> Signature:
        """As an entry point; `sizes` are of the axes that are not of any size."""
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
        """As a graph for rows of any number and length."""
        signature = self.signature()
        specs = list(signature.inputs)
        return graph(signature.function, input_signature=specs, autograph=False)

    @functools.cached_property
    def concrete(self) -> Any:
        """That graph, traced."""
        return self.graph.get_concrete_function()

    @property
    def whole(self) -> frozenset[str]:
        """Names of the outputs that are whole numbers."""
        found = self.concrete.structured_outputs
        return frozenset(name for name, x in found.items() if x.dtype.is_integer)

    @functools.cached_property
    def outputs(self) -> dict[str, tuple[str | int, ...]]:
        """Name -> its axes: names as of the inputs, or sizes."""
        small, large = (
            self.run({n: np.ones([sizes[a] for a in axes]) for n, axes in self.inputs.items()})
            for sizes in _SIZES
        )
        return {name: _axes(x.shape, large[name].shape) for name, x in small.items()}

    def run(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs for arrays, computed by TensorFlow."""
        tensors = [tf.constant(np.asarray(features[name], np.int32)) for name in self.inputs]
        return {name: x.numpy() for name, x in self.graph(*tensors).items()}


def _axes(small: Sequence[int], large: Sequence[int]) -> tuple[str | int, ...]:
    pairs = {(_SIZES[0][axis], _SIZES[1][axis]): axis for axis in _SIZES[0]}
    return tuple(pairs.get(both, both[0]) for both in zip(small, large, strict=True))


def differences(rows: RowFunction, samples: Sequence[Mapping[str, np.ndarray]], run: Run) -> dict:
    """How far a runtime is from TensorFlow: for each output the largest difference.

    Where it is of tokens, those of padding do not count, which no answer reads; nor do logits that
    stand for "never" on both sides. Of whole numbers, such as ids, it is the share of rows that are
    not equal.

    Args:
        rows: the model.
        samples: what it is given, one batch each.
        run: the runtime.

    Returns:
        Name -> the largest difference, in units of the largest number that TensorFlow gave; of
        whole numbers a share from 0 to 1.
    """
    found: dict[str, list[np.ndarray]] = {name: [] for name in rows.outputs}
    sizes: dict[str, float] = dict.fromkeys(rows.outputs, _LEAST)
    whole = rows.whole
    wrong: dict[str, list[np.ndarray]] = {name: [] for name in rows.outputs}
    for features in samples:
        expected, given = rows.run(features), run(features)
        for name, axes in rows.outputs.items():
            ours, theirs = expected[name], np.asarray(given[name])
            if name in whole:
                wrong[name].append((ours != theirs).reshape(len(ours), -1).any(axis=1))
                continue
            theirs = theirs.astype(np.float32)
            counts = ~((ours < -_NEVER) & (theirs < -_NEVER))
            if axes[:2] == ("batch", "length"):
                real = np.asarray(features["padding_mask"]).astype(bool)
                counts &= real.reshape(*real.shape, *[1] * (ours.ndim - 2))
            found[name].append(np.abs(ours - theirs)[counts])
            sizes[name] = max(sizes[name], np.abs(ours[counts]).max(initial=0.0))
    return {
        name: float(np.concatenate(wrong[name]).mean())
        if wrong[name]
        else float(np.concatenate(each).max(initial=0.0) / sizes[name])
        for name, each in found.items()
    }


def largest(differences: Mapping[str, float]) -> str:
    """The name of the largest difference; NaN is larger than any.

    >>> largest({"a": 0.5, "b": float("nan"), "c": 2.0})
    'b'
    """
    return max(differences, key=lambda x: np.nan_to_num(differences[x], nan=np.inf))
