"""Fine-tuning for 8 bits: an encoder that computes in training as a runtime in int8 will.

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
_TABLE = "encoder/embeddings/token"  # a decoder's makes logits too, and stays as it is


def quantization_aware(model: Any) -> Any:
    """The same model, or task, with the edit "rounding" (`kbert.edit.Rounding`).

    In training and in answers its dense layers and an encoder's token vectors are rounded to 8
    bits, with gradients as if they were not. Trained so, a model loses less in
    `export(precision="int8")`, which leaves the rounding to the runtime. It is saved, loaded and
    resumed like any other, and adapters may be trained on it.

    Args:
        model: a `kbert.Encoder` of any family, a `kbert.Decoder`, or a task on one; it stays as it
            is.

    Returns:
        A new one, not compiled. Its ranges are not known before it has been trained.

    Raises:
        TypeError: the model is neither.
        ValueError: it is rounded already, has adapters, or blocks that no config names; or its
            class takes no edits.

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
    """The model without the edit, and with what was rounded as 8 bits hold it.

    What runtimes store in 8 bits loses nothing then; inputs of the products are no longer rounded.
    Its formats are those of any model.

    Args:
        model: what `quantization_aware` gave, or a preset of it; it stays as it is.

    Returns:
        A new encoder or task, not compiled.

    Raises:
        TypeError: the model is neither an encoder nor a task on one.
        ValueError: it has no such edit, or NaN or infinity in its weights.
    """
    return without_edit(model, Rounding.kind, "quantization_aware", _rounded)


def _with_ranges(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    new = {name: np.zeros(shapes[name], "float32") for name in shapes if name.endswith(_RANGE)}
    return {**arrays, **new}


def _rounded(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    check_finite(arrays, "the model that is rounded")  # no whole number is NaN
    found: dict[str, np.ndarray] = {}
    for name in shapes:
        x, is_table = arrays[name], name == _TABLE
        if is_table or name.removesuffix("/kernel") + _RANGE in arrays:
            codes, scale = to_8_bits(x, axis=-1 if is_table else 0)
            x = codes * scale
        found[name] = x
    return found
