"""Names for types that annotations share."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import keras  # only for checkers: it imports pyplot, and metrics and pictures need no Keras

# A tensor of Keras' backend (a KerasTensor while a model is traced), or anything that `keras.ops`
# converts to one. The three backends have no common type, so checkers see Any.
Tensor: TypeAlias = Any
# Name -> tensor, batch-first: inputs or outputs of a model.
Tensors: TypeAlias = Mapping[str, Tensor]
# Name -> array: the weights of a model.
Arrays: TypeAlias = Mapping[str, np.ndarray]
# A loss or a metric over some rows: weighted sum and sum of weights, float32 scalars.
Pair: TypeAlias = tuple[Tensor, Tensor]
# Losses and metrics of a batch, by name.
Terms: TypeAlias = tuple[dict[str, Pair], dict[str, Pair]]
# In `type | MaybeNone`: may be None, but never where it is used, which a checker cannot see
# (typeshed's convention; a plain `| None` would require a check before every use).
MaybeNone: TypeAlias = Any
# The logs that Keras passes to callbacks: name -> value.
Logs: TypeAlias = Mapping[str, Any] | MaybeNone
# Sizes of axes; None for a size that only the data decides.
Shape: TypeAlias = tuple[int | MaybeNone, ...]
# What Keras accepts as the `dtype` of a layer.
DType: TypeAlias = "str | keras.DTypePolicy | None"
PathLike: TypeAlias = str | os.PathLike[str]
# A sequence of values, such as labels or scores: a list or an array.
Values: TypeAlias = Sequence[Any] | np.ndarray
