"""What goes into a model's call, checked by name, and what comes out, as shapes."""

from typing import Any

import keras
from keras import ops

from kbert.types import Tensor


def named_inputs(inputs: Any, main: str, optional: tuple[str, ...], model: str) -> dict[str, Any]:
    """The inputs of a call by their names, checked; masks of booleans as integers.

    Args:
        inputs: token ids, or a dict.
        main: the name of the token ids.
        optional: the other names.
        model: for messages.

    Raises:
        ValueError: a name is unknown or missing, or token ids are not of two dimensions.
    """
    if not isinstance(inputs, dict):
        inputs = {main: inputs}
    known = (main, *optional)
    if main not in inputs or not set(inputs) <= set(known):
        raise ValueError(
            f"{model} takes `{main}` and optionally {' and '.join(f'`{x}`' for x in optional)}. "
            f"Received: {', '.join(inputs)}"
        )
    check_rank(main, inputs[main])
    return {name: _as_integers(x) for name, x in inputs.items()}


def _as_integers(x: Any) -> Any:
    """A mask of booleans as one of integers, which TensorFlow compares with 0; others as they are.

    Example:
        >>> ops.convert_to_numpy(_as_integers(ops.array([True, False]))).tolist()
        [1, 0]
    """
    dtype = getattr(x, "dtype", None)
    is_mask = dtype is not None and keras.backend.standardize_dtype(dtype) == "bool"
    return ops.cast(x, "int32") if is_mask else x


def check_rank(name: str, ids: Tensor) -> None:
    """Raises unless token ids are (batch, tokens)."""
    if len(ids.shape) != 2:
        raise ValueError(
            f"`{name}` must be of shape (batch, tokens). Received: shape {tuple(ids.shape)}"
        )


def output_spec(shapes: Any, dtype: str) -> Any:
    """A structure of shapes as one of symbolic tensors.

    For `compute_output_spec`, which is written out: PyTorch and JAX cannot trace a length that is
    not known yet.
    """
    return keras.tree.map_shape_structure(
        lambda shape: keras.KerasTensor(shape, dtype=dtype), shapes
    )
