"""Google's TensorFlow 1 releases of BERT, ALBERT and ELECTRA: config and names, both directions.

A release is a folder with `*_config.json` and `*.ckpt*`. Names are those that the variables of the
original code have: google-research/bert and /albert (modeling.py, run_pretraining.py,
run_classifier.py, run_squad.py), google-research/electra (model/modeling.py, run_pretraining.py).
What they mean here:

    bert/…, electra/…             -> encoder/…
    cls/predictions/…             -> masked_lm/…
    cls/seq_relationship/…        -> sentence/dense/… (next sentence; in ALBERT, sentence order)
    output_weights, output_bias   -> classifier/dense/… (run_classifier.py)
    cls/squad/…                   -> span/dense/… (run_squad.py)
    discriminator_predictions/…   -> discriminator/…
    generator/…, generator_predictions/… -> encoder/… and masked_lm/…, if the config is the
                                     generator's

An ELECTRA checkpoint holds two models. The config says which one is read: the discriminator,
unless its `hidden_size` is that of the generator alone. Optimizer slots are left out by name.

`gelu` is the tanh form in BERT's and ALBERT's code and the erf form in ELECTRA's. The epsilon of
LayerNorm is that of tf.contrib.layers.layer_norm, 1e-12.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kbert.checkpoints.checkpoint import Checkpoint, default_labels, infer_task
from kbert.checkpoints.google.names import albert_rules, bert_rules, electra_model
from kbert.checkpoints.google.tensorflow1 import (
    find_checkpoint,
    holds_checkpoint,
    read_tensors,
    variable_names,
)
from kbert.checkpoints.groups import check_groups
from kbert.checkpoints.huggingface.architectures.bert import Bert
from kbert.checkpoints.keys import check_keys, known_activation, make_config
from kbert.checkpoints.renames import Rule, read_arrays
from kbert.configs.encoder import EncoderConfig
from kbert.files import Path
from kbert.json_file import read_json
from kbert.types import Arrays

# Hugging Face kept Google's keys; only the epsilon is fixed in Google's code.
_FIELDS = {key: field for key, field in Bert.fields.items() if key != "layer_norm_eps"}
# What the original code takes for a key that is absent.
_DEFAULTS = {
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


@dataclasses.dataclass(frozen=True)
class _Architecture:
    """What one of the three repositories calls things.

    Attributes:
        name: for messages, and of the file `NAME_config.json`.
        fields: key of the config -> field of `EncoderConfig`.
        defaults: key -> value where it is absent.
        required: key -> values that kbert's encoder has an equal for.
        sentence_objective: what the sentence head was trained for, as `infer_task` takes it.
        gelu: the form that "gelu" has.
        rules: config, names of the variables -> table, and the beginnings of names to leave out.
        group_of: layer, layers, groups -> the group of the layer, where layers share weights.
    """

    name: str
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    required: Mapping[str, tuple]
    sentence_objective: str | None
    gelu: str
    rules: Callable[[EncoderConfig, Arrays], tuple[list[Rule], tuple[str, ...]]]
    group_of: Callable[[int, int, int], int] | None = None


_BERT = _Architecture(
    name="bert",
    fields=_FIELDS,
    defaults=_DEFAULTS,  # no `type_vocab_size`: the code's 16 is not what any release means
    required={"directionality": ("bidi",), "pooler_type": ("first_token_transform",)},
    sentence_objective="next_sentence",
    gelu="gelu_tanh",
    rules=lambda config, _: (bert_rules(config), ()),
)
_ALBERT = _Architecture(
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
    # `transformer_model` in modeling.py
    group_of=lambda layer, layers, groups: int(layer / layers * groups),
)
_ELECTRA = _Architecture(
    name="electra",
    fields=_FIELDS | {"embedding_size": "embedding_size"},
    defaults=_DEFAULTS | {"type_vocab_size": 2, "embedding_size": None},
    required={},
    sentence_objective=None,
    gelu="gelu",
    rules=electra_model,
)
# Beginning of a variable's name -> whose it is; the first that any name has.
_STARTS = {
    "electra/": _ELECTRA,
    "bert/encoder/transformer/": _ALBERT,
    "bert/encoder/layer_": _BERT,
}
_SLOTS = re.compile(r"(^|/)(adam_[mv]|lamb_[mv]|Adam(_1)?|beta[12]_power|global_step)$")
# What tells the sizes of an ELECTRA.
_MEASURED = {
    "electra/embeddings/position_embeddings",
    "electra/embeddings/token_type_embeddings",
    "electra/embeddings/word_embeddings",
    "electra/encoder/layer_0/intermediate/dense/kernel",
}
# The pooler's keys of Google's later releases; its code never reads them.
_IGNORED = frozenset(
    "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head".split()
)
# Files of other programs whose names end alike.
_OTHER_CONFIGS = frozenset(("tokenizer_config.json", "generation_config.json"))


def is_folder(folder: Path) -> bool:
    """Whether the folder holds a TF1 checkpoint, whole or not."""
    return holds_checkpoint(folder)


def read_folder(folder: Path) -> Checkpoint:
    """Reads a folder for which `is_folder` holds.

    Args:
        folder: holds `*_config.json` and a TF1 checkpoint.

    Returns:
        The checkpoint. A variable that no rule knows stays in under "encoder/" and its own name:
        whoever loads an encoder lists it as unexpected.

    Raises:
        ValueError: a file is missing, damaged or not understood.
    """
    prefix = find_checkpoint(folder)
    tensors = read_tensors(prefix, lambda name: not _SLOTS.search(name))
    architecture = _architecture(tensors, prefix)
    content, source = _read_config_file(folder, architecture, tensors)
    config = _read_config(architecture, content, source)
    table, other = architecture.rules(config, tensors)
    own = {name: array for name, array in tensors.items() if not name.startswith(other)}
    arrays, rest = read_arrays(table, own)
    if "encoder/pooler/kernel" not in arrays:
        config = config.replace(pooler_activation=None)
    task = infer_task(arrays, architecture.sentence_objective)
    labels = None
    if task is not None and task["kind"] == "classify":  # whose names no file holds
        labels = default_labels(len(arrays["classifier/dense/bias"]))
    return Checkpoint(
        config=config,
        arrays={**arrays, **{f"encoder/{name}": array for name, array in rest.items()}},
        task=task,
        source=str(prefix),
        labels=labels,
        left=tuple(name for name in variable_names(prefix) if name not in own),
    )


def _architecture(names: Iterable[str], prefix: Path) -> _Architecture:
    for start, architecture in _STARTS.items():
        if any(name.startswith(start) for name in names):
            return architecture
    shown = ", ".join(sorted(names)[:3])
    raise ValueError(
        f"A Google checkpoint has variables below {', '.join(_STARTS)}, as the original TF1 code "
        f"of BERT, ALBERT and ELECTRA names them. Received: {prefix} with {shown}, …"
    )


def _read_config_file(
    folder: Path, architecture: _Architecture, tensors: Arrays
) -> tuple[dict[str, Any], str]:
    found = sorted(p.name for p in folder.glob("*_config.json") if p.name not in _OTHER_CONFIGS)
    if f"{architecture.name}_config.json" in found:
        found = [f"{architecture.name}_config.json"]
    if len(found) > 1:
        raise ValueError(
            f"A Google folder holds one config of the model. Received: {', '.join(found)} in "
            f"{folder}"
        )
    if not found:
        hint = ""
        if architecture is _ELECTRA and tensors.keys() >= _MEASURED:  # its releases bring none
            hint = f" By the shapes of the weights it is {json.dumps(_electra_content(tensors))}."
        raise ValueError(
            f"The sizes of a Google model lie in {architecture.name}_config.json next to its "
            f"checkpoint, which is missing: write it.{hint} Received: {folder}"
        )
    return read_json(folder / found[0]), str(folder / found[0])


def _read_config(
    architecture: _Architecture, content: Mapping[str, Any], source: str
) -> EncoderConfig:
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
    config = make_config(EncoderConfig, values, source)
    layers, groups = config.num_layers, config.num_blocks
    if architecture.group_of is not None:
        group_of = architecture.group_of
        check_groups(layers, groups, lambda i: group_of(i, layers, groups), "Google", source)
    return config


def _electra_content(tensors: Arrays) -> dict[str, int]:
    """A config as the shapes tell it; ELECTRA's code has heads of width 64 (training_utils.py)."""
    positions, segments, words, inner = (tensors[name] for name in sorted(_MEASURED))
    layers = {name.split("/")[2] for name in tensors if name.startswith("electra/encoder/layer_")}
    return {
        "vocab_size": len(words),
        "embedding_size": words.shape[1],
        "hidden_size": len(inner),
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(1, len(inner) // 64),
        "intermediate_size": inner.shape[1],
        "max_position_embeddings": len(positions),
        "type_vocab_size": len(segments),
    }
