"""What one model made of a batch, for the parts of a distillation's loss to compare."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from kbert.tasks import EncoderTask
from kbert.tasks.losses import Prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What one model made of a batch.

    Attributes:
        task: whose it is.
        outputs: of its encoder, see `kbert.Encoder.call`.
        logits: of the task, see its `call`; none where no part of the loss asks for heads.
        predictions: of its heads by name; likewise.
        padding_mask: (R, T) of the rows that the encoder read.
    """

    task: EncoderTask
    outputs: Mapping[str, Any]
    logits: Mapping[str, Any]
    predictions: Mapping[str, Prediction]
    padding_mask: Any

    def masked_lm_everywhere(self, weights: Any) -> Prediction:
        """The masked-LM head's prediction for every token, masked or not."""
        return self.task.predictions_everywhere(self.outputs["sequence"], weights)


def read(
    task: EncoderTask,
    batch: Mapping[str, Any],
    *,
    training: bool,
    returned: Mapping[str, bool],
    heads: bool,
) -> Reading:
    """One forward of a task.

    Args:
        task: the model.
        batch: as its `fit` sees it; without heads, any task's.
        training: whether dropout acts.
        returned: what else its encoder is asked for.
        heads: whether logits and predictions are asked for.
    """
    logits = {}
    with task.read_along(**returned) as along:
        if heads:
            logits = task(batch, training=training)
        else:
            task.encode(_encoder_rows(batch), training=training)
    return Reading(
        task=task,
        outputs=along.outputs,
        logits=logits,
        predictions=task.predictions(logits, batch) if heads else {},
        padding_mask=along.features["padding_mask"],
    )


def _encoder_rows(batch):
    """(B, …, T) features as (R, T): windows and choices are rows of the encoder."""
    inner = len(batch["padding_mask"].shape) - 1
    names = (name for name in ("token_ids", "segment_ids", "padding_mask") if name in batch)
    return {name: ops.reshape(batch[name], (-1, *ops.shape(batch[name])[inner:])) for name in names}


def without_gradient(reading: Reading) -> Reading:
    """The same, for a loss that must not move what made it."""
    stopped = {
        name: keras.tree.map_structure(ops.stop_gradient, getattr(reading, name))
        for name in ("outputs", "logits")
    }
    predictions = {
        name: found._replace(values=ops.stop_gradient(found.values))
        for name, found in reading.predictions.items()
    }
    return dataclasses.replace(reading, **stopped, predictions=predictions)
