"""Exports for other runtimes, loaded: they answer as their task does, without its layers.

An export whose answers are made of the runtime's numbers alone (`kbert.export.array_answers`) loads
and answers without TensorFlow and Keras; of the others the task itself is made, with the runtime in
the place of its layers.
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
    """A task that a runtime computes: answers texts as `predict` of the task does.

    Args:
        folder: as `Task.export` writes it with another format than "savedmodel".
        threads: how many compute; None = as the runtime chooses.

    Attributes:
        task: what it was made of, whose layers the runtime is.
        description: the content of `export.json`.
        run: token ids (B, T) and so on by the names of the inputs -> outputs by their names, NumPy
            arrays.

    Raises:
        FileNotFoundError: it is no such folder.
        ImportError: the runtime's extra is not installed.
        ValueError: its description is damaged or of a later version, or holds a task whose class
            was not imported.
    """

    def __init__(self, folder: PathLike, *, threads: int | None = None) -> None:
        self._folder = Path(folder)
        self.description = read_description(folder)
        self.run: Run = open_runtime(folder, threads)
        self.arrays = array_answers(folder, self.description, self.run)
        if self.arrays is None:
            self._runtime_task  # noqa: B018  # what cannot be made is told now

    @functools.cached_property
    def _runtime_task(self) -> Any:
        return late.load("export", "runtime task")(self._folder, self.description, self.run)

    @property
    def task(self) -> Any:
        """What it was made of, whose layers the runtime is; made when it is first read."""
        return self._runtime_task.task

    @property
    def checksum(self) -> str:
        """Of all files in the folder."""
        files = (path for path in sorted(self._folder.rglob("*")) if path.is_file())
        return f"{fingerprints.crc32_of_files(*files):08x}"

    def predict(self, data: Any, **options: Any) -> Any:
        """The answers for texts, or what else the task takes; see its `predict`.

        What is fixed in the export, such as how a text is written, is not said again; ValueError if
        it is and differs.
        """
        if self.arrays is not None and set(options) <= _OPTIONS:
            table = self.arrays.takes([data] if isinstance(data, str | bytes) else data)
            if table is not None:
                return self.arrays.predict(table, **options)
        return self.task.predict(data, **{**self._runtime_task.options, **options})

    def functions(self) -> dict[str, Any]:
        """The entry points of the task's SavedModel, with the runtime in the place of its layers.

        Texts are split to tokens in a graph, so that any tokenizer does, and requests are as
        bounded as a SavedModel's. They can be called by several threads at a time, as long as this
        object is there.

        Returns:
            Name -> concrete function of named tensors; the first is also "serving_default".

        Raises:
            ValueError: a task whose answers are no rows of its logits.
        """
        return self._runtime_task.functions()

    def evaluate(self, data: Any, labels: Any = None, **options: Any) -> dict[str, float]:
        """The metrics on labelled examples, of a fine-tuned task; see its `evaluate`."""
        if not hasattr(self.task, "score_names"):
            raise ValueError(
                "An export is evaluated on labelled texts, where its task is fine-tuned on such; "
                "for other losses the task itself is loaded from its preset. "
                f"Received: a {type(self.task).__name__}"
            )
        return self.task.evaluate(data, labels, **options)


def load_exported(folder: PathLike, *, threads: int | None = None) -> ExportedTask:
    """An exported task: see `ExportedTask`.

    Args:
        folder: as `Task.export` writes it for ONNX Runtime, OpenVINO or LiteRT.
        threads: how many compute; None = as the runtime chooses.
    """
    return ExportedTask(folder, threads=threads)
