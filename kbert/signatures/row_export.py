"""Exports of tasks for other runtimes: arrays of token ids in, arrays of numbers out.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kbert.core import late
from kbert.core.late import tf
from kbert.signatures.rows import Run


class RowExport:
    """Base class of a task's exports for other runtimes; by itself it supports none.

    A task class that can be exported has a subclass of this as its `row_export`. The subclass
    declares `formats` and `inputs`, and defines `outputs`, `samples` and `answer_by`. Options that
    an export fixes, such as the decoding method, are returned by `settings`; `outputs`, `samples`
    and `answer_by` get them as keyword arguments.

    Args:
        task: task to export, or task that predicts with an export.

    Attributes:
        logits: function of a runtime, from arrays of features to arrays of the task's logits; None
            before `answer_by`, and for tasks whose answers need more than logits.
    """

    # Supported runtimes other than TensorFlow.
    formats: ClassVar[tuple[str, ...]] = ()
    # Names of the model's inputs, int32; segments only if the model has them.
    inputs: ClassVar[tuple[str, ...]] = ()

    logits: Run | None = None

    def __init__(self, task: Any) -> None:
        self.task = task

    def settings(self, **options: Any) -> dict[str, Any]:
        """Returns the options of `Task.export` that the export fixes, as a dict for JSON.

        Raises:
            TypeError: the task's exports do not have an option; in this class, any option.
        """
        if options:
            raise TypeError(
                "`method`, `max_new_tokens` and similar options require a task that generates "
                f"text. Received: {', '.join(options)} for a {type(self.task).__name__}"
            )
        return {}

    def fixed(self) -> dict[str, Any]:
        """Returns the arguments of `predict` that the export fixes; {} in this class."""
        return {}

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Computes the outputs of the exported model.

        Args:
            features: tensors of `inputs`, (B, T) int32 each.

        Returns:
            Name -> tensor with the batch axis first: all outputs that `answer_by` needs.

        Raises:
            ValueError: the task has no such export.
        """
        raise ValueError(
            f"A {type(self.task).__name__} can be exported as a SavedModel only. Received: a "
            'format other than "savedmodel"'
        )

    def samples(self, texts: Sequence[str]) -> list[dict[str, tf.Tensor]]:
        """Returns batches of `inputs`, by name, for a comparison of the export with the task.

        Args:
            texts: two or more texts.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `samples`.")

    def answer_by(self, run: Run) -> None:
        """Makes the task's `predict` use `run` instead of `outputs` and layers.

        Args:
            run: function of a runtime, from arrays of `inputs` to arrays of the outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `answer_by`.")


class EncoderRows(RowExport):
    """Base class of exports of tasks on an encoder, with rows of token ids as inputs."""

    formats = tuple(late.TABLE["runtime"])
    inputs: ClassVar[tuple[str, ...]] = ("token_ids", "segment_ids", "padding_mask")

    def samples(self, texts: Sequence[str]) -> list[dict[str, tf.Tensor]]:
        """Returns three batches: the first text, all texts, and pairs of the two halves."""
        task = self.task
        ids = task.tokenizer.encode(tf.constant(list(texts), tf.string))
        half = len(texts) // 2
        groups = ((ids[:1],), (ids,), (ids[:half], ids[half : 2 * half]))
        sizes = {"max_length": task.row_length, "multiple": 1}
        return [task.form.build_inputs(*group, **sizes) for group in groups]
