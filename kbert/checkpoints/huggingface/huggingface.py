"""Reads and writes folders of Hugging Face's transformers: `config.json` and weights."""

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from absl import logging

from kbert.checkpoints import preset
from kbert.checkpoints.checkpoint import Checkpoint, infer_task, problem_type_of
from kbert.checkpoints.huggingface import (
    generation,
    sentence_transformers,
    static_embedding,
    weights,
)
from kbert.checkpoints.huggingface.architectures import (
    Architecture,
    find,
    identify,
    infer,
    usual_pooler as usual_pooler,
)
from kbert.checkpoints.huggingface.architectures.base import (
    CLASSIFIERS,
    has_inner_classifier,
    modern_name,
)
from kbert.checkpoints.huggingface.config import (
    read_config,
    read_head_dropout,
    read_labels,
    read_problem_type,
    write_config,
    write_head_dropout,
    write_labels,
)
from kbert.checkpoints.huggingface.shards import write_shards
from kbert.checkpoints.huggingface.weights import has_weights, read_weights
from kbert.checkpoints.renames import read_arrays, write_arrays
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.configs.static import StaticConfig
from kbert.core import late
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import Path

CONFIG_FILE = "config.json"
READS = (
    f"a Hugging Face folder ({CONFIG_FILE} + model.safetensors, pytorch_model.bin, tf_model.h5 or "
    "flax_model.msgpack)"
)
TAKES = ("task", "tokenizer", "labels", "architecture", "max_shard_size", "weight_dtype")
WEIGHT_DTYPES = ("float32", "bfloat16")
_IN_SHARDS = ("tf_model.h5.index.json", "flax_model.msgpack.index.json")
# Kinds of tasks whose sequences transformers truncates at the tokenizer's `model_max_length`.
ON_ROWS = ("classify", "regress", "tag", "answer", "choose")


def is_folder(folder: Path) -> bool:
    """Whether the folder has `config.json` and weights that kbert reads, or static embeddings."""
    return static_embedding.is_folder(folder) or (
        has_weights(folder) and (folder / CONFIG_FILE).is_file()
    )


def check_has_keys(folder: Path, keys: Iterable[str], is_one: bool) -> None:
    """Raises ValueError unless keys to ignore are in the `config.json` of a folder.

    Args:
        folder: folder of the model.
        keys: names of the keys.
        is_one: whether the folder is a Hugging Face folder.
    """
    content = read_json(folder / CONFIG_FILE) if is_one and (folder / CONFIG_FILE).is_file() else {}
    if absent := [key for key in keys if key not in content]:
        raise ValueError(
            "`ignore` must name keys of a Hugging Face config.json. Received: "
            f"{', '.join(map(repr, absent))}, of which {folder} has none"
        )


def read_folder(folder: Path) -> Checkpoint:
    """Reads a Hugging Face folder, one for which `is_folder` is true; see `import_model`.

    Modules of sentence-transformers and the tokenizer's maximum length become settings of the task.
    """
    if static_embedding.is_folder(folder):
        return static_embedding.read_folder(folder)
    content = read_json(folder / CONFIG_FILE)
    if (activation := sentence_transformers.activation(folder)) is not None:
        content["sentence_transformers"] = {"activation_fn": activation}  # the form of version 4
    for file, edit in late.load_each("file of an edit"):
        if edit.beside is not None and (folder / file).is_file():
            logging.warning("%s: %s of %s %s", folder, edit.what, file, edit.beside)
    checkpoint = import_model(content, read_weights(folder), str(folder))
    task = checkpoint.task or {}
    if task.get("kind") in ON_ROWS:
        limit = sentence_transformers.longest_row(folder, checkpoint.config.max_positions)
        checkpoint = dataclasses.replace(checkpoint, task={**task, **limit})
    elif _generates(checkpoint.config, task):
        checkpoint = dataclasses.replace(
            checkpoint, task={**task, **generation.read(folder, content)}
        )
    if sentence_transformers.is_folder(folder):
        return sentence_transformers.extended(checkpoint, folder)
    return checkpoint


def write_folder(
    folder: PathLike,
    config: Any,
    arrays: Arrays,
    *,
    max_shard_size: int | None = None,
    weight_dtype: str = "float32",
    **options: Any,
) -> None:
    """Writes a folder that transformers loads.

    Args:
        folder: folder to write to; created if missing. Files in it that do not belong to a model
            are kept.
        config: config of the model.
        arrays: weight name -> array, under kbert's names, including any heads.
        max_shard_size: maximum bytes of weights in one file; None = one file.
        weight_dtype: dtype of the weights in the files, "float32" or "bfloat16".
        **options: arguments of `export_model`: `architecture`, `task`, `tokenizer` and `labels`.

    Raises:
        ValueError: an option is invalid, the architecture cannot be this model, or the folder holds
            a kbert or KerasHub preset.
    """
    if weight_dtype not in WEIGHT_DTYPES:
        raise ValueError(
            f"`weight_dtype` must be {' or '.join(WEIGHT_DTYPES)}. Received: "
            f"weight_dtype={weight_dtype!r}"
        )
    preset.refuse_other(Path(folder), preset.CONFIG_FILE, "a kbert preset")
    preset.refuse_other(Path(folder), "model.weights.h5", "a KerasHub preset")
    if isinstance(config, StaticConfig):
        task_options = {name: options.get(name) for name in ("task", "tokenizer")}
        checked_options = {
            "max_shard_size": max_shard_size,
            **options,
            "weight_dtype": weight_dtype,
        }
        static_embedding.refuse_options(checked_options)
        static_embedding.write_folder(folder, config, arrays, **task_options)
        return
    arrays, modules = sentence_transformers.split(arrays)
    content, renamed = export_model(config, arrays, **options)
    if weight_dtype != "float32":
        kind = np.dtype(getattr(ml_dtypes, weight_dtype))
        renamed = {k: x.astype(kind) if x.dtype.kind == "f" else x for k, x in renamed.items()}
        content = {**content, "torch_dtype": weight_dtype}
    task, tokenizer = options.get("task") or {}, options.get("tokenizer")
    generates = _generates(config, task) and tokenizer is not None
    if generates:
        content["decoder_start_token_id"] = generation.start_of(task, tokenizer)
    text = json.dumps(content, indent=2) + "\n"
    sentence_transformers.remove_modules(Path(folder))  # nothing can be refused from here on
    write_shards(Path(folder), renamed, CONFIG_FILE, text.encode(), max_shard_size)
    if generates:
        generation.write(Path(folder), task, tokenizer)
    if task.get("kind") == sentence_transformers.KIND:
        sentence_transformers.write_modules(Path(folder), modules, task, config.hidden_size)


def _generates(config: Any, task: Mapping[str, Any]) -> bool:
    """Whether a model's task generates texts by an encoder-decoder."""
    return isinstance(config, Seq2SeqConfig) and task.get("kind") not in (None, *ON_ROWS)


def write_longest_row(folder: PathLike, task: Mapping[str, Any]) -> None:
    """Writes a task's `max_length` to the tokenizer's config, as `model_max_length`.

    `read_folder` and transformers read it there. A task of a kind other than `ON_ROWS`, or without
    a `max_length`, writes nothing.

    Args:
        folder: folder to write to, which already has the tokenizer.
        task: kind and settings of the task.
    """
    longest = task.get("max_length")
    if task.get("kind") not in ON_ROWS or longest is None:
        return
    path = Path(folder) / sentence_transformers.TOKENIZER_FILE
    content = {**read_json(atomic.newest(path)), "model_max_length": longest}
    atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())


def import_model(content: Mapping[str, Any], arrays: Arrays, source: str) -> Checkpoint:
    """Converts Hugging Face's config and arrays to kbert's.

    Names may lack the prefix (`bert.`), may have the `gamma`/`beta` of old files, and may have the
    prefixes that torch.compile and DataParallel add.

    Args:
        content: key -> value of `config.json`; without a `model_type`, as in old files, see
            `identify`.
        arrays: name in transformers -> array.
        source: where the model is from, for messages.

    Returns:
        The checkpoint. Arrays that kbert has no name for are included under "encoder/" or
        "decoder/", so that loading the model reports them as unexpected.

    Raises:
        ValueError: an architecture, a key or a value is unknown to kbert, or tied weights differ.
    """
    arrays = {modern_name(k): array for k, array in _unwrapped(arrays).items()}
    architecture = identify(content, source, arrays)
    content = architecture.modernised(content)
    config: Any = read_config(architecture, content, source)
    prefixed_arrays = _with_prefix(architecture, arrays)
    head = architecture.classifier(content, prefixed_arrays)
    kbert_arrays, unused_arrays = read_arrays(
        architecture.rules(config, head), architecture.fold(prefixed_arrays, content)
    )
    config = architecture.settled(config, kbert_arrays, content)
    architecture.check_masked_lm(config, kbert_arrays)
    if "encoder/pooler/kernel" in kbert_arrays:
        activation = architecture.pooler_activation(content, head)
        config = config.replace(pooler_activation=activation)
    problem_type = read_problem_type(content, source)
    is_half = (
        len({f"{head}/dense/{part}" for part in ("kernel", "bias")} & kbert_arrays.keys()) == 1
    )
    task = None
    if not is_half:
        task = infer_task(kbert_arrays, architecture.sentence_objective, problem_type)
    replaced_names = architecture.replaced_pooler if has_inner_classifier(prefixed_arrays) else ()
    unread_names = tuple(
        n for n in unused_arrays if n in replaced_names or re.search(architecture.unread, n)
    )
    unknown = prefixed_arrays if is_half else [n for n in unused_arrays if n not in unread_names]
    foreign_head = _foreign_head(architecture, content, task, kbert_arrays, unknown)
    if foreign_head is not None:
        task = None
    elif task is None and architecture.task is not None:
        task = {"kind": architecture.task, **architecture.task_settings}
    if task is not None and task["kind"] in sentence_transformers.RERANKERS:
        _tell_of_activation(content, task, source)
    labels = None
    if task is not None and task["kind"] in ("classify", "tag"):
        labels = read_labels(content, len(kbert_arrays[f"{head}/dense/bias"]), source)
    if task is not None and head is not None:
        dropout = read_head_dropout(architecture, content, head, config.dropout, source)
        task |= {} if dropout is None else {"dropout": dropout}
    if task is not None and head == "classifier":
        task |= dict(architecture.classifier_settings)
    for name, array in unused_arrays.items():
        if name not in unread_names:
            is_of_head = name.startswith(architecture.heads)
            kbert_arrays[name if is_of_head else f"{architecture.root}/{name}"] = array
    return Checkpoint(
        config=config,
        arrays=kbert_arrays,
        task=task,
        source=source,
        labels=labels,
        left=unread_names,
        foreign_head=foreign_head,
    )


def export_model(
    config: Any,
    arrays: Arrays,
    *,
    architecture: str | None = None,
    task: Mapping[str, Any] | None = None,
    tokenizer: TokenizerLike | None = None,
    labels: Sequence[str] | None = None,
) -> tuple[dict[str, Any], Arrays]:
    """Converts kbert's config and arrays to Hugging Face's; reverses `import_model`.

    Returns the content of `config.json`, and name in transformers -> array.

    Args:
        config: config of the model.
        arrays: kbert's weight name -> array.
        architecture: `model_type` in transformers; None = chosen by `architectures.infer`.
        task: settings of the model's task.
        tokenizer: tokenizer whose special ids `config.json` repeats.
        labels: class names of a fine-tuned head; None = transformers' defaults.

    Raises:
        ValueError: the architecture cannot be this model; the message gives the reasons.
    """
    kind = None if tokenizer is None else tokenizer.kind
    table = find(architecture or infer(config, arrays, kind), "`architecture`")
    content = write_config(table, config, tokenizer)
    table.check_masked_lm(config, arrays)
    _check_objective(table, arrays, task or {})
    _check_rows(table, arrays, task or {})
    heads = [name for name in CLASSIFIERS if f"{name}/dense/kernel" in arrays]
    if len(heads) > 1:
        raise ValueError(
            "A model of Hugging Face can have only one head for classes. Received: "
            f"{' and '.join(heads)}"
        )
    head = heads[0] if heads else None
    renamed_arrays = table.unfold(write_arrays(table.rules(config, head), arrays), content)
    ending = _class_ending(table, arrays, head)
    content["architectures"] = [table.class_prefix + table.class_endings.get(ending, ending)]
    if head in ("classifier", "tokens"):
        content |= write_labels(labels, len(arrays[f"{head}/dense/bias"]))
    content |= table.head_keys(arrays, tokenizer)
    if head is not None:
        dropout = (task or {}).get("dropout")
        content |= write_head_dropout(table, head, dropout, config.dropout)
    problem_type = problem_type_of(task or {})
    if problem_type is not None:
        content["problem_type"] = problem_type
    return content, renamed_arrays


def _unwrapped(arrays: Arrays) -> Arrays:
    """Removes from names the prefixes that torch.compile and DataParallel add.

    The arrays are returned unchanged if two would get the same name.

    Example:
        >>> list(_unwrapped({"module.bert.x": np.zeros(1), "module.bert._orig_mod.y": np.zeros(1)}))
        ['bert.x', 'bert.y']
    """
    unwrapped = {re.sub(r"(?<![^.])_orig_mod\.", "", name): array for name, array in arrays.items()}
    if unwrapped and all(name.startswith("module.") for name in unwrapped):
        unwrapped = {name.removeprefix("module."): array for name, array in unwrapped.items()}
    return unwrapped if len(unwrapped) == len(arrays) else arrays


def _with_prefix(architecture: Architecture, arrays: Arrays) -> Arrays:
    """Adds the architecture's prefix to all names but those of heads, if no name has it.

    Args:
        architecture: table of the architecture.
        arrays: name in transformers -> array.
    """
    prefix = f"{architecture.prefix}."
    if not architecture.prefix or any(name.startswith(prefix) for name in arrays):
        return arrays
    return {
        name if name.startswith(architecture.heads) else f"{prefix}{name}": array
        for name, array in arrays.items()
    }


def _foreign_head(
    architecture: Architecture,
    content: Mapping[str, Any],
    task: Mapping[str, Any] | None,
    here: Arrays,
    unknown: Iterable[str],
) -> str | None:
    """Describes a head that kbert has no task for; returns None if there is no such head.

    Args:
        architecture: table of the architecture.
        content: key -> value of `config.json`.
        task: task inferred from the heads, or None.
        here: kbert's weight name -> array.
        unknown: names in transformers of arrays that no rule used.
    """
    if task is not None and task["kind"] == "regress":
        bias = here["classifier/dense/bias"]
        if len(bias) != 1:
            return (
                f"a regression of {len(bias)} numbers for each text, where kbert's TextRegressor "
                "has one"
            )
    names = sorted(name for name in unknown if name.startswith(architecture.heads))
    if task is not None or not names:
        return None
    classes: Any = content.get("architectures")
    has_class_name = isinstance(classes, list) and classes and isinstance(classes[0], str)
    model_name = classes[0] if has_class_name else architecture.title
    return f"a head of {model_name} that kbert has no task for ({', '.join(names)})"


def _tell_of_activation(content: Mapping[str, Any], task: Mapping[str, Any], source: str) -> None:
    """Warns if sentence-transformers applies another activation to a reranker's logits than kbert.

    Args:
        content: key -> value of `config.json`.
        task: kind and settings of the reranker's task, "regress" or "classify".
        source: where the model is from, for the warning.
    """
    settings = content.get("sentence_transformers")
    if isinstance(settings, dict) and "activation_fn" in settings:
        activation = settings["activation_fn"]
    else:  # before version 4
        activation = content.get("sbert_ce_default_activation_function")
    name = str(activation).rpartition(".")[2].lower()
    if activation is None or name == "identity":
        return
    statement = "The scores of a TextRegressor are logits"
    if task["kind"] == "classify":
        ours = "sigmoid" if task.get("multi_label") else "softmax"
        if name == ours:
            return
        statement = f"The scores of a TextClassifier are {ours} of its logits"
        if name == "sigmoid":
            statement += ", with multi_label=True sigmoid"
    logging.warning(
        "%s: sentence-transformers applies %s to them, according to %s", statement, name, source
    )


def _class_ending(architecture: Architecture, arrays: Arrays, head: str | None) -> str:
    """Returns the end of transformers' name of the class with the heads, e.g. "ForMaskedLM".

    Args:
        architecture: table of the architecture.
        arrays: kbert's weight name -> array.
        head: one of `CLASSIFIERS` that is in the weights, or None.
    """
    if head:
        return CLASSIFIERS[head]
    if "span/dense/kernel" in arrays:
        return architecture.span_class
    if architecture.class_ending is not None:
        return architecture.class_ending
    if architecture.task == "causal_lm" or "permutation_lm/bias" in arrays:
        return architecture.causal_class
    masked, sentence = "masked_lm/bias" in arrays, "sentence/dense/kernel" in arrays
    if "discriminator/output/kernel" in arrays or (masked and sentence):
        return "ForPreTraining"
    if masked:
        return "ForMaskedLM"
    if sentence:
        return architecture.sentence_class
    return "Model"


def _check_rows(architecture: Architecture, arrays: Arrays, task: Mapping[str, Any]) -> None:
    """Raises ValueError if a classifier was trained with input tokens that transformers lacks.

    Input tokens are those that kbert's task puts around a text.

    Args:
        architecture: table of the architecture.
        arrays: kbert's weight name -> array.
        task: kind and settings of the task; empty = no task.
    """
    bare = not architecture.classifier_settings.get("input_tokens", True)
    if bare and "classifier/dense/kernel" in arrays and task.get("input_tokens", True):
        raise ValueError(
            f"A classifier on Hugging Face's {architecture.title} does not support input tokens. "
            "Received: one that was trained with input tokens"
        )


def _check_objective(architecture: Architecture, arrays: Arrays, task: Mapping[str, Any]) -> None:
    """Raises ValueError if the sentence head was trained on another objective than in transformers.

    The head is the same for both objectives; only the task has the objective.

    Args:
        architecture: table of the architecture.
        arrays: kbert's weight name -> array.
        task: kind and settings of the task; empty = no task.
    """
    objectives = [name for name in ("next_sentence", "sentence_order") if task.get(name)]
    if "sentence/dense/kernel" not in arrays or not objectives:
        return
    if architecture.sentence_objective not in objectives:
        raise ValueError(
            f"The sentence head of Hugging Face's {architecture.title} must have the objective "
            f"{architecture.sentence_objective}. Received: a head of {objectives[0]}"
        )


def why_not(files: Collection[str]) -> str | None:
    """Returns why a folder with these file names is almost, but not, in this format; else None."""
    for name in _IN_SHARDS:
        if name in files:
            return (
                f"{name} refers to shards of transformers' TensorFlow or Flax classes: load them "
                "with from_pretrained(folder, from_tf=True or from_flax=True) of a transformers "
                "below version 5 and save them with save_pretrained, as safetensors."
            )
    if sentence_transformers.MODULES_FILE in files:
        return (
            f"{sentence_transformers.MODULES_FILE} has the model in a separate folder, as in old "
            "versions of sentence-transformers: SentenceTransformer(folder).save(other) of a "
            "current version writes a folder that kbert supports."
        )
    if "config.json" not in files and {*weights.FILES} & {*files}:
        return "Weights alone do not define a model: config.json is missing."
    return None
