"""Recomputation (activation checkpointing): of a layer only its inputs are kept for the gradient.

The rest is computed again in the backward part (Chen et al. 2016, "Training Deep Nets with
Sublinear Memory Cost", https://arxiv.org/abs/1604.06174). A layer runs as a function of tensors
alone: its inputs and the values of its variables, the counters of dropout among them. So both times
it draws the same masks, and the counters move once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras

from kbert.core.contexts import recomputed_layers
from kbert.core.types import Tensor
from kbert.layers.slots import choosing_as_now

# Of tensors: what the layer gives, tensors in a tuple or alone, and new values of its variables.
_Function: TypeAlias = Callable[..., tuple[Any, list[Tensor]]]


def run_layer(
    layer: keras.layers.Layer,
    *inputs: Tensor | None,
    training: bool = False,
    select: Callable[[Any], Any] = lambda outputs: outputs,
    **options: Any,
) -> Any:
    """What the layer gives; in `recomputation` and in training it keeps its inputs alone.

    All that the layer reads must be its inputs and its own variables, and what it gives tensors.

    Args:
        layer: built.
        *inputs: tensors, or None.
        training: whether dropout is active.
        select: of what the layer gives, what is read. The gradient of the rest, zeros as large as
            it is, would be computed with.
        **options: what else the layer takes; tensors among them are inputs too.

    Returns:
        What is selected of what the layer gives; all of it without `select`.

    Raises:
        NotImplementedError: in `recomputation` on another backend than TensorFlow and JAX.

    Example:
        >>> from keras import ops
        >>> from kbert.layers import Dropout
        >>> run_layer(Dropout(0.1), ops.ones((2, 3))).shape[-1]
        3
    """
    run = recomputed_layers()
    if run is None or not training:
        return select(layer(*inputs, training=training, **options))
    run.append(layer.name)
    arguments = keras.tree.flatten((inputs, options))
    is_tensor = [keras.ops.is_tensor(x) for x in arguments]
    variables = layer.variables
    moved: list[keras.Variable] = []
    choosing = choosing_as_now()

    def function(values: list[Tensor], tensors: list[Tensor]) -> tuple[Any, list[Tensor]]:
        rest = iter(tensors)
        flat = [next(rest) if held else x for x, held in zip(arguments, is_tensor, strict=True)]
        again, named = keras.tree.pack_sequence_as((inputs, options), flat)
        with choosing(), keras.StatelessScope(zip(variables, values, strict=True)) as scope:
            before = [scope.get_current_value(v) for v in variables]
            outputs = layer(*again, training=training, **named)
        after = [scope.get_current_value(v) for v in variables]
        changed = [i for i, value in enumerate(after) if value is not before[i]]
        moved[:] = [variables[i] for i in changed]
        return select(outputs), [after[i] for i in changed]

    values = as_stored(variables)
    tensors = [x for x, held in zip(arguments, is_tensor, strict=True) if held]
    outputs, new = _engine()(function, values, tensors)
    for variable, value in zip(moved, new, strict=True):
        variable.assign(value)
    return outputs


def as_stored(variables: Sequence[keras.Variable]) -> list[Tensor]:
    """Reads variables without a cast: in half precision the layers around would have it done.

    The casts are made inside of what is computed again, and no copy of the weights is kept.
    """
    return _AsStored()(read=lambda: [v.value for v in variables])


def note_recomputed(names: Iterable[str]) -> None:
    """Adds to the list of `recomputation` layers that are computed again in any case."""
    run = recomputed_layers()
    if run is not None:
        run.extend(names)


class _AsStored(keras.layers.Layer):
    """Reads what it is told to under no policy."""

    def __init__(self) -> None:
        super().__init__(autocast=False, name="as_stored")
        self.built = True

    def call(self, read: Callable[[], list[Tensor]]) -> list[Tensor]:
        return read()


def _engine() -> Callable[[_Function, list[Tensor], list[Tensor]], tuple[Any, list[Tensor]]]:
    engines = {"tensorflow": _on_tensorflow, "jax": _on_jax}
    backend = keras.backend.backend()
    if backend not in engines:
        raise NotImplementedError(
            "Layers are recomputed with KERAS_BACKEND=tensorflow or jax, as training runs. "
            f"Received: KERAS_BACKEND={backend}"
        )
    return engines[backend]


def _on_jax(
    function: _Function, values: list[Tensor], tensors: list[Tensor]
) -> tuple[Any, list[Tensor]]:
    import jax

    return jax.checkpoint(function)(values, tensors)


def _on_tensorflow(
    function: _Function, values: list[Tensor], tensors: list[Tensor]
) -> tuple[Any, list[Tensor]]:
    """As `tf.recompute_grad`, which differentiates by integers too, and copies each weight."""
    import tensorflow as tf

    number = len(values)
    new: list[Tensor] = []
    packed: list[Any] = []  # what the layer gives, with its structure

    def flat(kept: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        outputs, new[:] = function(list(kept[:number]), list(kept[number:]))
        packed[:] = [outputs]
        return [x for x in keras.tree.flatten(outputs) if x is not None]

    @tf.custom_gradient
    def call(*kept: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor | None]:
            upstream = tuple(map(tf.convert_to_tensor, upstream))
            again = after(upstream, kept, weights=number)
            floats = [x for x in again if x.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(floats)
                outputs = flat(again)
            found = iter(tape.gradient(outputs, floats, output_gradients=list(upstream)))
            return [next(found) if x.dtype.is_floating else None for x in again]

        return flat(kept), gradient

    # As they are now; a variable would be read by the backward part as it is then.
    outputs = iter(call(*map(tf.convert_to_tensor, values), *tensors))
    leaves = [None if x is None else next(outputs) for x in keras.tree.flatten(packed[0])]
    return keras.tree.pack_sequence_as(packed[0], leaves), list(new)


def after(upstream: Sequence[Any], kept: Sequence[Any], weights: int) -> list[Any]:
    """The tensors, to be had once there is a gradient: else all would be computed at once.

    A control dependency holds TensorFlow's executor, and its optimiser from merging operations that
    are equal to those of the forward part. XLA knows none: there a summand does both, which is 0
    unless the gradient is NaN. The weights, the first of the tensors, go without: of them alone
    nothing large is made.
    """
    import tensorflow as tf

    some = tf.cast(tf.reshape(upstream[0], [-1])[:1], tf.float32)
    zero = tf.cast(tf.reduce_any(tf.math.is_nan(some)), tf.int32)

    def delayed(i: int, x: tf.Tensor) -> tf.Tensor:
        if x.dtype == tf.bool or (i < weights and x.dtype.is_floating):
            return tf.identity(x)
        return x + tf.cast(zero, x.dtype)

    with tf.control_dependencies(upstream):
        return [delayed(i, x) for i, x in enumerate(kept)]
