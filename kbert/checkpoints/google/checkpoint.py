"""Reads Google's releases of BERT, ALBERT and ELECTRA: config and weights.

A release is a folder with `*_config.json` and `*.ckpt*`. Variable names are those of the original
TensorFlow 1 code: google-research/bert and /albert (modeling.py, run_pretraining.py,
run_classifier.py, run_squad.py), google-research/electra (model/modeling.py, run_pretraining.py).
Or they are those of the TensorFlow Model Garden (`garden_names.py`), whose checkpoints are
object-based (`object_graph.py`). Names of TensorFlow 1 and the kbert names they become:

    bert/…, electra/…             -> encoder/…
    cls/predictions/…             -> masked_lm/…
    cls/seq_relationship/…        -> sentence/dense/… (next sentence; in ALBERT, sentence order)
    output_weights, output_bias   -> classifier/dense/… (run_classifier.py)
    cls/squad/…                   -> span/dense/… (run_squad.py)
    discriminator_predictions/…   -> discriminator/…
    generator/…, generator_predictions/… -> encoder/… and masked_lm/…, if the config is the
                                     generator's

An ELECTRA checkpoint contains two models. The config decides which one is read: the generator if
`hidden_size` is that of the generator and not of the discriminator, else the discriminator.
Optimizer slots are recognised by name and left out.

`gelu` is the tanh form in the code of BERT, ALBERT and the Model Garden, and the erf form in
ELECTRA's. The epsilon of LayerNorm is 1e-12 in all of them (that of
tf.contrib.layers.layer_norm).
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from kbert.checkpoints.checkpoint import Checkpoint, default_labels, infer_task
from kbert.checkpoints.google.bundle import (
    find_checkpoint,
    holds_checkpoint,
    read_tensors,
    variable_names,
)
from kbert.checkpoints.google.garden_names import garden_name, garden_rules
from kbert.checkpoints.google.names import albert_rules, bert_rules, electra_model
from kbert.checkpoints.google.object_graph import read_named_variables
from kbert.checkpoints.groups import check_groups
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.keys import check_keys, known_activation, make_config
from kbert.checkpoints.renames import Rule, read_arrays
from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays
from kbert.io.json_file import read_json
from kbert.io.paths import Path

READS = "a Google folder (*_config.json + *.ckpt.index, TensorFlow 1 or the Model Garden's)"
# Hugging Face kept Google's keys, except for the epsilon, which is fixed in Google's code.
_FIELDS = {key: field for key, field in Bert.fields.items() if key != "layer_norm_eps"}
# The original code's default for an absent key.
_DEFAULTS = {
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Names and defaults in the code of one repository.

    Attributes:
        name: name in messages and in the file name `NAME_config.json`.
        fields: key of the config -> field of `EncoderConfig`.
        defaults: key -> value if the key is absent.
        required: key -> values that kbert supports.
        sentence_objective: objective of the sentence head, as an argument of `infer_task`.
        gelu: form of the activation that the code calls "gelu".
        rules: function of the config and the variables; returns the table of weight names and the
            prefixes of names to leave out.
        measured: names of the token, position and segment tables and of the first feed-forward
            matrix, from whose shapes the sizes are inferred.
        group_of: function of layer, number of layers and number of groups; returns the group of the
            layer. None = layers do not share weights.
    """

    name: str
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    required: Mapping[str, tuple]
    sentence_objective: str | None
    gelu: str
    rules: Callable[[EncoderConfig, Arrays], tuple[list[Rule], tuple[str, ...]]]
    measured: tuple[str, str, str, str]
    group_of: Callable[[int, int, int], int] | None = None


def _measured(scope: str, inner: str) -> tuple[str, str, str, str]:
    """Returns `Architecture.measured`: the three tables in `scope`, and the matrix `inner`."""
    words, positions, segments = (
        f"{scope}/embeddings/{name}_embeddings" for name in ("word", "position", "token_type")
    )
    return words, positions, segments, inner


_BERT = Architecture(
    name="bert",
    fields=_FIELDS,
    defaults=_DEFAULTS,  # no `type_vocab_size`: no release has the code's default, 16
    required={"directionality": ("bidi",), "pooler_type": ("first_token_transform",)},
    sentence_objective="next_sentence",
    gelu="gelu_tanh",
    rules=lambda config, _: (bert_rules(config), ()),
    measured=_measured("bert", "bert/encoder/layer_0/intermediate/dense/kernel"),
)
_ALBERT = Architecture(
    name="albert",
    fields=_FIELDS | {"embedding_size": "embedding_size", "num_hidden_groups": "num_layer_groups"},
    defaults=_DEFAULTS
    | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "type_vocab_size": 2}
    | {"embedding_size": 128, "num_hidden_groups": 1},
    required={
        "inner_group_num": (1,),
        "down_scale_factor": (1,),
        "net_structure_type": (0,),
        "gap_size": (0,),
        "num_memory_blocks": (0,),
    },
    sentence_objective="sentence_order",
    gelu="gelu_tanh",
    rules=lambda config, _: (albert_rules(config), ()),
    measured=_measured(
        "bert",
        "bert/encoder/transformer/group_0/inner_group_0/ffn_1/intermediate/dense/kernel",
    ),
    # `transformer_model` in modeling.py
    group_of=lambda layer, layers, groups: int(layer / layers * groups),
)
_ELECTRA = Architecture(
    name="electra",
    fields=_FIELDS | {"embedding_size": "embedding_size"},
    defaults=_DEFAULTS | {"type_vocab_size": 2, "embedding_size": None},
    required={},
    sentence_objective=None,
    gelu="gelu",
    rules=electra_model,
    measured=_measured("electra", "electra/encoder/layer_0/intermediate/dense/kernel"),
)
_GARDEN_TABLES = (
    "word_embeddings/embeddings",
    "position_embedding/embeddings",
    "type_embeddings/embeddings",
)
_GARDEN_BERT = dataclasses.replace(
    _BERT,
    # A narrower embedding table is projected to the hidden width, as in ELECTRA.
    fields=_FIELDS | {"embedding_size": "embedding_size"},
    defaults=_DEFAULTS | {"embedding_size": None},
    rules=garden_rules(albert=False),
    measured=(*_GARDEN_TABLES, "transformer/layer_0/intermediate/kernel"),
)
_GARDEN_ALBERT = dataclasses.replace(
    _ALBERT,
    rules=garden_rules(albert=True),
    measured=(*_GARDEN_TABLES, "transformer/intermediate/kernel"),
    required={**_ALBERT.required, "num_hidden_groups": (1,)},
)
# Prefix of a variable's name -> architecture; the first prefix that any name has decides.
_STARTS = {
    "electra/": _ELECTRA,
    "bert/encoder/transformer/": _ALBERT,
    "bert/encoder/layer_": _BERT,
    "transformer/layer_": _GARDEN_BERT,
    "transformer/self_attention/": _GARDEN_ALBERT,
}
_ENCODERS = ("bert/", "electra/", "generator/")  # scopes in the TensorFlow 1 code
_SLOTS = re.compile(
    r"(^|/)(adam_[mv]|lamb_[mv]|Adam(_1)?|beta[12]_power|global_step|current_loss_scale|good_steps)$"
)
# Keys of the pooler in Google's later releases, which its code never reads, and a key for the shape
# in which the Model Garden's code stores attention kernels.
_IGNORED = frozenset(
    "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head".split()
) | {"backward_compatible"}
# Files of other programs whose names have the same ending.
_OTHER_CONFIGS = frozenset(("tokenizer_config.json", "generation_config.json"))


def is_folder(folder: Path) -> bool:
    """Whether the folder has a TensorFlow checkpoint, which may be incomplete."""
    return holds_checkpoint(folder)


def read_folder(folder: Path) -> Checkpoint:
    """Reads a Google folder, one for which `is_folder` is true.

    Args:
        folder: folder with `*_config.json` and a TensorFlow checkpoint.

    Returns:
        The checkpoint. A variable without a rule is included under "encoder/" and its own name, so
        that loading an encoder reports it as unexpected. Variables of a head that kbert has no task
        for are included under their own names.

    Raises:
        ValueError: a file is missing, damaged or not understood.
    """
    prefix = find_checkpoint(folder)
    variables = read_variables(prefix)
    architecture = variables.architecture
    path = find_config(folder, architecture)
    if path is None:
        content = measure(variables)
        hint = ""
        if content is not None:  # ELECTRA's releases have no config
            hint = f" By the shapes of the weights it is {json.dumps(content)}."
        raise ValueError(
            f"A Google model requires {architecture.name}_config.json next to its checkpoint, "
            f"with its sizes: write this file.{hint} Received: {folder}"
        )
    return make_checkpoint(variables, read_config(architecture, read_json(path), str(path)))


@dataclasses.dataclass(frozen=True)
class Variables:
    """The variables of a TensorFlow checkpoint, without those of the optimizer.

    Attributes:
        architecture: architecture that the variables belong to.
        tensors: name -> array.
        left: keys of the checkpoint that are not in `tensors`.
        prefix: path of the checkpoint without `.index`.
    """

    architecture: Architecture
    tensors: dict[str, np.ndarray]
    left: tuple[str, ...]
    prefix: Path

    @property
    def is_albert(self) -> bool:
        """Whether the architecture is ALBERT, whose layers share weights."""
        return self.architecture.name == _ALBERT.name

    @property
    def is_named_by_garden(self) -> bool:
        """Whether the names are the Model Garden's, whose attention kernels have a heads axis."""
        return self.architecture in (_GARDEN_BERT, _GARDEN_ALBERT)


def read_variables(prefix: Path) -> Variables:
    """Reads the variables of a checkpoint, without those of the optimizer.

    Args:
        prefix: path of the checkpoint without `.index`.

    Raises:
        ValueError: the checkpoint is damaged, or is of an unknown model.
    """
    named = read_named_variables(prefix)
    if named is None:
        tensors = read_tensors(prefix, lambda name: not _SLOTS.search(name))
        skipped_keys = tuple(name for name in variable_names(prefix) if name not in tensors)
    else:
        named_arrays, skipped_keys = named
        tensors = {garden_name(name): array for name, array in named_arrays.items()}
    return Variables(_architecture(tensors, prefix), tensors, skipped_keys, prefix)


def make_checkpoint(variables: Variables, config: EncoderConfig) -> Checkpoint:
    """Makes a checkpoint with kbert's weight names from TensorFlow variables.

    Args:
        variables: variables of a TensorFlow checkpoint.
        config: config of the model.

    Returns:
        The checkpoint.
    """
    architecture, tensors = variables.architecture, variables.tensors
    table, other_prefixes = architecture.rules(config, tensors)
    model_tensors = {
        name: array for name, array in tensors.items() if not name.startswith(other_prefixes)
    }
    arrays, unknown_tensors = read_arrays(table, model_tensors)
    if "encoder/pooler/kernel" not in arrays:
        config = config.replace(pooler_activation=None)
    heads = []
    if not variables.is_named_by_garden:
        heads = [name for name in unknown_tensors if not name.startswith(_ENCODERS)]
    if len({"classifier/dense/kernel", "classifier/dense/bias"} & arrays.keys()) == 1:
        heads += [name for name in ("output_weights", "output_bias") if name in model_tensors]
    foreign_head = None
    if heads:
        foreign_head = f"a head that kbert has no task for ({', '.join(sorted(heads))})"
    task = None if heads else infer_task(arrays, architecture.sentence_objective)
    labels = None
    if task is not None and task["kind"] == "classify":  # no file has the class names
        labels = default_labels(len(arrays["classifier/dense/bias"]))
    elif task is not None and task["kind"] == "tag":
        labels = default_labels(arrays["tokens/dense/kernel"].shape[-1])
    return Checkpoint(
        config=config,
        arrays={
            **arrays,
            **{
                name if name in heads else f"encoder/{name}": x
                for name, x in unknown_tensors.items()
            },
        },
        task=task,
        source=str(variables.prefix),
        labels=labels,
        left=(*variables.left, *(name for name in tensors if name not in model_tensors)),
        foreign_head=foreign_head,
    )


def _architecture(names: Iterable[str], prefix: Path) -> Architecture:
    """Returns the architecture that variables belong to, by the prefixes of their names.

    Raises ValueError for names of an unknown model; `prefix`, the path of the checkpoint, is for
    the message.
    """
    for start, architecture in _STARTS.items():
        if any(name.startswith(start) for name in names):
            return architecture
    shown = ", ".join(sorted(names)[:3])
    raise ValueError(
        f"A Google checkpoint must have variables below {', '.join(_STARTS)}, as in the original "
        "TF1 code of BERT, ALBERT and ELECTRA or in that of the Model Garden. A SavedModel that "
        "kbert exported is for serving: load its task from the preset that was exported. "
        f"Received: {prefix} with {shown}, …"
    )


def find_config(folder: Path, architecture: Architecture) -> Path | None:
    """Returns the path of the `*_config.json` in a folder; None if there is none.

    If there are several, the one with the architecture's name is used.

    Raises:
        ValueError: there are several config files, and none has the architecture's name.
    """
    names = sorted(p.name for p in folder.glob("*_config.json") if p.name not in _OTHER_CONFIGS)
    if f"{architecture.name}_config.json" in names:
        names = [f"{architecture.name}_config.json"]
    if len(names) > 1:
        raise ValueError(
            f"A Google folder must have one config of the model. Received: {', '.join(names)} in "
            f"{folder}"
        )
    return folder / names[0] if names else None


def read_config(
    architecture: Architecture, content: Mapping[str, Any], source: str
) -> EncoderConfig:
    """Converts Google's JSON config to an `EncoderConfig`.

    Args:
        architecture: architecture of the model.
        content: key -> value of the file.
        source: where the config is from, for messages.

    Raises:
        ValueError: a key is unknown or missing, has an invalid value, or assigns ALBERT's layers to
            other groups than kbert would.
    """
    check_keys(
        content,
        fields=architecture.fields,
        defaults=architecture.defaults,
        required=architecture.required,
        ignored=_IGNORED,
        title=f"Google's {architecture.name}",
        source=source,
    )
    fields = architecture.fields
    values = {field: content.get(k, architecture.defaults.get(k)) for k, field in fields.items()}
    activations = {"gelu": architecture.gelu, "relu": "relu", "tanh": "tanh"}
    values["activation"] = known_activation(
        values["activation"], activations, "`hidden_act`", source
    )
    if architecture is _GARDEN_BERT and values["embedding_size"] == values["hidden_size"]:
        values["embedding_size"] = None  # equal sizes: no projection
    config = make_config(EncoderConfig, values, source)
    layers, groups = config.num_layers, config.num_blocks
    if architecture.group_of is not None:
        group_of = architecture.group_of
        check_groups(layers, groups, lambda i: group_of(i, layers, groups), "Google", source)
    return config


def measure(variables: Variables) -> dict[str, int] | None:
    """Infers the sizes in Google's config from the shapes, except the number of ALBERT's layers.

    The number of heads is an axis of the Model Garden's attention kernels. Other kernels have no
    such axis: there heads of width 64 are assumed, as in all of Google's published models.

    Args:
        variables: variables of a TensorFlow checkpoint.

    Returns:
        Key of the config -> size; None if one of the needed variables is missing or has another
        rank.
    """
    tensors, measured = variables.tensors, variables.architecture.measured
    if any(name not in tensors or tensors[name].ndim != 2 for name in measured):
        return None
    words, positions, segments, inner = (tensors[name] for name in measured)
    layer_pattern = re.compile(r"(electra/encoder|bert/encoder|transformer)/layer_(\d+)/")
    layers = {match[2] for match in map(layer_pattern.match, tensors) if match}
    queries = (x for name, x in tensors.items() if name.endswith("/query/kernel"))
    heads = {x.shape[1] if x.ndim == 3 else max(1, len(inner) // 64) for x in queries}
    content = {
        "vocab_size": len(words),
        "embedding_size": words.shape[1],
        "hidden_size": len(inner),
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(heads, default=1),
        "intermediate_size": inner.shape[1],
        "max_position_embeddings": len(positions),
        "type_vocab_size": len(segments),
    }
    if variables.is_albert:
        group_pattern = re.compile(r"bert/encoder/transformer/group_(\d+)/")
        group_numbers = {match[1] for match in map(group_pattern.match, tensors) if match}
        del content["num_hidden_layers"]
        content["num_hidden_groups"] = max(1, len(group_numbers))
    elif "embedding_size" not in variables.architecture.fields:
        del content["embedding_size"]
    return content
