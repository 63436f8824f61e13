"""Checks of the inputs of a model's call, and symbolic outputs."""

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


def by_name(inputs: Any, main: str) -> dict[str, Any]:
    """Returns the inputs of a call as a dict; ids alone are the input `main`.

    Args:
        inputs: ids, or a dict name -> input.
        main: name of the ids.

    Raises:
        ValueError: the inputs are a list, or an input is ragged.
    """
    if isinstance(inputs, list | tuple):
        raise ValueError(
            f"Several inputs must be passed by name, as {{{main!r}: ids, 'padding_mask': mask}}. "
            f"Received: a {type(inputs).__name__} of {len(inputs)}"
        )
    named = dict(inputs) if isinstance(inputs, Mapping) else {main: inputs}
    for name, x in named.items():
        if hasattr(x, "row_splits"):
            raise ValueError(
                f"`{name}` must have rows of equal length: tokenizer(texts, padding=True) returns "
                f"padded ids and their mask. Received: a {type(x).__name__}"
            )
    return named


def named_inputs(
    inputs: Any,
    main: str,
    optional: tuple[str, ...],
    model: str,
) -> dict[str, Any]:
    """Returns the inputs of a call by name, after a check of the names.

    Args:
        inputs: token ids, or a dict name -> input.
        main: name of the token ids.
        optional: names of the other inputs.
        model: name of the model in messages, such as "An encoder".

    Raises:
        ValueError: a name is unknown or missing, the inputs are a list or ragged, the token ids do
            not have two dimensions, or the shape of "padding_mask" or "segment_ids" differs from
            that of the token ids.
    """
    inputs = by_name(inputs, main)
    known_names = (main, *optional)
    if main not in inputs or not set(inputs) <= set(known_names):
        translations = [
            f"`{x}` is named `{_ELSEWHERE[x]}` in kbert" for x in inputs if x in _ELSEWHERE
        ]
        hint = f" ({', '.join(translations)})" if translations else ""
        raise ValueError(
            f"{model} has the inputs `{main}` and optionally "
            f"{' and '.join(f'`{x}`' for x in optional)}{hint}. Received: {', '.join(inputs)}"
        )
    check_shapes(inputs, main, _OF_TOKENS)
    return inputs


def check_shapes(inputs: Mapping[str, Any], main: str, others: Collection[str]) -> None:
    """Raises ValueError unless the token ids have two dimensions and other inputs their shape.

    Args:
        inputs: name -> input.
        main: name of the token ids.
        others: names of inputs with a value for each token; they may be missing or None.
    """
    check_rank(main, inputs[main])
    shape = tuple(inputs[main].shape)
    for name in others:
        if inputs.get(name) is not None and not _agree(tuple(inputs[name].shape), shape):
            raise ValueError(
                f"`{name}` must have the shape of `{main}`, {shape}. "
                f"Received: shape {tuple(inputs[name].shape)}"
            )


def _agree(one: tuple, other: tuple) -> bool:
    """Returns whether two shapes can be equal; None in a shape is an unknown size."""
    return len(one) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(one, other, strict=True)
    )


def as_integers(
    inputs: Mapping[str, Any], rows: Mapping[str, int], dtype: str, vectors: Collection[str]
) -> dict[str, Any]:
    """Casts ids and masks to integers, and floating-point inputs to `dtype`.

    Args:
        inputs: name -> input.
        rows: name of an input -> number of rows of the table that its ids index.
        dtype: type of the floating-point inputs.
        vectors: names of the floating-point inputs.

    Raises:
        ValueError: ids are outside of their table, or floats that are no whole numbers; values are
            checked only if they are known, so not in a graph.
    """
    for name in rows.keys() & inputs.keys():
        check_ids(name, inputs[name], rows[name])
    return {
        name: ops.cast(x, dtype) if name in vectors else whole_numbers(x, name)
        for name, x in inputs.items()
    }


def check_rank(name: str, ids: Tensor) -> None:
    """Raises ValueError unless the token ids, the input `name`, have the shape (batch, tokens)."""
    if len(ids.shape) != 2:
        raise ValueError(
            f"`{name}` must be of shape (batch, tokens). Received: shape {tuple(ids.shape)}"
        )


def output_spec(shapes: Any, dtype: str) -> Any:
    """Converts a nested structure of shapes to symbolic tensors, all of type `dtype`.

    For `compute_output_spec`, which kbert defines explicitly because PyTorch and JAX cannot trace
    an unknown length.
    """
    return keras.tree.map_shape_structure(
        lambda shape: keras.KerasTensor(shape, dtype=dtype), shapes
    )
