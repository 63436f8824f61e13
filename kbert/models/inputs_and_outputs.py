"""What goes into a model's call, checked by name, and what comes out, as shapes."""

from collections.abc import Collection, Mapping
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.layers.ids import check_ids, whole_numbers

# Hugging Face's names of inputs -> ours.
_ELSEWHERE = {
    "input_ids": "token_ids",
    "attention_mask": "padding_mask",
    "token_type_ids": "segment_ids",
}
# Inputs with a value for each token.
_OF_TOKENS = ("padding_mask", "segment_ids")


def named_inputs(
    inputs: Any,
    main: str,
    optional: tuple[str, ...],
    model: str,
) -> dict[str, Any]:
    """The inputs of a call by their names, which are checked.

    Args:
        inputs: token ids, or a dict.
        main: the name of the token ids.
        optional: the other names.
        model: for messages.

    Raises:
        ValueError: a name is unknown or missing, token ids are not of two dimensions, or another
            input has not their shape.
    """
    if not isinstance(inputs, dict):
        inputs = {main: inputs}
    known = (main, *optional)
    if main not in inputs or not set(inputs) <= set(known):
        theirs = [f"`{x}` is `{_ELSEWHERE[x]}` here" for x in inputs if x in _ELSEWHERE]
        hint = f" ({', '.join(theirs)})" if theirs else ""
        raise ValueError(
            f"{model} takes `{main}` and optionally {' and '.join(f'`{x}`' for x in optional)}"
            f"{hint}. Received: {', '.join(inputs)}"
        )
    check_rank(main, inputs[main])
    shape = tuple(inputs[main].shape)
    for name in _OF_TOKENS:
        if inputs.get(name) is not None and not _agree(tuple(inputs[name].shape), shape):
            raise ValueError(
                f"`{name}` must have the shape of `{main}`, {shape}. "
                f"Received: shape {tuple(inputs[name].shape)}"
            )
    return dict(inputs)


def _agree(one: tuple, other: tuple) -> bool:
    """Whether two shapes may be equal, where sizes that are not known are None."""
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def as_integers(
    inputs: Mapping[str, Any], rows: Mapping[str, int], dtype: str, vectors: Collection[str]
) -> dict[str, Any]:
    """Ids and masks by name as integers, and vectors as Keras would cast them.

    Args:
        inputs: by name.
        rows: name -> rows of the table that its ids are of.
        dtype: type of the vectors.
        vectors: names of inputs that are no integers.

    Raises:
        ValueError: ids outside of their table, where their values are known.
    """
    for name in rows.keys() & inputs.keys():
        check_ids(name, inputs[name], rows[name])
    return {
        name: ops.cast(x, dtype) if name in vectors else whole_numbers(x, name)
        for name, x in inputs.items()
    }


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
