"""Reads SavedModels of TF Hub (BERT, ALBERT and ELECTRA) as weights, without running them.

`variables/` is a checkpoint, with the names of the Model Garden's code (TensorFlow 2 format) or of
the original code (TensorFlow 1 format). The sizes are inferred from its shapes. Two values are
inferred from the program in `saved_model.pb`, read as data: the form of GELU from its operations,
and the number of ALBERT's layers from how often attention is computed. A `*_config.json` in the
folder, as in Google's releases, is used instead of all this.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from absl import logging

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.google.bundle import find_checkpoint, holds_checkpoint
from kbert.checkpoints.google.checkpoint import (
    Variables,
    find_config,
    make_checkpoint,
    measure,
    read_config,
    read_variables,
)
from kbert.io.json_file import read_json
from kbert.io.paths import Path

GRAPH_FILE = "saved_model.pb"
_VARIABLES = "variables"
READS = f"a SavedModel of TF Hub ({GRAPH_FILE} + {_VARIABLES}/)"
# Scope of a layer in the original ALBERT code (modeling.py, transformer_model).
_LAYER = re.compile(r"/layer_(\d+)/inner_group_0/")


def is_folder(folder: Path) -> bool:
    """Whether the folder is a SavedModel with variables."""
    variables = folder / _VARIABLES
    return (folder / GRAPH_FILE).is_file() and variables.is_dir() and holds_checkpoint(variables)


def read_folder(folder: Path) -> Checkpoint:
    """Reads a SavedModel, a folder for which `is_folder` is true.

    Args:
        folder: folder with `saved_model.pb` and `variables/`; `*_config.json` is optional.

    Returns:
        The checkpoint.

    Raises:
        ValueError: a file is damaged, or of another model.
    """
    variables = read_variables(find_checkpoint(folder / _VARIABLES))
    path = find_config(folder, variables.architecture)
    if path is not None:
        config = read_config(variables.architecture, read_json(path), str(path))
        return make_checkpoint(variables, config)
    graph = _read_graph(folder / GRAPH_FILE)
    content = _content(variables, graph, folder)
    config = read_config(variables.architecture, content, str(folder))
    operations = {node.op for node in _all_nodes(graph)}
    if operations & {"Erf", "Erfc"}:
        config = config.replace(activation="gelu")
    elif "Relu" in operations:
        config = config.replace(activation="relu")
    else:
        config = config.replace(activation="gelu_tanh")
    return make_checkpoint(variables, config)


def _content(variables: Variables, graph: Any, folder: Path) -> dict[str, int]:
    """Infers the content of Google's config, key -> value, from the variables and the graph.

    Raises ValueError if a size cannot be inferred; `folder` is for the message.
    """
    beside = f"{variables.architecture.name}_config.json, as Google's releases have one"
    content = measure(variables)
    if content is None:
        raise ValueError(
            "The sizes of a model in a SavedModel must follow from its tables and first matrix, "
            f"one of which is missing or of another rank. Received: {folder}"
        )
    if variables.is_albert:
        content["num_hidden_layers"] = _depth(graph)
        if not content["num_hidden_layers"]:
            raise ValueError(
                "This SavedModel does not show how many layers share the weights of its ALBERT: "
                f"write it to {beside}. Received: {folder}, where the rest is "
                f"{json.dumps(content)}"
            )
    if not variables.is_named_by_garden:
        if content["hidden_size"] % 64:
            raise ValueError(
                "The width of a model in a SavedModel in TensorFlow 1 format must be a multiple "
                f"of 64, as it has width / 64 heads, unless their number is in {beside}. "
                f"Received: {content['hidden_size']} in {folder}"
            )
        logging.info(
            "%s: assuming %d heads, the width / 64 as in all published models; %s can set another "
            "number",
            folder,
            content["num_attention_heads"],
            beside,
        )
    return content


def _read_graph(path: Path) -> Any:
    """Reads the TensorFlow graph in a `saved_model.pb`; raises ValueError if it is damaged."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    try:
        return SavedModel.FromString(path.read_bytes()).meta_graphs[0].graph_def
    except (DecodeError, IndexError) as error:
        raise ValueError(f"The SavedModel is damaged ({error}). Received: {path}") from error


def _all_nodes(graph: Any) -> Iterable[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _depth(graph: Any) -> int:
    """Returns how many attention layers a graph runs, shared ones counted each time; 0 = unknown.

    TensorFlow 1 has all nodes in one graph, named by their layers. In TensorFlow 2 each layer
    computes one softmax, in functions that call each other.
    """
    layers = {match[1] for match in (_LAYER.search(node.name) for node in graph.node) if match}
    if layers:
        return len(layers)
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    known: dict[str, int] = {}

    def count(nodes: Iterable[Any]) -> int:
        return sum(1 if node.op == "Softmax" else sum(map(of, _called(node))) for node in nodes)

    def of(name: str) -> int:
        if name not in known:
            known[name] = 0  # a function that calls itself is not a layer
            known[name] = count(functions.get(name, ()))
        return known[name]

    try:
        return max(map(of, functions), default=0)
    except RecursionError:
        return 0


def _called(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.func.name]
