"""Implements `Task.export`: a SavedModel, a model for another runtime, or only weights."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from absl import logging

from kbert.core import late
from kbert.core.contexts import without_rounding
from kbert.core.types import PathLike
from kbert.export.folder import TOLERANCES, check_format, export_rows, refuse_full
from kbert.export.savedmodel.write import export_saved_model, refuse_differences
from kbert.export.tensorflow_copy import export_copy
from kbert.export.text_graphs import write_text_graphs
from kbert.export.text_to_rows import TextToRows
from kbert.signatures.requests import MAX_BYTES
from kbert.signatures.rows import RowFunction

PRECISIONS = ("float32", "bfloat16", "int8")  # precisions of SavedModels
# Default texts to check an export on: short and long, with accents, numbers, several scripts.
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
    """Returns the function of rows that a runtime gets from a task's `row_export`.

    Args:
        task: a task with a `row_export`.
        by_runtime: whether the runtime rounds to 8 bits, so that the layers must not.
        settings: result of the `settings` of the `row_export`; None = {}.

    Raises:
        ValueError: the task supports SavedModels only, or does not compute in float32.
    """
    config, model = task.model.config, task.row_export(task)
    if (
        not model.formats
        or getattr(config, "max_characters", None)
        or getattr(task, "reads_by_decoder", False)
    ):
        raise ValueError(
            "Exports to other runtimes support tasks on encoders of tokens, TextToText and "
            'CausalLM; format="savedmodel" supports every task. Received: a '
            f"{type(task).__name__} on a {type(task.model).__name__}"
        )
    if task.compute_dtype != "float32":
        raise ValueError(
            "The task must be in float32 to be exported in any precision: load it with "
            f'dtype="float32". Received: dtype={task.dtype_policy.name!r}'
        )
    names = [name for name in model.inputs if name != "segment_ids" or config.num_segments]
    inputs = {n: ("batch", "masks" if n == "mask_positions" else "length") for n in names}

    def function(features: dict[str, Any]) -> dict[str, Any]:
        with without_rounding() if by_runtime else contextlib.nullcontext():
            outputs = model.outputs(features, **(settings or {}))
        return {
            name: x if keras.backend.is_int_dtype(x.dtype) else keras.ops.cast(x, "float32")
            for name, x in outputs.items()
        }

    return RowFunction(function, inputs)


def check_texts(texts: Sequence[str] | None) -> Sequence[str]:
    """Returns the texts to check an export on.

    Args:
        texts: two or more texts; None = `TEXTS`.

    Raises:
        ValueError: there are fewer than two texts, or some are not strings.
    """
    texts = TEXTS if texts is None else (texts,) if isinstance(texts, str) else tuple(texts)
    if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"texts must be at least two strings, to check the export on. Received: {len(texts)}: "
            f"{texts!r:.80}"
        )
    return texts


def export_task(
    task: Any,
    directory: PathLike,
    *,
    format: str,
    precision: str,
    max_bytes: int | None,
    **options: Any,
) -> str:
    """Writes a task as a SavedModel, for a runtime or as safetensors; see `Task.export`.

    Args:
        task: the task.
        directory: folder of the model.
        format: "savedmodel", one of `RUNTIMES` or "safetensors".
        precision: precision of the stored weights; each format supports some.
        max_bytes: most bytes of a text in a request, for SavedModels only; None = `MAX_BYTES`.
        **options: further options of the format.

    Returns:
        The path written.
    """
    if max_bytes is not None and format != "savedmodel":
        raise ValueError(
            '`max_bytes` is supported by format="savedmodel" only, whose inputs are texts. '
            f"Received: max_bytes={max_bytes} with format={format!r}"
        )
    if keras.backend.backend() != "tensorflow":
        arguments = {"format": format, "precision": precision, "max_bytes": max_bytes, **options}
        return export_copy(task, directory, arguments)
    if format == "safetensors":
        refuse_full(directory)
        task.save_to_preset(directory, "huggingface", weight_dtype=precision, **options)
        return os.fspath(directory)
    if format == "savedmodel":
        most = MAX_BYTES if max_bytes is None else max_bytes
        return _export_saved_model(task, directory, precision, most, options)
    return _export_to_runtime(task, directory, format, precision, **options)


def _export_saved_model(
    task: Any,
    directory: PathLike,
    precision: str,
    max_bytes: int,
    options: dict[str, Any],
) -> str:
    """Writes a task as a SavedModel and returns its path.

    A precision other than that of the task is checked: the outputs must not differ from the task's
    by more than the tolerance.

    Args:
        task: the task.
        directory: folder of the model, with one numbered subfolder per version.
        precision: one of `PRECISIONS`.
        max_bytes: most bytes of a text in a request.
        options: arguments of the task's `signatures`, and `texts` and `tolerance` of the check.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"`precision` of a SavedModel must be one of {', '.join(PRECISIONS)}. "
            f"Received: {precision!r}"
        )
    write = functools.partial(export_saved_model, directory, max_bytes=max_bytes)
    if precision == "float32" or task.compute_dtype == precision:
        return write(task.signatures(**options), resources=task.tokenizer.resources)
    texts, tolerance = options.pop("texts", None), options.pop("tolerance", None)
    reference = task.signatures(**options)
    write = functools.partial(
        write,
        check=functools.partial(
            refuse_differences,
            signatures=reference,
            texts=check_texts(texts),
            precision=precision,
            tolerance=TOLERANCES[precision] if tolerance is None else tolerance,
        ),
    )
    if precision == "bfloat16":
        with tempfile.TemporaryDirectory() as folder:
            task.save_to_preset(folder)
            half = type(task).from_preset(folder, dtype="mixed_bfloat16")
        return write(half.signatures(**options), resources=half.tokenizer.resources)
    weights = [v for part in task.parts.values() for v in part.variables]
    stored = late.load("export", "stored weights")(weights)
    signatures = {name: stored.signature(x) for name, x in reference.items()}
    with without_rounding():
        return write(signatures, resources=[*task.tokenizer.resources, *stored.resources])


def _export_to_runtime(
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
    """Writes a task for a runtime, with its tokenizer, and returns the path.

    Args:
        task: the task.
        folder: path of the export, new or empty.
        format: one of `RUNTIMES`.
        precision: one of the runtime's `PRECISIONS`.
        texts: texts to check the export on; None = `TEXTS`.
        tolerance: largest allowed difference from TensorFlow; None = the value in `TOLERANCES`.
        widths: lengths of rows in tokens, for LiteRT only.
        **settings: options of the task's `row_export`, such as the decoding method.
    """
    check_format(format, precision)
    model = task.row_export(task)
    if model.formats and format not in model.formats:
        raise ValueError(
            f"`format` of a {type(task).__name__} must be savedmodel or "
            f"{', '.join(model.formats)}. Received: format={format!r}"
        )
    settings = model.settings(**settings)
    rows = row_function(task, by_runtime=precision == "int8", settings=settings)
    settle = getattr(late.load("runtime", format), "settle_widths", None)
    if settle is None and widths is not None:
        raise ValueError(
            "`widths` is supported by LiteRT only; other formats support sequences of any length. "
            f"Received: widths={widths} with format={format!r}"
        )
    options = {} if settle is None else {"widths": settle(widths, task.row_length)}
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
        """Saves the tokenizer, also inside the runtime if possible; adds its entry to `about`."""
        files_before = set(os.listdir(place))
        task.tokenizer.save(place)
        beside = sorted(set(os.listdir(place)) - files_before)
        why = _why_not_inside(task)
        if why is None:
            sizes = {"max_length": task.row_length, "multiple": 1}
            build = functools.partial(task.form.build_inputs, **sizes)
            text_rows = TextToRows(task.tokenizer, build, list(rows.inputs))
            graphs = write_text_graphs(place, format, text_rows, texts)
        else:
            graphs = {"why": why}
            logging.info("%s: the tokenizer is beside the model, not inside: %s", format, why)
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
    """Returns the reason why a tokenizer inside the runtime cannot serve a task; None if it can."""
    texts = getattr(task, "texts", None)
    if texts is None:
        return (
            "this task answers with words, spans or new texts, which kbert computes from the "
            "model's outputs"
        )
    if texts.doc_stride:
        return f"this task reads long texts in windows, doc_stride={texts.doc_stride}"
    return None
