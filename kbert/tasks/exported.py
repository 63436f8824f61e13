"""Tasks as models for other runtimes: written from a task, loaded without its layers."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from kbert.checkpoints.keys import make_config
from kbert.core import registry
from kbert.core.contexts import without_rounding
from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.graphs import graph
from kbert.io import fingerprints
from kbert.io.paths import Path
from kbert.serving.exported import (
    DESCRIPTION_FILE,
    check_format,
    export_rows,
    open_runtime,
    read_description,
)
from kbert.serving.requests import Signature, bounded
from kbert.serving.rows import RowFunction, Run
from kbert.serving.text_graphs import write_text_graphs
from kbert.serving.text_rows import TextRows
from kbert.tokenizers import load_tokenizer

# Widths of LiteRT's rows, as far as the task's rows are as long.
WIDTHS = (32, 128)
# What a task is checked on where it is given no texts: short and long, accents, numbers, scripts.
TEXTS = (
    "Fine.",
    "A visually stunning rumination on love, memory, history, and the war of art and commerce.",
    "The invoice of 12 March (no. 4711) is not paid yet; please transfer €1,250.00 within a week.",
    "Où est la bibliothèque ? Zürich liegt nicht in Österreich.",
    "She sold her shares before the report came out, which the court called a remarkable guess.",
    "in 1995 the company moved from detroit to são paulo, where it has been building engines since",
    "NO!!! i would NOT buy this again :-( the handle broke after two days and nobody answered me",
    "Москва и Токио (東京) подписали соглашение.",
    "Rain is expected in the north, while the south stays dry; temperatures reach 21 degrees, and "
    "a light wind from the west brings cooler air in the evening. On Sunday the sky clears, before "
    "the next front arrives from the Atlantic on Monday night with strong gusts along the coast.",
    "What do the two experiments have in common, and why did the second one fail?",
)


def row_function(
    task: Any, *, by_runtime: bool = False, settings: Mapping[str, Any] | None = None
) -> RowFunction:
    """What a runtime is given of a task: the function of its `row_export`.

    Args:
        task: one with a `row_export`.
        by_runtime: whether it rounds to 8 bits, which the layers then do not.
        settings: what the `settings` of the `row_export` returned.

    Raises:
        ValueError: the task has no such export.
    """
    config, model = task.model.config, task.row_export(task)
    if (
        not model.formats
        or getattr(config, "max_characters", None)
        or getattr(task, "reads_by_decoder", False)
    ):
        raise ValueError(
            "Exports to other runtimes are of tasks on encoders of tokens, and of Translator and "
            'CausalLM; format="savedmodel" is of every task. '
            f"Received: a {type(task).__name__} on a {type(task.model).__name__}"
        )
    if task.compute_dtype != "float32":
        raise ValueError(
            "An export begins with a task in float32, whatever its precision: load it with "
            f'dtype="float32". Received: dtype={task.dtype_policy.name!r}'
        )
    names = [name for name in model.inputs if name != "segment_ids" or config.num_segments]
    inputs = {n: ("batch", "masks" if n == "mask_positions" else "length") for n in names}

    def function(features: dict[str, Any]) -> dict[str, Any]:
        with without_rounding() if by_runtime else contextlib.nullcontext():
            found = model.outputs(features, **(settings or {}))
        return {
            name: x if keras.backend.is_int_dtype(x.dtype) else keras.ops.cast(x, "float32")
            for name, x in found.items()
        }

    return RowFunction(function, inputs)


def check_texts(texts: Sequence[str] | None) -> Sequence[str]:
    """What an export is checked on: the texts that are given, or ours; refuses fewer than two."""
    texts = TEXTS if texts is None else (texts,) if isinstance(texts, str) else tuple(texts)
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"An export is checked on two texts or more. Received: {len(texts)}: {texts!r:.80}"
        )
    return texts


def export_task(
    task: Any,
    folder: PathLike,
    format: str,
    precision: str,
    *,
    texts: Sequence[str] | None = None,
    tolerance: float | None = None,
    widths: Sequence[int] | None = None,
    **settings: Any,
) -> str:
    """Writes a task for a runtime; see `Task.export`."""
    check_format(format, precision)
    model = task.row_export(task)
    if model.formats and format not in model.formats:
        raise ValueError(
            f"A {type(task).__name__} is exported to savedmodel or {', '.join(model.formats)}. "
            f"Received: format={format!r}"
        )
    settings = model.settings(**settings)
    rows = row_function(task, by_runtime=precision == "int8", settings=settings)
    options: dict[str, Any] = {}
    if format == "litert":
        most = task.row_length
        options["widths"] = sorted(widths or [*(w for w in WIDTHS if w < most), most])
        if options["widths"][0] < 4 or options["widths"][-1] > most:
            raise ValueError(
                f"Widths are numbers of tokens from 4 to {most}, the longest row. "
                f"Received: widths={widths}"
            )
    elif widths is not None:
        raise ValueError(
            "Rows are of any length but for LiteRT, and `widths` is for that. "
            f"Received: widths={widths} with format={format!r}"
        )
    texts = check_texts(texts)
    samples = model.samples(texts, **settings)
    config = task.model.config
    record = dict(task.record)
    about = {
        "task": record,
        config.kind: config.to_dict(),
        "labels": record.pop("labels", None),
        "max_length": max(options.get("widths", [task.row_length])),
        **({"settings": settings} if settings else {}),
        **options,
    }

    def save_tokenizer(place: str) -> None:
        before = set(os.listdir(place))
        task.tokenizer.save(place)
        beside = sorted(set(os.listdir(place)) - before)
        why = _why_not_inside(task)
        if why is None:
            sizes = {"max_length": task.row_length, "multiple": 1}
            build = functools.partial(task.form.build_inputs, **sizes)
            text_rows = TextRows(task.tokenizer, build, list(rows.inputs))
            graphs = write_text_graphs(place, format, text_rows, texts)
        else:
            graphs = {"why": why}
            logging.info("%s: the tokenizer is beside the model and not inside: %s", format, why)
        about["tokenizer"] = {"beside": beside, **graphs}

    return export_rows(
        folder,
        rows,
        format=format,
        precision=precision,
        samples=[{name: x.numpy() for name, x in batch.items()} for batch in samples],
        about=about,
        save_beside=save_tokenizer,
        tolerance=tolerance,
        **options,
    )


def _why_not_inside(task: Any) -> str | None:
    """Why rows that a runtime makes of texts would not do for a task; None = they would."""
    texts = getattr(task, "texts", None)
    if texts is None:
        return "this task answers with words, spans or new texts, which kbert makes of them"
    if texts.doc_stride:
        return f"this task reads longer texts in windows, doc_stride={texts.doc_stride}"
    return None


class RuntimeModel(keras.Model):
    """In the place of a model whose layers a runtime has: its config, and no weights.

    Args:
        config: the model's.
        max_length: tokens of the longest row.
    """

    def __init__(self, config: Any, max_length: int) -> None:
        super().__init__(name=config.kind)
        self.config = config
        self.max_length = max_length
        self.weights_from = "the export"
        # What heads ask of an encoder when they are made.
        table = (config.vocabulary_size, getattr(config, "embedding_width", config.hidden_size))
        self.token_embedding = keras.KerasTensor(table, name="token_embedding")
        pooled = getattr(config, "pooler_activation", None)
        self.pooler = keras.layers.Dense(config.hidden_size) if pooled else None

    def build(self, input_shape: Any | None = None) -> None:
        """It has no layers."""

    def call(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "An export has no layers; it does what its task's `predict` and `evaluate` do. The "
            "task itself is loaded from its preset"
        )


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
        source = os.fspath(Path(folder) / DESCRIPTION_FILE)
        settings = dict(self.description["task"])
        kind, module = settings.pop("kind"), settings.pop("module", None)
        if self.description.get("labels") is not None:
            settings["labels"] = self.description["labels"]
        self.run: Run = open_runtime(folder, threads)
        task_class: Any = registry.find("task", kind)
        if task_class is None:
            raise ValueError(
                f"The class of an exported task must be known: import the module that defines it "
                f"before{f', {module}' if module else ''}. Received: a {kind} in {source}"
            )
        model = RuntimeModel(_config_of(self.description, source), self.description["max_length"])
        self.task = task_class(model, load_tokenizer(folder), **settings)
        fixed = self.description.get("settings", {})
        # A runtime compiles nothing for a new width: rows are as wide as the longest of a batch.
        if hasattr(self.task, "width_multiple"):
            self.task.width_multiple = 1
        self._rows = task_class.row_export(self.task)
        self._rows.answer_by(self.run, **fixed)
        self._options = self._rows.fixed(**fixed)

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
        return self.task.predict(data, **{**self._options, **options})

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
        task = self.task
        if self._rows.logits is None:
            raise self._unserved()
        outputs = {
            name: [None if isinstance(axis, str) else axis for axis in axes]
            for name, axes in self.description["outputs"].items()
        }

        # TensorFlow keeps graphs, and what they call, longer than those who hold them.
        compute, inputs = weakref.WeakMethod(self._logits), self._rows.inputs

        def call(features: Mapping[str, tf.Tensor], training: bool = False) -> dict[str, tf.Tensor]:
            names = [name for name in inputs if name in features]

            def run(*arrays: np.ndarray) -> list[np.ndarray]:
                logits = compute()
                assert logits is not None
                found = logits(dict(zip(names, arrays, strict=True)))
                return [np.asarray(found[name], np.float32) for name in outputs]

            tensors = [features[name] for name in names]
            found = tf.numpy_function(run, tensors, [tf.float32] * len(outputs), stateful=False)
            return {
                name: tf.ensure_shape(x, shape)
                for (name, shape), x in zip(outputs.items(), found, strict=True)
            }

        task.call = call
        try:
            made = {name: _by_name(bounded(x)) for name, x in task.signatures().items()}
        except NotImplementedError as error:  # it asks the encoder itself
            raise self._unserved() from error
        return {**made, "serving_default": next(iter(made.values()))}

    def _logits(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._rows.logits(features)

    def _unserved(self) -> ValueError:
        return ValueError(
            "Of other exports than SavedModels, those of classifiers, regressors, taggers and "
            "embedders are served. Received: an export to "
            f"{self.description['format']} of a {type(self.task).__name__}"
        )

    def evaluate(self, data: Any, labels: Any = None, **options: Any) -> dict[str, float]:
        """The metrics on labelled examples, of a fine-tuned task; see its `evaluate`."""
        if not hasattr(self.task, "score_names"):
            raise ValueError(
                "An export is evaluated on labelled texts, where its task is fine-tuned on such; "
                "for other losses the task itself is loaded from its preset. "
                f"Received: a {type(self.task).__name__}"
            )
        return self.task.evaluate(data, labels, **options)


def _by_name(signature: Signature) -> Any:
    """An entry point as a SavedModel has it: a concrete function of named tensors."""
    names = [spec.name for spec in signature.inputs]

    def entry(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return signature.function(*(inputs[name] for name in names))

    specs = dict(zip(names, signature.inputs, strict=True))
    return graph(entry, autograph=False).get_concrete_function(**specs)


def _config_of(description: Mapping[str, Any], source: str) -> Any:
    kinds = [kind for kind in registry.names("config") if kind in description]
    if len(kinds) != 1:
        raise ValueError(
            f"An export has the config of one model. Received: {', '.join(description)} in {source}"
        )
    kind: Any = registry.get("config", kinds[0])
    return make_config(kind, description[kinds[0]], source)


def load_exported(folder: PathLike, *, threads: int | None = None) -> ExportedTask:
    """An exported task: see `ExportedTask`.

    Args:
        folder: as `Task.export` writes it for ONNX Runtime, OpenVINO or LiteRT.
        threads: how many compute; None = as the runtime chooses.
    """
    return ExportedTask(folder, threads=threads)
