"""The outputs of one model for a batch, which the terms of a distillation loss compare."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor, Tensors
from kbert.models import capturing
from kbert.tasks import EncoderTask
from kbert.tasks.encoder_task import input_names
from kbert.tasks.losses import Prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """The outputs of one model for a batch.

    Attributes:
        task: the model.
        outputs: of its encoder, see `kbert.Encoder.call`.
        logits: of the task, see its `call`; empty if no term of the loss needs heads.
        predictions: of its heads by name; likewise.
        padding_mask: (R, T) of the encoder's input.
        example_ids: (R, T) of it, where rows hold several examples.
        step: in training, how many updates there were before.
    """

    task: EncoderTask
    outputs: Mapping[str, Any]
    logits: Tensors
    predictions: Mapping[str, Prediction]
    padding_mask: Tensor
    example_ids: Tensor | None = None
    step: Tensor | None = None

    def numbered(self, real: Tensor) -> Tensor:
        """(R, T) what tokens count -> the number of each one's example, and 0 of those without.

        The examples of a row are numbered from 1 on.
        """
        counted = ops.cast(real > 0, real.dtype)
        ids = self.example_ids
        return counted if ids is None else counted * ops.cast(ids, real.dtype)

    def masked_lm_everywhere(self, weights: Tensor) -> Prediction:
        """The masked-LM head's prediction for every token, masked or not."""
        return self.task.predictions_everywhere(self.outputs["sequence"], weights)


def read(
    task: EncoderTask,
    batch: Tensors,
    *,
    training: bool,
    returned: Mapping[str, bool],
    heads: bool,
) -> Reading:
    """One forward pass of a task.

    Args:
        task: the model.
        batch: as in its `fit`; without heads, that of any task.
        training: whether dropout is active.
        returned: which additional outputs its encoder returns.
        heads: whether logits and predictions are computed.
    """
    logits = {}
    with capturing(task.encoder, **returned) as captured:
        if heads:
            logits = task(batch, training=training)
        else:
            rows = _encoder_rows(batch, input_names(task.encoder))
            task.encode(rows, training=training)
    return Reading(
        task=task,
        outputs=captured.outputs,
        logits=logits,
        predictions=task.predictions(logits, batch) if heads else {},
        padding_mask=captured.features["padding_mask"],
        example_ids=captured.features.get("example_ids"),
    )


def _encoder_rows(batch: Tensors, read: Sequence[str]) -> dict[str, Tensor]:
    """(B, …, T) features as (R, T): windows and choices are rows of the encoder."""
    inner = len(batch["padding_mask"].shape) - 1
    names = [name for name in read if name in batch]
    return {name: ops.reshape(batch[name], (-1, *ops.shape(batch[name])[inner:])) for name in names}


def without_gradient(reading: Reading) -> Reading:
    """The same tensors with gradients stopped: the loss must not train the model that made them."""
    stopped = {
        name: keras.tree.map_structure(ops.stop_gradient, getattr(reading, name))
        for name in ("outputs", "logits")
    }
    predictions = {
        name: found._replace(values=ops.stop_gradient(found.values))
        for name, found in reading.predictions.items()
    }
    return dataclasses.replace(reading, **stopped, predictions=predictions)
