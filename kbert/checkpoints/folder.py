"""Reads folders of every format, recognised by their files, and writes a format chosen by name."""

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
from kbert.io import atomic
from kbert.io.arrays import check_finite
from kbert.io.paths import Path

_SORT = "checkpoint format"
_USUAL_DTYPE = ("weight_dtype", "float32")
# Option of `write_checkpoint` -> the error if a format does not accept it; None = the option is
# silently left out.
_OPTIONS = {
    "task": None,
    "tokenizer": None,
    "labels": None,
    "edits": "The formats of other libraries do not support edits: `kbert.edit` can merge an edit "
    "into the weights, remove it, or write it alone.",
    "architecture": "`architecture` requires a format of another library that has several: "
    "Hugging Face's or KerasHub's.",
    "max_shard_size": "`max_shard_size` requires Hugging Face's format: all others have one file "
    "of weights.",
    "weight_dtype": "`weight_dtype` must be float32, or bfloat16 in Hugging Face's format.",
}


def read_checkpoint(
    folder: str | os.PathLike | keras.Model, *, ignore: Collection[str] = ()
) -> Checkpoint:
    """Reads config and weights from a folder, or from a KerasHub backbone in memory.

    Args:
        folder: folder in one of these formats, with or without pooler and heads: a kbert preset, a
            Hugging Face folder, a KerasHub preset or a `model.h5` of KerasNLP, a Google folder of
            TensorFlow 1 or the Model Garden, a SavedModel of TF Hub, ELMo's files, or a RoBERTa of
            fairseq. Or a KerasHub backbone in memory.
        ignore: keys of a Hugging Face `config.json`, unknown to kbert, that do not affect the
            model.

    Returns:
        The checkpoint.

    Raises:
        FileNotFoundError: there is no such folder.
        TypeError: `folder` is neither a path nor a KerasHub backbone that kbert supports.
        ValueError: the folder has no known format, or its files are damaged or not understood; or
            a key to `ignore` changes what the model computes, or is not in the folder's config.
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
    why = next(reasons, "The folder contains no model that kbert supports.")
    raise ValueError(f"{why} {_what_is_read()}. Received: {folder}")


def _what_is_read() -> str:
    """Returns a sentence without a full stop that lists the formats kbert reads."""
    *others, last = (format_.READS for _, format_ in late.load_each(_SORT))
    return f"kbert supports {', '.join(others)} or {last}"


def write_checkpoint(
    folder: PathLike, config: Config, arrays: Arrays, format: str = "kbert", **options: Any
) -> None:
    """Writes config and weights, without the tokenizer, to a folder that `read_checkpoint` reads.

    Args:
        folder: folder to write to; created if missing.
        config: config of the model.
        arrays: weight name -> array, under kbert's names, including any heads.
        format: one of the config's `FORMATS`: "kbert", and "huggingface", "keras_hub" or "bilm" if
            another library has such models.
        **options: options of the format; None = not given. Formats without a place for the first
            three ignore them. `task`: settings of the model's task. `tokenizer`: tokenizer, for
            formats that repeat its settings. `labels`: class names of a fine-tuned head. `edits`:
            changes to the model that are not in its config, only for "kbert" (see `Checkpoint`).
            `architecture`: kind of the model in the other library, by default chosen by the config.
            `max_shard_size`, only for "huggingface": maximum bytes of weights in one file, by
            default all in one. `weight_dtype`, only for "huggingface": "float32" or "bfloat16".

    Raises:
        TypeError: there is no such option.
        ValueError: the format is unknown or does not accept another option, the folder holds a
            model in another format, the other library has no such model, or weights contain NaN or
            infinity. Config and weights in the folder are then unchanged.
    """
    if unknown := sorted(options.keys() - _OPTIONS):
        raise TypeError(
            f"The options must be among {', '.join(_OPTIONS)}. Received: {', '.join(unknown)}"
        )
    if format not in config.FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(config.FORMATS)}. Received: {format!r}"
        )
    format_ = late.load(_SORT, format)
    given_options = {k: x for k, x in options.items() if x is not None and (k, x) != _USUAL_DTYPE}
    for name in sorted(given_options.keys() - {*format_.TAKES}):
        if (why := _OPTIONS[name]) and given_options[name] != {}:
            value = f"{given_options[name]!r:.200}"
            raise ValueError(f"{why} Received: {name}={value} with format={format!r}")
        del given_options[name]
    check_finite(arrays, os.fspath(folder))
    late.load(_SORT, "kbert").refuse_several_or_export(Path(folder))
    with atomic.together():
        format_.write_folder(folder, config, arrays, **given_options)
