"""Losses over all rows of the global batch, in the memory of one micro-batch (gradient caching).

1. All embeddings are computed, micro-batch by micro-batch, without gradients.
2. The loss of all embeddings and its gradient with respect to each embedding are computed.
3. The step recomputes the embeddings of each micro-batch, with the same dropout, and backpropagates
   the cached gradients.

(Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup",
https://arxiv.org/abs/2101.06983.)

Shapes: B rows of a replica, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor, Tensors

LOSS, GRADIENT = "cached_loss", "cached_gradient_"  # features that are added to a batch


def vectors_by_parts(
    model: keras.Model, parts: Tensors, count: int, forward: Callable[[Tensors], Tensors]
) -> dict[str, Any]:
    """Returns a model's training outputs for the rows of all micro-batches, without gradients.

    The model's variables, including the counters of dropout, do not change.

    Args:
        model: the model.
        parts: features (B / M, M, …).
        count: number of micro-batches, M.
        forward: function from features (B / M, …) to outputs (B / M, …).

    Returns:
        Outputs (B, …), in the order of the rows.
    """
    # Only these variables may change between micro-batches: seeds, moving ranges.
    moving = [v for v in model.variables if not v.trainable]
    values = [(v, v.value) for v in model.variables if v.trainable]
    names: list[str] = []

    def run(state: list[Tensor], features: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        with keras.StatelessScope([*values, *zip(moving, state, strict=True)]) as scope:
            outputs = forward(features)
        names[:] = outputs
        state = [scope.get_current_value(v) for v in moving]
        return state, [ops.stop_gradient(x) for x in outputs.values()]

    state = [ops.convert_to_tensor(v.value) for v in moving]
    loop = _jax_loop if keras.backend.backend() == "jax" else _tensorflow_loop
    stacked = loop(run, state, parts, count)  # (M, B / M, …) each
    swapped = [ops.swapaxes(x, 0, 1) for x in stacked]
    rows = [ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in swapped]
    return dict(zip(names, rows, strict=True))


def _tensorflow_loop(run: Callable, state: list[Any], parts: Tensors, count: int) -> list[Any]:
    """Returns the outputs of `run`, (M, B / M, …) each, for micro-batches one after the other.

    `run` maps (state, features) to (state, outputs); `state` is the first state, `parts` are the
    features (B / M, M, …), and `count` is M.
    """
    import tensorflow as tf

    first_part = {name: x[:, 0] for name, x in parts.items()}
    if count == 1:
        return [x[None] for x in run(state, first_part)[1]]
    state, first_outputs = run(state, first_part)
    arrays = [
        tf.TensorArray(x.dtype, count, element_shape=x.shape).write(0, x) for x in first_outputs
    ]

    def body(i: tf.Tensor, state: list[Any], arrays: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        state, outputs = run(state, {name: x[:, i] for name, x in parts.items()})
        return i + 1, state, [a.write(i, x) for a, x in zip(arrays, outputs, strict=True)]

    _, _, arrays = tf.while_loop(
        lambda i, *_: i < count, body, [1, state, arrays], parallel_iterations=1
    )
    return [array.stack() for array in arrays]


def _jax_loop(run: Callable, state: list[Any], parts: Tensors, count: int) -> list[Any]:
    import jax

    sequences = {name: ops.swapaxes(x, 0, 1) for name, x in parts.items()}
    return jax.lax.scan(run, state, sequences)[1]


def gradients(function: Callable[[Tensors], Tensor], tensors: Tensors) -> dict[str, Any]:
    """Returns the gradients of a scalar function with respect to each input tensor.

    TensorFlow and JAX only.
    """
    if keras.backend.backend() == "jax":
        import jax

        return dict(jax.grad(function)(dict(tensors)))
    import tensorflow as tf

    tensors = dict(tensors)
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total = function(tensors)
    return tape.gradient(total, tensors, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def cached_numerator(outputs: Mapping[str, Any], batch: Tensors, weights: Tensor) -> Tensor:
    """Returns the sum of a micro-batch's weighted losses, whose gradient is the cached one.

    Args:
        outputs: embeddings (b, …).
        batch: batch with `LOSS` (b,), and `GRADIENT` (b, …) for each of the outputs.
        weights: (b,), weights of the rows.
    """
    products = [ops.sum(x * batch[GRADIENT + name]) for name, x in outputs.items()]
    inner_product = sum(products)
    return ops.sum(batch[LOSS] * weights) + inner_product - ops.stop_gradient(inner_product)
