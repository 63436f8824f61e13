"""Folders of every format: told apart by their files when read, by name when written."""

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras

from kbert.checkpoints import preset
from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.keys import ignoring
from kbert.checkpoints.sizes import check_size
from kbert.configs.base import Config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core import late
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays, PathLike
from kbert.io.arrays import check_finite
from kbert.io.paths import Path

_SORT = "checkpoint format"
_READ = (
    "a kbert folder (kbert.json), a Hugging Face one (config.json + model.safetensors, "
    "pytorch_model.bin, tf_model.h5 or flax_model.msgpack), a KerasHub one (config.json + "
    "model.weights.h5, or model.h5 of KerasNLP before 0.7), a Google one (*_config.json + "
    "*.ckpt.index, TensorFlow 1 or the Model Garden's), a SavedModel of TF Hub "
    "(saved_model.pb + variables/), one of ELMo's (*options.json + *weights.hdf5) or RoBERTa of "
    "fairseq (model.pt)"
)


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
        raise FileNotFoundError(f"There is no such folder; kbert reads {_READ}. Received: {folder}")
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
    raise ValueError(f"{_why_not(folder)} kbert reads {_READ}. Received: {folder}")


FORMATS = ("kbert", "huggingface", "keras_hub")
ELMO_FORMATS = ("kbert", "bilm")
_FORMATS_OF: dict[type[Config], tuple[str, ...]] = {
    EncoderConfig: FORMATS,
    ElmoConfig: ELMO_FORMATS,
    DecoderConfig: ("kbert", "huggingface"),
    Seq2SeqConfig: ("kbert",),
}


WEIGHT_DTYPES = ("float32", "bfloat16")  # of Hugging Face's files; the others are float32


def write_checkpoint(
    folder: PathLike,
    config: Config,
    arrays: Arrays,
    format: str = "kbert",
    *,
    task: Mapping[str, Any] | None = None,
    tokenizer: TokenizerLike | None = None,
    labels: Sequence[str] | None = None,
    edits: Mapping[str, Any] = MappingProxyType({}),
    architecture: str | None = None,
    max_shard_size: int | None = None,
    weight_dtype: str = "float32",
) -> None:
    """Writes config and weights, and no tokenizer, to a folder that `read_checkpoint` reads.

    Args:
        folder: made where it is missing.
        config: the model's.
        arrays: weight name -> array, under kbert's names; heads as far as there are any.
        format: "kbert", "huggingface" or "keras_hub"; for ELMo "kbert" or "bilm", for a decoder
            "kbert" or "huggingface", for an encoder-decoder "kbert".
        task: settings of the task around the model.
        tokenizer: of the model, where the format repeats what it says.
        labels: names of the classes of a fine-tuned head; not for "keras_hub".
        edits: What was done to the model besides what its config says, see `Checkpoint`; for
            "kbert" alone.
        architecture: the model's kind in the other library; None = as the config says.
        max_shard_size: for "huggingface", bytes of weights in one file; None = all in one.
        weight_dtype: for "huggingface", of the weights in the files: "float32" or "bfloat16".

    Raises:
        ValueError: an unknown format, an option that the format has not, a folder with a model of
            another format, a model that the other library cannot be, or weights that hold NaN or
            infinity: then the folder is as it was.
    """
    formats = next(found for kind, found in _FORMATS_OF.items() if isinstance(config, kind))
    if format not in formats:
        raise ValueError(f"`format` must be one of {', '.join(formats)}. Received: {format!r}")
    if format in ELMO_FORMATS and architecture is not None:
        raise ValueError(
            "`architecture` says which of another library's models to write. "
            f"Received: architecture={architecture!r} with format={format!r}"
        )
    if format != "huggingface" and max_shard_size is not None:
        raise ValueError(
            "Weights go into several files in Hugging Face's format alone. "
            f"Received: max_shard_size={max_shard_size!r} with format={format!r}"
        )
    allowed = WEIGHT_DTYPES if format == "huggingface" else WEIGHT_DTYPES[:1]
    if weight_dtype not in allowed:
        raise ValueError(
            f"Weights are written in {' or '.join(allowed)} with format={format!r}. "
            f"Received: weight_dtype={weight_dtype!r}"
        )
    if edits and format != "kbert":
        raise ValueError(
            f"Other libraries' folders have no place for {', '.join(edits)}: `kbert.edit` merges "
            "one into the weights, takes it out, or writes it alone. "
            f"Received: edits={dict(edits)!r:.200} with format={format!r}"
        )
    check_finite(arrays, os.fspath(folder))
    if format == "kbert":
        preset.write_preset(folder, config, arrays, task=task, labels=labels, edits=edits)
    elif format == "bilm":
        late.load(_SORT, format).write_bilm(folder, config, arrays, task=task)
    elif format == "keras_hub":
        late.load(_SORT, format).write_keras_hub(
            folder, config, arrays, architecture=architecture, tokenizer=tokenizer
        )
    else:
        late.load(_SORT, format).write_huggingface(
            folder,
            config,
            arrays,
            architecture=architecture,
            task=task,
            tokenizer=tokenizer,
            labels=labels,
            max_shard_size=max_shard_size,
            weight_dtype=weight_dtype,
        )


def _why_not(folder: Path) -> str:
    files = {path.name for path in folder.iterdir()}
    for file, edit in late.load_each("file of an edit"):
        if file in files:
            return f"{file} {edit.alone}"
    almost = late.load(_SORT, "huggingface").why_not(files)
    return almost or "The folder holds no model that kbert knows."
