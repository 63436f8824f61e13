"""Reads object-based checkpoints of TensorFlow 2 by the names of the variables.

The keys of such a checkpoint are paths through the objects of the program that wrote it. They
differ between classes (`encoder/layer_with_weights-4/_attention_layer/…`, `variables/7/…`). The
checkpoint also stores a graph of the objects with the names of the variables, which are used
instead of the keys.
"""

import re
from collections import Counter

import numpy as np

from kbert.checkpoints.google.bundle import read_tensors
from kbert.io.paths import Path

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OF_OPTIMIZERS = re.compile(r"(^|/)(optimizer|\.OPTIMIZER_SLOT)/")

_NO_WEIGHTS = "iubO"  # integers, flags, strings; bfloat16 has none of NumPy's kinds


def read_named_variables(prefix: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]] | None:
    """Reads the floating-point variables of a model by their original names.

    Args:
        prefix: path of the checkpoint without `.index`.

    Returns:
        Name -> array, and the keys that are left out: optimizer slots, counters and flags. None for
        a TensorFlow 1 checkpoint, whose keys are the names.

    Raises:
        ValueError: the checkpoint is damaged, a variable has no name, or two have the same name.
    """
    stored = read_tensors(prefix, lambda key: key == _GRAPH)
    if not stored:
        return None
    names = _names(stored[_GRAPH], prefix)
    tensors = read_tensors(prefix, lambda key: key != _GRAPH and not _OF_OPTIMIZERS.search(key))
    floats = {key: array for key, array in tensors.items() if array.dtype.kind not in _NO_WEIGHTS}
    if nameless := [key for key in floats if key not in names]:
        raise ValueError(
            "The graph of objects in a checkpoint must name each of its variables. "
            f"Received: {', '.join(sorted(nameless)[:3])} without a name in {prefix}"
        )
    counts = Counter(names[key] for key in floats)
    if duplicate_keys := sorted(key for key in floats if counts[names[key]] > 1):
        raise ValueError(
            "A checkpoint must contain one model, so the names of its variables must be unique. "
            f"Received: {' and '.join(duplicate_keys[:2])}, both {names[duplicate_keys[0]]}, in "
            f"{prefix}"
        )
    skipped_keys = tuple(sorted(key for key in names if key not in floats))
    return {names[key]: array for key, array in floats.items()}, skipped_keys


def _names(graph: np.ndarray, prefix: Path) -> dict[str, str]:
    """Returns key of the checkpoint -> name of the variable, for all variables with a name.

    Args:
        graph: serialised graph of objects, an array of one bytes object.
        prefix: path of the checkpoint, for the error message if the graph is damaged.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    try:
        nodes = TrackableObjectGraph.FromString(bytes(graph[()])).nodes
    except (DecodeError, TypeError) as error:
        raise ValueError(
            f"The graph of objects in the checkpoint is damaged. Received: {prefix}"
        ) from error
    values = [value for node in nodes for value in node.attributes]
    return {value.checkpoint_key: value.full_name for value in values if value.full_name}
