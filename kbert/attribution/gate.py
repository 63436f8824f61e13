"""Runs a task with its token embeddings moved towards a baseline.

Each token has a number `keep`: its embedding is `baseline + keep * (embedding - baseline)`. So the
derivative of an output with respect to `keep` is the gradient times the difference to the baseline.

Shapes: B rows of a batch, K sequences that the encoder reads for a row (windows, choices, or both
orders of a pair), T tokens, E width of the token table, L layers.
"""

import operator
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.types import Arrays, Tensor, Tensors
from kbert.layers.ids import take_rows
from kbert.layers.slots import Editable
from kbert.models import capturing
from kbert.tasks import FineTuningTask
from kbert.tasks.embedding.global_batch import gradients
from kbert.tasks.fine_tuning.text_rows import SWAPPED

_NAME = "attribution_gate"
_KEEP, _BASELINE = "attribution_keep", "attribution_baseline"
_INDEX = "attribution_index_"  # features: index of the explained logit in each output


class _Gate(keras.layers.Layer):
    """An edit of a token table: moves the embeddings of tokens towards a baseline.

    Args:
        keep: (B K, T), see the module.
        baseline: (E,).
        **kwargs: `name` of the edit.

    Attributes:
        calls: number of calls.
    """

    def __init__(self, keep: Tensor, baseline: Tensor, **kwargs: Any) -> None:
        super().__init__(dtype="float32", autocast=False, **kwargs)
        self._keep, self._baseline = keep, baseline
        self.calls = 0

    def build(self, input_shape: Any) -> None:
        """Does nothing: the edit has no weights."""

    def call(self, rows: Tensor) -> Tensor:
        """(B K, T, E) -> the same shape and dtype; computed in float32."""
        self.calls += 1
        moved = self._baseline + self._keep[..., None] * (
            ops.cast(rows, "float32") - self._baseline
        )
        return ops.cast(moved, rows.dtype)


class GatedTask:
    """Computes explained logits, their gradients and the attention of a task; compiled once.

    The compiled functions read features, `keep` and a baseline; see the module. The task has the
    gate only while they are traced.

    Args:
        task: task on an encoder with one table of token embeddings.

    Raises:
        ValueError: the encoder has no such table, the task is an export without layers, or it is an
            ensemble.
    """

    def __init__(self, task: FineTuningTask) -> None:
        check_gate(task)
        self.task = task
        self.table: Any = task.encoder.embeddings
        self._structure = _structure(task)
        parts = task.parts.values()
        self._logits = inference.compiled(self._explained, *parts)
        self._gradients = inference.compiled(self._differentiated, *parts)
        self._attention = inference.compiled(self._attended, *parts)

    @property
    def is_current(self) -> bool:
        """Whether the task has the layers and variables that it had when this was made.

        Otherwise graphs that were traced before are stale. Named edits (`kbert.edit.adapters`) are
        traced separately in any case.
        """
        structure = _structure(self.task)
        return len(structure) == len(self._structure) and all(
            map(operator.is_, structure, self._structure)
        )

    def embedding(self, token_id: int | None) -> np.ndarray:
        """Returns the embedding (E,) of a token, with the table's edits; None = zeros."""
        width = self.table.token.shape[-1]
        if token_id is None:
            return np.zeros(width, "float32")
        rows = take_rows(self.table.token, ops.convert_to_tensor([[token_id]], "int32"))
        for edit in self.table.edits:
            rows = edit(rows)
        return np.asarray(ops.convert_to_numpy(ops.cast(rows, "float32")))[0, 0]

    def logits(self, features: Arrays, index: Arrays, keep: Any, baseline: Any) -> np.ndarray:
        """Returns the explained logit of each row, (B,) float32.

        Args:
            features: features of B rows.
            index: name of an output of the task -> (B,) index into its flattened logits. The
                explained number is the sum of these logits.
            keep: (B, K, T).
            baseline: (E,).
        """
        return self._run(self._logits, features, index, keep, baseline)

    def gradients(self, features: Arrays, index: Arrays, keep: Any, baseline: Any) -> np.ndarray:
        """Returns the derivatives (B, K, T) of the explained logits with respect to `keep`.

        The arguments are those of `logits`.
        """
        return self._run(self._gradients, features, index, keep, baseline)

    def attention(self, features: Arrays) -> np.ndarray:
        """Returns attention probabilities, averaged over heads, (B, K, L, T, T) float32.

        Raises:
            ValueError: the encoder returns no attention.
        """
        padded = inference.pad(dict(features))
        attention = self._attention(padded)
        if not len(attention):
            raise ValueError(
                "Attributions by attention require an encoder with attention. Received: a "
                f"{type(self.task.encoder).__name__} without"
            )
        rows = len(next(iter(features.values())))
        layers, _, *size = attention.shape
        stacked = attention.reshape(layers, len(next(iter(padded.values()))), -1, *size)
        return stacked.transpose(1, 2, 0, 3, 4)[:rows]

    def _run(
        self, function: Any, features: Arrays, index: Arrays, keep: np.ndarray, baseline: np.ndarray
    ) -> np.ndarray:
        rows = len(keep)
        gates = {
            _KEEP: keep.astype("float32"),
            _BASELINE: np.broadcast_to(baseline, (rows, *baseline.shape)),
        }
        named = {_INDEX + name: np.asarray(x, "int32") for name, x in index.items()}
        return function(inference.pad({**features, **named, **gates}))[:rows]

    def _explained(self, inputs: Tensors) -> Tensor:
        """Returns the explained logit of each row, (B,) float32."""
        features = {k: x for k, x in inputs.items() if not k.startswith("attribution_")}
        keep = ops.convert_to_tensor(inputs[_KEEP])
        gate = _Gate(ops.reshape(keep, (-1, ops.shape(keep)[2])), inputs[_BASELINE][0], name=_NAME)
        self.table.add_edit(gate, self.table.token.shape)
        try:
            # Under `capturing` a task reads all windows at once, in the order of `keep`.
            with capturing(self.task.encoder):
                outputs = self.task(features)
        finally:
            self.table.remove_edit(_NAME)
        if gate.calls != 1:
            raise ValueError(
                "Attributions require an encoder that looks up the embeddings of a batch once. "
                f"Received: a {type(self.task.encoder).__name__} with {gate.calls} lookups"
            )
        total = ops.zeros_like(keep[:, 0, 0])
        for name, index in inputs.items():
            if name.startswith(_INDEX):
                logits = ops.cast(outputs[name.removeprefix(_INDEX)], "float32")
                flat = ops.reshape(logits, (ops.shape(keep)[0], -1))
                total = total + ops.take_along_axis(flat, index[:, None], axis=1)[:, 0]
        return total

    def _differentiated(self, inputs: Tensors) -> Tensor:
        others = {k: x for k, x in inputs.items() if k != _KEEP}

        def total(gates: Tensors) -> Tensor:
            return ops.sum(self._explained({**others, **gates}))

        return gradients(total, {_KEEP: ops.convert_to_tensor(inputs[_KEEP])})[_KEEP]

    def _attended(self, features: Tensors) -> Tensor:
        """Returns attention (L, B K, T, T) float32, or an empty tensor."""
        with capturing(self.task.encoder, return_attention=True) as captured:
            self.task(features)
        layers = captured.outputs["attention"]
        means = [ops.mean(ops.cast(x, "float32"), axis=1) for x in layers]
        return ops.stack(means) if means else ops.zeros((0,))


def check_gate(task: FineTuningTask) -> None:
    """Raises ValueError unless the task has layers and one table of tokens that takes edits."""
    if members := getattr(task, "members", None):
        raise ValueError(
            "Attributions require a single model: pass one of the ensemble's `members`. Received: "
            f"an ensemble of {len(members)} {type(members[0]).__name__}s"
        )
    is_exported = task.predictor.logits is not None
    if is_exported or not isinstance(getattr(task.encoder, "embeddings", None), Editable):
        raise ValueError(
            "Attributions require the layers of a task on an encoder or a decoder with one table "
            f"of token embeddings. Received: a {type(task).__name__} on a "
            f"{type(task.encoder).__name__}{', exported' if is_exported else ''}"
        )


def _structure(task: FineTuningTask) -> list[Any]:
    """Returns the layers and variables of a task, to be compared by identity."""
    parts = task.parts.values()
    layers = [layer for part in parts for layer in part._flatten_layers()]
    return [*layers, *(variable for part in parts for variable in part.variables)]


def sequences(features: Mapping[str, Any], name: str) -> np.ndarray:
    """Returns a feature of all sequences that the encoder reads for each row, (B, K, T).

    Args:
        features: features of B rows, in which "token_ids" are (B, T), or (B, W, T) for windows and
            choices, and may be swapped too.
        name: "token_ids" or "padding_mask".
    """
    values = np.asarray(features[name])
    if SWAPPED in features:
        swapped = np.asarray(features[SWAPPED]) if name == "token_ids" else values
        values = np.stack([values, swapped], axis=-2)
    return values.reshape(len(values), -1, values.shape[-1])
