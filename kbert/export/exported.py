"""Loads exports for other runtimes: they predict like their task, without its layers.

Exports whose predictions only need the runtime's outputs (`kbert.export.array_answers`) load and
predict without TensorFlow and Keras. For the others the task itself is built, with the runtime
instead of its layers.
"""

from __future__ import annotations

import functools
from typing import Any

from kbert.core import late
from kbert.core.types import PathLike
from kbert.export.array_answers import array_answers
from kbert.export.folder import open_runtime, read_description
from kbert.io import fingerprints
from kbert.io.paths import Path
from kbert.signatures.rows import Run

# Arguments of `predict` that need no task.
_OPTIONS = {"batch_size", "verbose"}


class ExportedTask:
    """A task that a runtime computes: predicts texts like the task's `predict`.

    Args:
        folder: folder that `Task.export` wrote for ONNX Runtime, OpenVINO or LiteRT.
        threads: number of compute threads; None = the runtime's default.

    Attributes:
        task: the exported task, with the runtime instead of its layers.
        description: content of `export.json`.
        run: function from inputs by name, such as token ids (B, T), to outputs by name; all are
            NumPy arrays.
        arrays: `ArrayAnswers` if the runtime's outputs suffice for predictions, else None.

    Raises:
        FileNotFoundError: the folder has no export.
        ImportError: the extra of the runtime is not installed.
        ValueError: the description is damaged or of a later version, or the class of its task was
            not imported.
    """

    def __init__(self, folder: PathLike, *, threads: int | None = None) -> None:
        self._folder = Path(folder)
        self.description = read_description(folder)
        self.run: Run = open_runtime(folder, threads)
        self.arrays = array_answers(folder, self.description, self.run)
        if self.arrays is None:
            self._runtime_task  # noqa: B018  # raises errors now, not at the first use

    @functools.cached_property
    def _runtime_task(self) -> Any:
        return late.load("export", "runtime task")(self._folder, self.description, self.run)

    @property
    def task(self) -> Any:
        """The exported task, with the runtime instead of its layers; built on first access."""
        return self._runtime_task.task

    @property
    def checksum(self) -> str:
        """CRC-32 of all files in the folder."""
        files = (path for path in sorted(self._folder.rglob("*")) if path.is_file())
        return f"{fingerprints.crc32_of_files(*files):08x}"

    def predict(self, data: Any, **options: Any) -> Any:
        """Returns the predictions for texts or other data of the task; see the task's `predict`.

        Settings that the export fixes, such as the generation method, need not be passed; other
        values raise ValueError.
        """
        if self.arrays is not None and set(options) <= _OPTIONS:
            # Converted once, since a generator has no rows for a second conversion by the task.
            data = self.arrays.as_table([data] if isinstance(data, str | bytes) else data)
            if self.arrays.takes(data):
                return self.arrays.predict(data, **options)
        return self.task.predict(data, **{**self._runtime_task.options, **options})

    def functions(self) -> dict[str, Any]:
        """Returns the entry points of the task's SavedModel, with the runtime instead of layers.

        Texts are tokenised in a TensorFlow graph, so any tokenizer works. Requests are limited like
        those of a SavedModel. Several threads may call the functions at a time; this object must
        stay alive.

        Returns:
            Name -> concrete function of named tensors; the first is also "serving_default".

        Raises:
            ValueError: the task's predictions are not made from rows of logits.
        """
        return self._runtime_task.functions()

    def evaluate(self, data: Any, labels: Any = None, **options: Any) -> dict[str, float]:
        """Returns the metrics of a fine-tuned task on labelled examples; see the task's `evaluate`.

        Raises:
            ValueError: the task is not fine-tuned on labelled texts.
        """
        if not hasattr(self.task, "score_names"):
            raise ValueError(
                "`evaluate` requires an export of a task that is fine-tuned on labelled texts; "
                "for the losses of other tasks, load the task from its preset. Received: a "
                f"{type(self.task).__name__}"
            )
        return self.task.evaluate(data, labels, **options)


def load_exported(folder: PathLike, *, threads: int | None = None) -> ExportedTask:
    """Loads an exported task; see `ExportedTask`.

    Args:
        folder: folder that `Task.export` wrote for ONNX Runtime, OpenVINO or LiteRT.
        threads: number of compute threads; None = the runtime's default.
    """
    return ExportedTask(folder, threads=threads)
