"""Quantization-aware training: a model that is trained with the rounding of an int8 runtime.

task = kbert.edit.quantization.quantization_aware(task)
task.fit(texts, labels)
task.export("int8", format="onnx", precision="int8")
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.core.types import Arrays
from kbert.edit.pruning.rebuilding import with_edit, without_edit
from kbert.edit.rounding import Rounding
from kbert.io.arrays import check_finite, to_8_bits

_RANGE = "/fake_quantization/range"
_TABLE = "encoder/embeddings/token"  # a decoder's table is not rounded: it computes logits too


def quantization_aware(model: Any) -> Any:
    """Returns a copy of a model or task with the edit "rounding" (`kbert.edit.Rounding`).

    Inputs and kernels of the dense layers in the blocks, and the token embeddings of an encoder,
    are rounded to 8 bits, in training and in inference. Gradients ignore the rounding. A model
    trained this way loses less in `export(precision="int8")`, which leaves the rounding to the
    runtime. It is saved, loaded and resumed like any other model, and adapters may be trained on
    it.

    Args:
        model: a `kbert.Encoder` of any family, a `kbert.Decoder`, or a task on one; it is not
            changed.

    Returns:
        A new encoder, decoder or task, not compiled. Inputs are rounded only after training, which
        measures their ranges.

    Raises:
        TypeError: the model is none of these.
        ValueError: it is rounded already, has adapters, or has blocks that no config describes; or
            its class does not support edits.

    Example:
        >>> import kbert
        >>> encoder = quantization_aware(kbert.Encoder(kbert.family("bert-tiny")))
        >>> dict(encoder.config.edits[0])
        {'kind': 'rounding'}
        >>> rounded(encoder).config.edits
        ()
    """
    return with_edit(model, Rounding.kind, _with_ranges)


def rounded(model: Any) -> Any:
    """Returns a copy without the edit "rounding", with the rounded weights stored as such.

    Runtimes can then store these weights in 8 bits without loss. Inputs of the products are no
    longer rounded. The copy is an ordinary model, and can be saved and exported in any format.

    Args:
        model: result of `quantization_aware`, or a preset of it; it is not changed.

    Returns:
        A new encoder, decoder or task, not compiled.

    Raises:
        TypeError: the model is no encoder, decoder or task on one.
        ValueError: it has no such edit, or NaN or infinity in its weights.
    """
    return without_edit(model, Rounding.kind, "quantization_aware", _rounded)


def _with_ranges(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    """Returns the arrays plus a range of 0 for each dense layer; a `Cut`, see `rebuilding`."""
    ranges = {name: np.zeros(shapes[name], "float32") for name in shapes if name.endswith(_RANGE)}
    return {**arrays, **ranges}


def _rounded(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    """Returns the arrays of the model without the edit, rounded to 8 bits; a `Cut`.

    The kernels that have a range in `arrays` are rounded, and an encoder's token table.

    Args:
        arrays: name -> array of the model with the edit.
        shapes: name -> shape in the model without it.

    Raises:
        ValueError: an array has NaN or infinity.
    """
    check_finite(arrays, "the model that is rounded")  # integers cannot represent NaN
    rounded_arrays: dict[str, np.ndarray] = {}
    for name in shapes:
        array, is_table = arrays[name], name == _TABLE
        if is_table or name.removesuffix("/kernel") + _RANGE in arrays:
            codes, scale = to_8_bits(array, axis=-1 if is_table else 0)
            array = codes * scale
        rounded_arrays[name] = array
    return rounded_arrays
