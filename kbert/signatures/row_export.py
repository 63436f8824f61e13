"""A task as a model for other runtimes: rows of numbers in, rows of numbers out.

Shapes: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kbert.core import late
from kbert.core.late import tf
from kbert.signatures.rows import Run


class RowExport:
    """What a runtime is given of a task, and how the task answers with it; here nothing.

    A kind of tasks that is exported has a class of its own as its `row_export`. It declares
    `formats` and `inputs` and defines `outputs`, `samples` and `answer_by`. What an export fixes,
    such as how a text is written, is what `settings` returns; the others take it by name.

    Args:
        task: what is exported, or what answers with an export.

    Attributes:
        logits: arrays of features -> arrays of the task's logits, by a runtime; None before
            `answer_by`, and of a task whose answers are not made of logits alone.
    """

    # Runtimes other than TensorFlow.
    formats: ClassVar[tuple[str, ...]] = ()
    # Features that the model takes, int32; segments where it has them.
    inputs: ClassVar[tuple[str, ...]] = ()

    logits: Run | None = None

    def __init__(self, task: Any) -> None:
        self.task = task

    def settings(self, **options: Any) -> dict[str, Any]:
        """What the export fixes, of arguments of `Task.export`; as JSON holds it.

        Raises:
            TypeError: an argument that the task's exports have not; here any.
        """
        if options:
            raise TypeError(
                "`method`, `max_new_tokens` and the like are of exports of tasks that write. "
                f"Received: {', '.join(options)} for a {type(self.task).__name__}"
            )
        return {}

    def fixed(self) -> dict[str, Any]:
        """Arguments of `predict` that `settings` decide."""
        return {}

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """What the model gives.

        Args:
            features: `inputs`, (B, T) int32 each.

        Returns:
            Name -> a tensor with the batch's axis first: all that `answer_by` needs.

        Raises:
            ValueError: the task has no such export.
        """
        raise ValueError(
            f"Of a {type(self.task).__name__} there is no export but a SavedModel. "
            'Received: a format other than "savedmodel"'
        )

    def samples(self, texts: Sequence[str]) -> list[dict[str, tf.Tensor]]:
        """Batches of `inputs` that the export is checked on.

        Args:
            texts: two or more.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `samples`.")

    def answer_by(self, run: Run) -> None:
        """From now on the task's `predict` has `run` do what `outputs` does, and no layers.

        Args:
            run: arrays of `inputs` -> arrays of what `outputs` gives.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `answer_by`.")


class EncoderRows(RowExport):
    """Rows of ids, of a task on an encoder."""

    formats = tuple(late.TABLE["runtime"])
    inputs: ClassVar[tuple[str, ...]] = ("token_ids", "segment_ids", "padding_mask")

    def samples(self, texts: Sequence[str]) -> list[dict[str, tf.Tensor]]:
        """One text alone, all of them, and one half paired with the other."""
        task = self.task
        ids = task.tokenizer.encode(tf.constant(list(texts), tf.string))
        half = len(texts) // 2
        groups = ((ids[:1],), (ids,), (ids[:half], ids[half : 2 * half]))
        sizes = {"max_length": task.row_length, "multiple": 1}
        return [task.form.build_inputs(*group, **sizes) for group in groups]
