"""Names for types that annotations share."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import keras  # here alone: it brings pyplot, and metrics and pictures do without Keras

# A tensor of the backend that Keras runs on (a KerasTensor while a model is traced), or what
# `keras.ops` makes one of. The three backends have no type in common, so checkers see Any.
Tensor: TypeAlias = Any
# Name -> tensor, batch-first: what a model reads or gives.
Tensors: TypeAlias = Mapping[str, Tensor]
# Name -> array: the weights of a model.
Arrays: TypeAlias = Mapping[str, np.ndarray]
# A loss or a metric of some rows: weighted sum and sum of weights, float32 scalars.
Pair: TypeAlias = tuple[Tensor, Tensor]
# Losses and metrics of a batch, by name.
Terms: TypeAlias = tuple[dict[str, Pair], dict[str, Pair]]
# In `type | MaybeNone`: may be None, but not where it is used, which a checker cannot know
# (typeshed's own way; a plain `| None` would ask for a check before every use).
MaybeNone: TypeAlias = Any
# What Keras hands to callbacks: name -> value.
Logs: TypeAlias = Mapping[str, Any] | MaybeNone
# Sizes of axes; None is one that is not known before the data.
Shape: TypeAlias = tuple[int | MaybeNone, ...]
# What Keras takes as the `dtype` of a layer.
DType: TypeAlias = "str | keras.DTypePolicy | None"
PathLike: TypeAlias = str | os.PathLike[str]
# Values one after the other, such as labels or scores: a list or an array.
Values: TypeAlias = Sequence[Any] | np.ndarray
