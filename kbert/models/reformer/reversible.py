"""Reversible layers: their inputs are computed from their outputs, so training saves neither.

With two streams, y1 = x1 + f(x2) and y2 = x2 + g(y1), the backward pass computes x2 = y2 - g(y1)
and x1 = y1 - f(x2), layer by layer from the last one. It computes f and g again for their
gradients. (Gomez et al. 2017, "The Reversible Residual Network", https://arxiv.org/abs/1707.04585;
Kitaev et al. 2020, section 3.) At any depth only the outputs of the last layer are saved. Each
layer also saves its dropout counters and the buckets of its tokens, which rounding must not change.

Shapes: `B` batch, `T` tokens, `H` width of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.layers.recompute import after, as_stored, note_recomputed

# Saved for one part of a block: values of the variables, and buckets of the tokens.
_Record: TypeAlias = tuple[list[Tensor], Tensor | None]


def is_reversible() -> bool:
    """Returns whether the Keras backend supports reversible layers: TensorFlow and JAX do."""
    return keras.backend.backend() in ("tensorflow", "jax")


def run_reversible(
    blocks: Sequence[Any], first: Tensor, second: Tensor, context: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs layers in training, and saves only the outputs of the last one.

    A block must read nothing but its inputs and its own variables.

    Args:
        blocks: built blocks with `attend(x, training, buckets, **context) -> (y, buckets)` and
            `feed(x, training) -> y`.
        first: (B, T, H) float32, the stream to which `attend` of the second is added.
        second: (B, T, H) float32, the stream to which `feed` of the first is added.
        context: integer tensors, further arguments of `attend`.

    Returns:
        Both streams after the last block.
    """
    note_recomputed(block.name for block in blocks)
    values = [as_stored(block.variables) for block in blocks]
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}[keras.backend.backend()]
    first, second, new = engine(blocks, values, first, second, dict(context))
    for block, old_values, new_values in zip(blocks, values, new, strict=True):
        for variable, old, value in zip(block.variables, old_values, new_values, strict=True):
            if value is not old and not _is_float(value):
                variable.assign(value)
    return first, second


def _call(
    block: Any,
    values: list[Tensor],
    x: Tensor,
    context: Mapping[str, Tensor] | None,
    buckets: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Runs one part of a block in training, without changing its variables.

    Args:
        block: the block.
        values: values to use for the block's variables.
        x: (B, T, H), the stream that the part reads.
        context: further arguments of `attend`; None runs `feed`, the feed-forward part.
        buckets: buckets that `attend` uses instead of hashing, or None.

    Returns:
        What is added to the other stream, the buckets, and the new values of the variables.
    """
    with keras.StatelessScope(zip(block.variables, values, strict=True)) as scope:
        if context is None:
            y = block.feed(x, training=True)
        else:
            y, buckets = block.attend(x, training=True, buckets=buckets, **context)
    return ops.cast(y, x.dtype), buckets, [scope.get_current_value(v) for v in block.variables]


def _forward(
    blocks: Sequence[Any],
    values: list[list[Tensor]],
    first: Tensor,
    second: Tensor,
    context: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor, list[list[Tensor]], list[tuple[_Record, _Record]]]:
    """Runs all blocks on both streams.

    `values` are the values of each block's variables, and `context` further arguments of `attend`.
    Returns both streams after the last block, the new values, and the records of each block's two
    parts that `_backward` needs.
    """
    new, records = [], []
    for block, start in zip(blocks, values, strict=True):
        y, buckets, between = _call(block, start, second, context)
        first = first + y
        y, _, end = _call(block, between, first, None)
        second = second + y
        new.append(end)
        records.append(((start, buckets), (between, None)))
    return first, second, new, records


def _backward(
    blocks: Sequence[Any],
    records: list[tuple[_Record, _Record]],
    streams: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor],
    context: Mapping[str, Tensor],
    pull: Callable[..., tuple[Tensor, Tensor, list]],
) -> tuple[list[list], Tensor, Tensor]:
    """Returns the gradients of all values (None for integers), and of both streams at the input.

    Args:
        blocks: blocks in the order in which they ran.
        records: saved records of `_forward`.
        streams: both streams after the last block.
        upstream: gradients of `streams`.
        context: integer tensors, further arguments of the blocks' `attend`.
        pull: function `(block, values, x, context, buckets, upstream) -> (y, gradient of x,
            gradients of values)` that differentiates `_call`.
    """
    (first, second), (of_first, of_second) = streams, upstream
    gradients = []
    for block, (attended, forwarded) in zip(reversed(blocks), reversed(records), strict=True):
        values, _ = forwarded
        y, gradient, of_forward = pull(block, values, first, None, None, of_second)
        second, of_first = second - y, of_first + gradient
        values, buckets = attended
        y, gradient, of_attention = pull(block, values, second, context, buckets, of_first)
        first, of_second = first - y, of_second + gradient
        gradients.append([_sum(*pair) for pair in zip(of_forward, of_attention, strict=True)])
    return gradients[::-1], of_first, of_second


def _on_tensorflow(
    blocks: Sequence[Any],
    values: list[list[Tensor]],
    first: Tensor,
    second: Tensor,
    context: dict[str, Tensor],
) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Runs all blocks with a custom gradient on TensorFlow; arguments like those of `_forward`.

    Returns both streams after the last block, and the new values of each block's variables.
    """
    import tensorflow as tf

    sizes = [len(x) for x in values]
    new: list[list[Tensor]] = []

    def pull(
        block: Any, values: list, x: Tensor, context: Any, buckets: Any, upstream: Tensor
    ) -> tuple[Tensor, Tensor, list]:
        # Waits for the upstream gradient: otherwise all layers would be computed at once.
        *values, x = after([upstream], [*values, x], weights=len(values))
        floats = [value for value in values if _is_float(value)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*floats, x])
            y, _, _ = _call(block, values, x, context, buckets)
        of_x, *gradients = tape.gradient(y, [x, *floats], output_gradients=upstream)
        remaining = iter(gradients)
        return y, of_x, [next(remaining) if _is_float(value) else None for value in values]

    @tf.custom_gradient
    def call(first: tf.Tensor, second: tf.Tensor, *flat: tf.Tensor) -> Any:
        y1, y2, new[:], records = _forward(blocks, _split(flat, sizes), first, second, context)

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor | None]:
            pair = tuple(map(tf.convert_to_tensor, upstream))
            block_gradients, *of_streams = _backward(blocks, records, (y1, y2), pair, context, pull)
            return [*of_streams, *(x for of_block in block_gradients for x in of_block)]

        return (y1, y2), gradient

    # Current values: the backward pass would read a variable's value at that time.
    flat = [tf.convert_to_tensor(x) for of_block in values for x in of_block]
    first, second = call(first, second, *flat)
    return first, second, list(new)


def _on_jax(
    blocks: Sequence[Any],
    values: list[list[Tensor]],
    first: Tensor,
    second: Tensor,
    context: dict[str, Tensor],
) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """Runs all blocks with a custom gradient on JAX; arguments like those of `_forward`.

    Returns both streams after the last block, and the new values of each block's variables.
    """
    import jax

    def pull(
        block: Any, values: list, x: Tensor, context: Any, buckets: Any, upstream: Tensor
    ) -> tuple[Tensor, Tensor, list]:
        def function(floats: list, x: Tensor) -> Tensor:
            remaining = iter(floats)
            merged = [next(remaining) if _is_float(value) else value for value in values]
            return _call(block, merged, x, context, buckets)[0]

        floats = [value for value in values if _is_float(value)]
        y, vjp = jax.vjp(function, floats, x)
        gradients, of_x = vjp(upstream)
        remaining = iter(gradients)
        return y, of_x, [next(remaining) if _is_float(value) else None for value in values]

    @jax.custom_vjp
    def call(values: list, first: Tensor, second: Tensor, context: dict) -> Any:
        return _forward(blocks, values, first, second, context)[:3]

    def forward(values: list, first: Tensor, second: Tensor, context: dict) -> Any:
        y1, y2, new, records = _forward(blocks, values, first, second, context)
        return (y1, y2, new), (values, y1, y2, context, records)

    def backward(kept: Any, upstream: Any) -> Any:
        values, y1, y2, context, records = kept
        block_gradients, *of_streams = _backward(
            blocks, records, (y1, y2), upstream[:2], context, pull
        )
        of_values = [
            [_gradient(x, value) for x, value in zip(*of_block, strict=True)]
            for of_block in zip(block_gradients, values, strict=True)
        ]
        return of_values, *of_streams, {name: _gradient(None, x) for name, x in context.items()}

    def _gradient(gradient: Any, value: Any) -> Any:
        """Returns zeros like `value` if the gradient is None, of JAX's type float0 for integers."""
        if gradient is not None:
            return gradient
        is_float = _is_float(value)
        return np.zeros(value.shape, value.dtype if is_float else jax.dtypes.float0)

    call.defvjp(forward, backward)
    return call(values, first, second, context)


def _is_float(x: Any) -> bool:
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _split(flat: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    remaining = iter(flat)
    return [[next(remaining) for _ in range(size)] for size in sizes]
