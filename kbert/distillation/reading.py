"""Outputs of one model for a batch, which the terms of a distillation loss compare."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor, Tensors
from kbert.layers.token_embeddings import whole_logits
from kbert.models import capturing
from kbert.tasks import EncoderTask
from kbert.tasks.encoder_task import input_names
from kbert.tasks.losses import Prediction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """Outputs of one model for a batch.

    Attributes:
        task: the model.
        outputs: outputs of the encoder, see `kbert.Encoder.call`.
        logits: outputs of the task's `call`; empty if no term of the loss needs heads.
        predictions: predictions of the heads by name; empty if no term of the loss needs heads.
        padding_mask: padding mask (R, T) of the encoder's input.
        example_ids: example numbers (R, T) of the encoder's input, if rows contain several
            examples.
        step: number of previous updates, in training.
    """

    task: EncoderTask
    outputs: Mapping[str, Any]
    logits: Tensors
    predictions: Mapping[str, Prediction]
    padding_mask: Tensor
    example_ids: Tensor | None = None
    step: Tensor | None = None

    def numbered(self, real: Tensor) -> Tensor:
        """Returns the number of each token's example in its row, (R, T), from 1.

        Args:
            real: weights (R, T) of the tokens; the number of a token of weight 0 is 0.
        """
        counted = ops.cast(real > 0, real.dtype)
        ids = self.example_ids
        return counted if ids is None else counted * ops.cast(ids, real.dtype)

    def masked_lm_everywhere(self, weights: Tensor) -> Prediction:
        """Returns the masked-LM head's predictions for all tokens, with these weights (R, T)."""
        return self.task.predictions_everywhere(self.outputs["sequence"], weights)


def read(
    task: EncoderTask,
    batch: Tensors,
    *,
    training: bool,
    returned: Mapping[str, bool],
    heads: bool,
) -> Reading:
    """Runs one forward pass of a task and returns its outputs.

    Args:
        task: the model.
        batch: batch of the task's `fit`; without heads, a batch of any task.
        training: whether dropout is active.
        returned: arguments of the encoder that request additional outputs.
        heads: whether logits and predictions are computed.
    """
    logits = {}
    with capturing(task.encoder, **returned) as captured:
        if heads:
            logits = whole_logits(task(batch, training=training))
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
    """Returns features (B, …, T) reshaped to (R, T): each window or choice is a sequence.

    Args:
        batch: features by name.
        read: names of the encoder's inputs; others are left out.
    """
    inner = len(batch["padding_mask"].shape) - 1
    names = [name for name in read if name in batch]
    return {name: ops.reshape(batch[name], (-1, *ops.shape(batch[name])[inner:])) for name in names}


def without_gradient(reading: Reading) -> Reading:
    """Returns a copy whose outputs have no gradient, so that a loss does not train their model."""
    stopped = {
        name: keras.tree.map_structure(ops.stop_gradient, getattr(reading, name))
        for name in ("outputs", "logits")
    }
    predictions = {
        name: prediction._replace(values=ops.stop_gradient(prediction.values))
        for name, prediction in reading.predictions.items()
    }
    return dataclasses.replace(reading, **stopped, predictions=predictions)
