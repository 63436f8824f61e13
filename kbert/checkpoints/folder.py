"""Folders of every format: told apart by their files when read, by name when written."""

import itertools
import os
from collections.abc import Collection
from typing import Any

import keras

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.keys import ignoring
from kbert.checkpoints.sizes import check_size
from kbert.configs.base import Config
from kbert.core import late
from kbert.core.types import Arrays, PathLike
from kbert.io.arrays import check_finite
from kbert.io.paths import Path

_SORT = "checkpoint format"
_USUAL_DTYPE = ("weight_dtype", "float32")
# The options of `write_checkpoint`, and why one is refused where a format does not take it; None:
# then it is left out.
_OPTIONS = {
    "task": None,
    "tokenizer": None,
    "labels": None,
    "edits": "Other libraries' folders have no place for edits: `kbert.edit` merges one into the "
    "weights, takes it out, or writes it alone.",
    "architecture": "`architecture` says which of another library's models to write.",
    "max_shard_size": "Weights go into several files in Hugging Face's format alone.",
    "weight_dtype": "Weights are written in float32; Hugging Face's format also has bfloat16.",
}


def read_checkpoint(
    folder: str | os.PathLike | keras.Model, *, ignore: Collection[str] = ()
) -> Checkpoint:
    """Reads config and weights from a folder, or from a model of KerasHub's.

    Args:
        folder: a kbert preset folder, a Hugging Face folder, a KerasHub
            preset, a Google folder of TensorFlow 1 or the Model Garden, with or without pooler and
            heads, a SavedModel of TF Hub, or one of ELMo's; or a KerasHub backbone in memory.
        ignore: keys of a Hugging Face `config.json` that say nothing about the model, where
            kbert does not know them.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is of another kind, or its files are damaged or not understood; or
            a key to `ignore` decides what the model computes, or is none of the folder's.
    """
    if not isinstance(folder, str | os.PathLike):
        return late.load(_SORT, "keras_hub").read_backbone(folder)
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no such folder; {_what_is_read()}. Received: {folder}")
    for name, format_ in late.load_each(_SORT):
        if format_.is_folder(folder):
            with ignoring(ignore):
                if ignore:
                    huggingface = late.load(_SORT, "huggingface")
                    huggingface.check_has_keys(folder, ignore, name == "huggingface")
                checkpoint = format_.read_folder(folder)
            stored = sum(array.size for array in checkpoint.arrays.values())
            check_size(checkpoint.config, stored, checkpoint.source)
            return checkpoint
    files = {path.name for path in folder.iterdir()}
    edits = (f"{x} {edit.alone}" for x, edit in late.load_each("file of an edit") if x in files)
    almost = (x.why_not(files) for _, x in late.load_each(_SORT) if hasattr(x, "why_not"))
    reasons = itertools.chain(edits, filter(None, almost))
    why = next(reasons, "The folder holds no model that kbert knows.")
    raise ValueError(f"{why} {_what_is_read()}. Received: {folder}")


def _what_is_read() -> str:
    *others, last = (format_.READS for _, format_ in late.load_each(_SORT))
    return f"kbert reads {', '.join(others)} or {last}"


def write_checkpoint(
    folder: PathLike, config: Config, arrays: Arrays, format: str = "kbert", **options: Any
) -> None:
    """Writes config and weights, and no tokenizer, to a folder that `read_checkpoint` reads.

    Args:
        folder: made where it is missing.
        config: the model's.
        arrays: weight name -> array, under kbert's names; heads as far as there are any.
        format: one of the config's `FORMATS`: "kbert", and "huggingface", "keras_hub" or "bilm"
            where another library has such models.
        **options: what a format takes, None = not given: `task`, settings of the task around the
            model; `tokenizer`, where the format repeats what it says; `labels`, names of the
            classes of a fine-tuned head, not for "keras_hub"; `edits`, what was done to the model
            besides what its config says, for "kbert" alone (see `Checkpoint`); `architecture`, the
            model's kind in the other library, by default as the config says; and for "huggingface"
            `max_shard_size`, bytes of weights in one file (by default all in one), and
            `weight_dtype`, "float32" or "bfloat16".

    Raises:
        TypeError: no such option.
        ValueError: an unknown format, an option that the format has not, a folder with a model of
            another format, a model that the other library cannot be, or weights that hold NaN or
            infinity: then the folder is as it was.
    """
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(
            f"What is written besides the weights is {', '.join(_OPTIONS)}. Received: "
            f"{', '.join(unknown)}"
        )
    if format not in config.FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(config.FORMATS)}. Received: {format!r}"
        )
    format_ = late.load(_SORT, format)
    given = {k: x for k, x in options.items() if x is not None and (k, x) != _USUAL_DTYPE}
    for name in sorted(given.keys() - {*format_.TAKES}):
        if (why := _OPTIONS[name]) and given[name] != {}:
            value = f"{given[name]!r:.200}"
            raise ValueError(f"{why} Received: {name}={value} with format={format!r}")
        del given[name]
    check_finite(arrays, os.fspath(folder))
    format_.write_folder(folder, config, arrays, **given)
