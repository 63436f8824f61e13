"""Names for types that annotations share."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import keras

# A tensor of the backend that Keras runs on (a KerasTensor while a model is traced), or what
# `keras.ops` makes one of. The three backends have no type in common, so checkers see Any.
Tensor: TypeAlias = Any
# Name -> tensor, batch-first: what a model reads or gives.
Tensors: TypeAlias = Mapping[str, Tensor]
# Sizes of axes; None is one that is not known before the data.
Shape: TypeAlias = tuple[int | None, ...]
# What Keras takes as the `dtype` of a layer.
DType: TypeAlias = str | keras.DTypePolicy | None
PathLike: TypeAlias = str | os.PathLike[str]
