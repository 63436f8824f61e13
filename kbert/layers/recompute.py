"""Recomputation (activation checkpointing): only a layer's inputs are saved for the gradient.

The rest is computed again in the backward pass (Chen et al. 2016, "Training Deep Nets with
Sublinear Memory Cost", https://arxiv.org/abs/1604.06174). A layer runs as a pure function of
tensors: its inputs and the values of its variables, including the counters of dropout. So both runs
draw the same dropout masks, and the counters advance only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras

from kbert.core.contexts import recomputed_layers
from kbert.core.types import Tensor
from kbert.layers.slots import choosing_as_now

# From tensors to the outputs of a layer (nested tensors) and the new values of its variables.
_Function: TypeAlias = Callable[..., tuple[Any, list[Tensor]]]


def run_layer(
    layer: keras.layers.Layer,
    *inputs: Tensor | None,
    training: bool = False,
    select: Callable[[Any], Any] = lambda outputs: outputs,
    **options: Any,
) -> Any:
    """Runs a layer; in training within `recomputation`, only its inputs are saved.

    `kbert.core.contexts.recomputation` is a context; the backward pass then runs the layer again.
    The layer must read nothing but its inputs and its own variables, and must return tensors.

    Args:
        layer: a built layer.
        *inputs: tensors, or None.
        training: whether dropout is active.
        select: function from all outputs to the ones that are used. Otherwise the unused outputs
            would take part in the gradient, as zeros of their full size.
        **options: further arguments of the layer; tensors among them are inputs too.

    Returns:
        The selected outputs of the layer; all outputs without `select`.

    Raises:
        NotImplementedError: in `recomputation` on a backend other than TensorFlow and JAX.

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
        remaining = iter(tensors)
        flat = [
            next(remaining) if held else x for x, held in zip(arguments, is_tensor, strict=True)
        ]
        again, keywords = keras.tree.pack_sequence_as((inputs, options), flat)
        with choosing(), keras.StatelessScope(zip(variables, values, strict=True)) as scope:
            before = [scope.get_current_value(v) for v in variables]
            outputs = layer(*again, training=training, **keywords)
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
    """Returns the variables' values without the cast of surrounding layers in half precision.

    The casts then happen in the recomputed part, and no cast copy of the weights is saved.
    """
    return _AsStored()(read=lambda: [v.value for v in variables])


def note_recomputed(names: Iterable[str]) -> None:
    """Adds names of layers that are always recomputed to the list that `recomputation` yields.

    Does nothing outside of that context.
    """
    run = recomputed_layers()
    if run is not None:
        run.extend(names)


class _AsStored(keras.layers.Layer):
    """Calls a function without autocast."""

    def __init__(self) -> None:
        super().__init__(autocast=False, name="as_stored")
        self.built = True

    def call(self, read: Callable[[], list[Tensor]]) -> list[Tensor]:
        return read()


def _engine() -> Callable[[_Function, list[Tensor], list[Tensor]], tuple[Any, list[Tensor]]]:
    """Returns the function that recomputes a layer on the present backend.

    Backends other than TensorFlow and JAX raise NotImplementedError.
    """
    engines = {"tensorflow": _on_tensorflow, "jax": _on_jax}
    backend = keras.backend.backend()
    if backend not in engines:
        raise NotImplementedError(
            "Recomputing layers requires KERAS_BACKEND=tensorflow or jax, as training does. "
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
    """Calls `function(values, tensors)`, and calls it again to compute its gradient.

    `tf.recompute_grad` would also differentiate by integers and copy each weight.
    """
    import tensorflow as tf

    number = len(values)
    new: list[Tensor] = []
    packed: list[Any] = []  # the outputs of the layer, with their structure

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
            gradients = iter(tape.gradient(outputs, floats, output_gradients=list(upstream)))
            return [next(gradients) if x.dtype.is_floating else None for x in again]

        return flat(kept), gradient

    # Convert to tensors now: the backward pass would read the later value of a variable.
    outputs = iter(call(*map(tf.convert_to_tensor, values), *tensors))
    leaves = [None if x is None else next(outputs) for x in keras.tree.flatten(packed[0])]
    return keras.tree.pack_sequence_as(packed[0], leaves), list(new)


def after(upstream: Sequence[Any], kept: Sequence[Any], weights: int) -> list[Any]:
    """Returns the saved tensors `kept`, delayed until the gradient `upstream` is computed.

    Otherwise all layers would be recomputed at once. A control dependency delays TensorFlow's
    executor. It also keeps the graph optimiser from merging the operations with equal ones of the
    forward pass. XLA ignores control dependencies; there a summand has both effects, which is 0
    unless the gradient is NaN. The first `weights` tensors get no summand: nothing large is
    computed from weights alone.
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
