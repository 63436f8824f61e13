"""Layers whose inputs are computed from their outputs, so that training keeps neither.

With two streams, y1 = x1 + f(x2) and y2 = x2 + g(y1), the backward part finds x2 = y2 - g(y1) and
x1 = y1 - f(x2), layer by layer from the last one, and computes f and g again for their gradients.
(Gomez et al. 2017, "The Reversible Residual Network", https://arxiv.org/abs/1707.04585; Kitaev et
al. 2020, section 3.) Whatever the depth it keeps the outputs of the last layer, and of each layer
the counters of its dropout and the buckets of its tokens, which rounding must not change.

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

# Of one part of a block: its variables' values, and what lay in buckets where.
_Record: TypeAlias = tuple[list[Tensor], Tensor | None]


def is_reversible() -> bool:
    """Whether this backend runs them so: those do that train."""
    return keras.backend.backend() in ("tensorflow", "jax")


def run_reversible(
    blocks: Sequence[Any], first: Tensor, second: Tensor, context: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Runs layers in training, and keeps nothing of them but what the last one gives.

    All that a block reads must be its inputs and its own variables.

    Args:
        blocks: each with `attend(x, training, buckets, **context) -> (y, buckets)` and `feed(x,
            training) -> y`, built.
        first: (B, T, H) float32, to which `attend` of the second is added.
        second: (B, T, H) float32, to which `feed` of the first is added.
        context: tensors that `attend` takes besides, integers.

    Returns:
        Both streams, behind the last block.
    """
    note_recomputed(block.name for block in blocks)
    values = [as_stored(block.variables) for block in blocks]
    engine = {"tensorflow": _on_tensorflow, "jax": _on_jax}[keras.backend.backend()]
    first, second, new = engine(blocks, values, first, second, dict(context))
    for block, before, now in zip(blocks, values, new, strict=True):
        for variable, old, value in zip(block.variables, before, now, strict=True):
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
    """What a part of a block adds, the buckets, and new values of the variables.

    It is the attention where there is a context, else the feed-forward part.
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
    """Both streams, the new values, and of each block what its parts are computed again with."""
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
    """Gradients of all values, None where there is none, and of both streams before the blocks.

    Args:
        blocks: as they ran.
        records: of `_forward`.
        streams: behind the last block.
        upstream: their gradients.
        context: as of `_forward`.
        pull: `(block, values, x, context, buckets, upstream) -> (y, gradient of x, of values)`.
    """
    (first, second), (of_first, of_second) = streams, upstream
    found = []
    for block, (attended, forwarded) in zip(reversed(blocks), reversed(records), strict=True):
        values, _ = forwarded
        y, gradient, of_forward = pull(block, values, first, None, None, of_second)
        second, of_first = second - y, of_first + gradient
        values, buckets = attended
        y, gradient, of_attention = pull(block, values, second, context, buckets, of_first)
        first, of_second = first - y, of_second + gradient
        found.append([_sum(*pair) for pair in zip(of_forward, of_attention, strict=True)])
    return found[::-1], of_first, of_second


def _on_tensorflow(
    blocks: Sequence[Any],
    values: list[list[Tensor]],
    first: Tensor,
    second: Tensor,
    context: dict[str, Tensor],
) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    import tensorflow as tf

    sizes = [len(x) for x in values]
    new: list[list[Tensor]] = []

    def pull(
        block: Any, values: list, x: Tensor, context: Any, buckets: Any, upstream: Tensor
    ) -> tuple[Tensor, Tensor, list]:
        # Not before the gradient is there: else all layers would be computed at once.
        *values, x = after([upstream], [*values, x], weights=len(values))
        floats = [value for value in values if _is_float(value)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*floats, x])
            y, _, _ = _call(block, values, x, context, buckets)
        of_x, *gradients = tape.gradient(y, [x, *floats], output_gradients=upstream)
        rest = iter(gradients)
        return y, of_x, [next(rest) if _is_float(value) else None for value in values]

    @tf.custom_gradient
    def call(first: tf.Tensor, second: tf.Tensor, *flat: tf.Tensor) -> Any:
        y1, y2, new[:], records = _forward(blocks, _split(flat, sizes), first, second, context)

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor | None]:
            pair = tuple(map(tf.convert_to_tensor, upstream))
            found, *of_streams = _backward(blocks, records, (y1, y2), pair, context, pull)
            return [*of_streams, *(x for of_block in found for x in of_block)]

        return (y1, y2), gradient

    # As they are now; a variable would be read by the backward part as it is then.
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
    import jax

    def pull(
        block: Any, values: list, x: Tensor, context: Any, buckets: Any, upstream: Tensor
    ) -> tuple[Tensor, Tensor, list]:
        def function(floats: list, x: Tensor) -> Tensor:
            rest = iter(floats)
            whole = [next(rest) if _is_float(value) else value for value in values]
            return _call(block, whole, x, context, buckets)[0]

        floats = [value for value in values if _is_float(value)]
        y, vjp = jax.vjp(function, floats, x)
        gradients, of_x = vjp(upstream)
        rest = iter(gradients)
        return y, of_x, [next(rest) if _is_float(value) else None for value in values]

    @jax.custom_vjp
    def call(values: list, first: Tensor, second: Tensor, context: dict) -> Any:
        return _forward(blocks, values, first, second, context)[:3]

    def forward(values: list, first: Tensor, second: Tensor, context: dict) -> Any:
        y1, y2, new, records = _forward(blocks, values, first, second, context)
        return (y1, y2, new), (values, y1, y2, context, records)

    def backward(kept: Any, upstream: Any) -> Any:
        values, y1, y2, context, records = kept
        found, *of_streams = _backward(blocks, records, (y1, y2), upstream[:2], context, pull)
        of_values = [
            [_gradient(x, value) for x, value in zip(*of_block, strict=True)]
            for of_block in zip(found, values, strict=True)
        ]
        return of_values, *of_streams, {name: _gradient(None, x) for name, x in context.items()}

    def _gradient(gradient: Any, value: Any) -> Any:
        """With zeros where there is none, which JAX has a type of its own for of integers."""
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
    rest = iter(flat)
    return [[next(rest) for _ in range(size)] for size in sizes]
