"""Weights of a Keras model under names that last, out and in."""

import re
from collections.abc import Mapping

import keras
import numpy as np

from kbert.checkpoints import check_arrays


def named_weights(model: keras.layers.Layer, prefix: str) -> dict[str, keras.Variable]:
    """The weights by their place below `model`, whatever the model itself is called.

    Args:
        model: an encoder or a head.
        prefix: what the names begin with, e.g. "encoder".

    Returns:
        name -> variable, e.g. "encoder/layers/0/attention/qkv/kernel".
    """
    return {f"{prefix}/{_place(weight, model)}": weight for weight in model.weights}


def get_arrays(model: keras.layers.Layer, prefix: str) -> dict[str, np.ndarray]:
    """The weights' values, by the names of `named_weights`."""
    return {
        name: keras.ops.convert_to_numpy(weight.value)
        for name, weight in named_weights(model, prefix).items()
    }


def set_arrays(
    model: keras.layers.Layer, prefix: str, arrays: Mapping[str, np.ndarray], source: str
) -> None:
    """Sets all weights, or none.

    Args:
        model: an encoder or a head.
        prefix: what the names begin with.
        arrays: name -> array: all the weights and nothing else.
        source: where the arrays are from, for the message.

    Raises:
        ValueError: names or shapes differ; all differences are listed and nothing is changed.
    """
    weights = named_weights(model, prefix)
    check_arrays({name: tuple(w.shape) for name, w in weights.items()}, arrays, source)
    for name, weight in weights.items():
        weight.assign(arrays[name])


def _place(weight, model):
    place = weight.path.removeprefix(f"{model.path}/")
    return re.sub(r"^layers_(\d+)/", r"layers/\1/", place)
