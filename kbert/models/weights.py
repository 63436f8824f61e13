"""Reads and sets the weights of a Keras model by names that do not change."""

import re
from collections.abc import Mapping
from typing import cast

import keras
import numpy as np
from absl import logging

from kbert.core.late import tf
from kbert.core.types import Arrays, Tensor
from kbert.io.arrays import Differences, check_arrays, release

_ALIGNMENT = 64  # bytes


def named_weights(model: keras.layers.Layer, prefix: str) -> dict[str, keras.Variable]:
    """Returns the weights by their paths below `model`, independent of the model's own name.

    Args:
        model: an encoder or a head.
        prefix: first part of the names, e.g. "encoder".

    Returns:
        name -> variable, e.g. "encoder/layers/0/attention/qkv/kernel".
    """
    return {f"{prefix}/{_place(weight, model)}": weight for weight in model.weights}


def get_arrays(model: keras.layers.Layer, prefix: str) -> dict[str, np.ndarray]:
    """Returns the weights' values by the names of `named_weights`.

    A table with a base (`Embeddings.add_base`) is the sum of both tables.
    """
    bases = _bases(model)
    return {
        name: _array(weight, bases.get(id(weight)))
        for name, weight in named_weights(model, prefix).items()
    }


def set_arrays(
    model: keras.layers.Layer,
    prefix: str,
    arrays: Arrays,
    source: str,
    strict: bool = True,
    *,
    consume: bool = False,
) -> Differences:
    """Sets all weights, or none.

    Args:
        model: an encoder or a head.
        prefix: first part of the names.
        arrays: name -> array, for all weights and nothing else.
        source: source of the arrays, for messages.
        strict: whether names must match exactly. False sets the weights that have an array, and
            logs the rest: weights without an array, which do not change, and unused arrays.
        consume: whether `arrays`, a dict, loses each array once it is set. Arrays that were joined
            from several of a file are not mapped, so this alone frees their memory.

    Returns:
        Missing and unused names; none if `strict`.

    Raises:
        ValueError: names or shapes differ, or an array has NaN, infinity or integers; all
            differences are listed and nothing is changed. Without `strict` names may differ, but
            not all of them.
    """
    weights = named_weights(model, prefix)
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    differences = check_arrays(shapes, arrays, source, strict)
    not_floats = [n for n in weights if n in arrays and arrays[n].dtype.kind not in "fV"]
    if not_floats:
        raise ValueError(
            "Weights must be floating-point numbers. Received: "
            f"{', '.join(f'{name} ({arrays[name].dtype})' for name in not_floats)} in {source}"
        )
    if differences:
        logging.warning(
            "%s: weights left unchanged: %s; arrays not used: %s",
            *(
                source,
                ", ".join(differences.missing) or "none",
                ", ".join(differences.unexpected) or "none",
            ),
        )
    bases = _bases(model)
    get = cast(dict[str, np.ndarray], arrays).pop if consume else arrays.__getitem__
    for name, weight in weights.items():
        if name in arrays:
            array, base = get(name), bases.get(id(weight))
            weight.assign(_copied(array if base is None else array - base))
            release(array)
    return differences


def _copied(array: np.ndarray) -> Tensor:
    """Returns a tensor with a copy of the array, which may be a part of a file.

    The copy has an address that TensorFlow and JAX can use: a multiple of 64 bytes. From any other
    address both would copy again, and `keras.ops.copy` compiles a program per shape on JAX.
    """
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    aligned = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    aligned[...] = array
    if keras.backend.backend() == "tensorflow" and array.size and array.dtype.kind == "f":
        return tf.experimental.dlpack.from_dlpack(aligned.__dlpack__())  # else it copies any array
    return keras.ops.convert_to_tensor(aligned)


def _array(weight: keras.Variable, base: np.ndarray | None) -> np.ndarray:
    array = keras.ops.convert_to_numpy(weight.value)
    return array if base is None else array + base


def _bases(model: keras.layers.Layer) -> dict[int, np.ndarray]:
    """Returns id(variable) -> base table that is added to it, see `Embeddings.add_base`."""
    return {
        id(getattr(layer, name)): keras.ops.convert_to_numpy(base.value)
        for layer in model._flatten_layers()
        for name, base in getattr(layer, "base_tables", dict)().items()
    }


def _place(weight: keras.Variable, model: keras.layers.Layer) -> str:
    path = weight.path.removeprefix(f"{model.path}/")
    return re.sub(r"^((?:encoder_|decoder_)?layers)_(\d+)/", r"\1/\2/", path)


def get_parts(parts: Mapping[str, keras.layers.Layer]) -> dict[str, np.ndarray]:
    """Returns the weights of several layers, as `set_parts` sets them."""
    part_arrays = (get_arrays(part, prefix) for prefix, part in parts.items())
    return {name: array for arrays in part_arrays for name, array in arrays.items()}


def set_parts(parts: Mapping[str, keras.layers.Layer], arrays: Arrays, source: str) -> None:
    """Sets all weights of several layers, or none.

    Args:
        parts: first part of the names -> layer.
        arrays: name -> array.
        source: source of the arrays, for messages.

    Raises:
        ValueError: names, shapes or values do not fit, as in a strict `set_arrays`.
    """
    old_arrays = {prefix: get_arrays(part, prefix) for prefix, part in parts.items()}
    try:
        for prefix, part in parts.items():
            part_arrays = {k: x for k, x in arrays.items() if k.startswith(f"{prefix}/")}
            set_arrays(part, prefix, part_arrays, source)
    except ValueError:
        for prefix, part in parts.items():
            set_arrays(part, prefix, old_arrays[prefix], source)
        raise
