"""An exported task with a runtime instead of its layers; it predicts, evaluates and serves."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.checkpoints.keys import make_config
from kbert.core import registry
from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.export.folder import DESCRIPTION_FILE
from kbert.io.paths import Path
from kbert.signatures.requests import Signature, bounded
from kbert.signatures.rows import Run
from kbert.signatures.runtime_model import RuntimeModel
from kbert.tokenizers import load_tokenizer


class RuntimeTask:
    """A task with a runtime instead of its layers.

    Args:
        folder: folder of the export.
        description: content of its `export.json`.
        run: function of the loaded runtime, from input arrays to output arrays.

    Attributes:
        task: the task.
        options: arguments of `predict` that the export fixes.

    Raises:
        ValueError: the class of the task was not imported, or its config is damaged.
    """

    def __init__(self, folder: PathLike, description: Mapping[str, Any], run: Run) -> None:
        self.description = description
        source = os.fspath(Path(folder) / DESCRIPTION_FILE)
        settings = dict(description["task"])
        kind, module = settings.pop("kind"), settings.pop("module", None)
        if description.get("labels") is not None:
            settings["labels"] = description["labels"]
        task_class: Any = registry.find("task", kind)
        if task_class is None:
            raise ValueError(
                "The class of an exported task must be registered: first import the module that "
                f"defines it{f', {module}' if module else ''}. Received: a {kind} in {source}"
            )
        model = RuntimeModel(_config_of(description, source), description["max_length"])
        self.task = task_class(model, load_tokenizer(folder), **settings)
        fixed = description.get("settings", {})
        # A runtime does not compile anew for each width, so rows are padded to the longest only.
        if hasattr(self.task, "width_multiple"):
            self.task.width_multiple = 1
        self._rows = task_class.row_export(self.task)
        self._rows.answer_by(run, **fixed)
        self.options = self._rows.fixed(**fixed)

    def functions(self) -> dict[str, Any]:
        """Returns name -> concrete function of each entry point; see `ExportedTask.functions`."""
        task = self.task
        if self._rows.logits is None:
            raise self._unserved()
        outputs = {
            name: [None if isinstance(axis, str) else axis for axis in axes]
            for name, axes in self.description["outputs"].items()
        }

        # TensorFlow keeps graphs, and objects that they call, alive for longer than their owner.
        compute, inputs = weakref.WeakMethod(self._logits), self._rows.inputs

        def call(features: Mapping[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
            names = [name for name in inputs if name in features]

            def run(*arrays: np.ndarray) -> list[np.ndarray]:
                logits = compute()
                assert logits is not None
                results = logits(dict(zip(names, arrays, strict=True)))
                return [np.asarray(results[name], np.float32) for name in outputs]

            tensors = [features[name] for name in names]
            results = tf.numpy_function(run, tensors, [tf.float32] * len(outputs), stateful=False)
            return {
                name: tf.ensure_shape(x, shape)
                for (name, shape), x in zip(outputs.items(), results, strict=True)
            }

        task.call = call
        try:
            entries = {name: _by_name(bounded(x)) for name, x in task.signatures().items()}
        except NotImplementedError as error:  # the task calls the encoder itself
            raise self._unserved() from error
        return {**entries, "serving_default": next(iter(entries.values()))}

    def _logits(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._rows.logits(features)

    def _unserved(self) -> ValueError:
        return ValueError(
            "Only exports of classifiers, regressors, taggers and embedders can be served in "
            f"other formats than SavedModel. Received: an export to {self.description['format']} "
            f"of a {type(self.task).__name__}"
        )


def _by_name(signature: Signature) -> Any:
    """Converts an entry point to a concrete function of named tensors, as in a SavedModel."""
    names = [spec.name for spec in signature.inputs]

    def entry(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return signature.function(*(inputs[name] for name in names))

    specs = dict(zip(names, signature.inputs, strict=True))
    return graph(entry, autograph=False).get_concrete_function(**specs)


def _config_of(description: Mapping[str, Any], source: str) -> Any:
    """Returns the config of the model in an export.

    Args:
        description: content of `export.json`; the kind of the config is its key.
        source: path of the file, for messages.

    Raises:
        ValueError: there is no config, more than one, or a damaged one.
    """
    kinds = [kind for kind in registry.names("config") if kind in description]
    if len(kinds) != 1:
        raise ValueError(
            "An export must have the config of exactly one model. Received: "
            f"{', '.join(description)} in {source}"
        )
    kind: Any = registry.get("config", kinds[0])
    return make_config(kind, description[kinds[0]], source)
