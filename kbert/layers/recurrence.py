"""The recurrence of an LSTM, with or without a projection, with a custom gradient.

What does not depend on the previous step is computed for all steps at once: the input's half of the
gates before the loop, the gradients of all weights after the backward loop. If each step were
differentiated separately, each would add a product as large as the kernel to a sum of that size.

Shapes: `B` rows, `T` steps, `I` width of the input, `U` units, `P` width of the projection.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.layers.scan import scan, stack


def projected_lstm(
    inputs: Tensor,
    kernel: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    cell: Tensor,
    hidden: Tensor,
    *,
    mask: Tensor = None,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    forget_bias: float = 1.0,
) -> tuple[Any, Any, Any]:
    """Runs one LSTM over all steps.

    The cell is TensorFlow 1's `LSTMCell` with `num_proj` (Sak et al. 2014,
    https://arxiv.org/abs/1402.1128, without peepholes). The gates are in the order input,
    candidate, forget, output; `forget_bias` is added to the forget gate. The cell is clipped before
    the output gate is applied, the projected output afterwards.

    Args:
        inputs: (T, B, I); its dtype is also the dtype of the products.
        kernel: (I + P, 4U), rows of the input first.
        bias: (4U,).
        projection: (U, P); None = no projection, so P is U.
        cell: (B, U) float32, cell state before the first step.
        hidden: (B, P) float32, hidden state before the first step.
        mask: (T, B, 1) bool; where it is False the state stays the same. None = all True.
        cell_clip: bound of the absolute cell entries; None = no bound.
        projection_clip: bound of the absolute output entries; None = no bound.
        forget_bias: number added to the forget gate before its sigmoid.

    Returns:
        The hidden state after each step (T, B, P), the last cell (B, U) and the last hidden state
        (B, P), all float32.

    Example:
        >>> states, cell, hidden = projected_lstm(
        ...     ops.ones((5, 1, 3)), ops.ones((5, 16)), ops.ones((16,)), ops.ones((4, 2)),
        ...     ops.zeros((1, 4)), ops.zeros((1, 2)), projection_clip=0.5)
        >>> tuple(states.shape), float(hidden[0, 0])
        ((5, 1, 2), 0.5)
    """
    run = _Recurrence(mask, cell_clip, projection_clip, forget_bias)
    if keras.backend.backend() == "torch":
        # PyTorch's autograd: Keras' custom gradient on PyTorch allows one output only.
        return run(inputs, kernel, bias, cell, hidden, projection)[0]
    projections = [] if projection is None else [projection]
    return ops.custom_gradient(run.with_gradient)(inputs, kernel, bias, cell, hidden, *projections)


class _Recurrence:
    """Forward and backward pass of `projected_lstm` for one mask, and its options."""

    def __init__(
        self,
        mask: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
        forget_bias: float,
    ) -> None:
        self.masks = [] if mask is None else [mask]
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.forget_bias = forget_bias

    def __call__(
        self,
        inputs: Tensor,
        kernel: Tensor,
        bias: Tensor,
        cell: Tensor,
        hidden: Tensor,
        projection: Tensor | None = None,
    ) -> Any:
        """Returns the three results of `projected_lstm`, and a list of sequences for `backward`.

        The sequences are outputs of `scan`: gates, states and clipping flags of each step.
        """
        steps, rows, width = ops.shape(inputs)
        units, projected = _widths(bias, projection)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        added = ops.convert_to_tensor([0.0, 0.0, self.forget_bias, 0.0], dtype)
        forget_bias = ops.repeat(added, units)
        gates = ops.matmul(ops.reshape(inputs, (-1, width)), kernel[:width])  # (TB, I) @ (I, 4U)
        gates = ops.reshape(ops.add(gates, bias + forget_bias), (steps, rows, 4 * units))
        recurrent = kernel[width:]  # (P, 4U)

        def step(carry: tuple, elements: tuple) -> Any:
            cell, hidden = carry
            gates, *mask = elements
            gates = _wide(gates) + _wide(ops.matmul(ops.cast(hidden, dtype), recurrent))
            i, j, f, o = ops.split(gates, 4, axis=-1)
            i, j, f, o = ops.sigmoid(i), ops.tanh(j), ops.sigmoid(f), ops.sigmoid(o)
            unclipped = f * cell + i * j
            new_cell = _clip(unclipped, self.cell_clip)
            cell_inside = ops.equal(unclipped, new_cell)
            squashed = ops.tanh(new_cell)
            output = ops.cast(o * squashed, dtype)
            unclipped = _wide(output)
            if projection is not None:
                unclipped = _wide(ops.matmul(output, projection))  # (B, U) @ (U, P)
            new_hidden = _clip(unclipped, self.projection_clip)
            hidden_inside = ops.equal(unclipped, new_hidden)
            if mask:
                new_cell = ops.where(mask[0], new_cell, cell)
                new_hidden = ops.where(mask[0], new_hidden, hidden)
            saved = [ops.cast(x, dtype) for x in (i, j, f, o, squashed)]
            saved += [output, cell, cell_inside, hidden_inside]
            return (new_cell, new_hidden), (new_hidden, *saved)

        outputs = [(projected, "float32"), *[(units, dtype)] * 6, (units, "float32")]
        outputs += [(units, "bool"), (projected, "bool")]
        (cell, hidden), (states, *saved) = scan(step, (cell, hidden), [gates, *self.masks], outputs)
        return (stack(states), cell, hidden), saved

    def with_gradient(
        self,
        inputs: Tensor,
        kernel: Tensor,
        bias: Tensor,
        cell: Tensor,
        hidden: Tensor,
        projection: Tensor | None = None,
    ) -> Any:
        (states, last_cell, last_hidden), saved = self(
            inputs, kernel, bias, cell, hidden, projection
        )

        def gradient(*upstream: Tensor) -> Any:
            return self.backward(inputs, kernel, bias, projection, hidden, states, saved, upstream)

        return (states, last_cell, last_hidden), gradient

    def backward(
        self,
        inputs: Tensor,
        kernel: Tensor,
        bias: Tensor,
        projection: Tensor | None,
        hidden: Tensor,
        states: Tensor,
        saved: Tensor,
        upstream: Tensor,
    ) -> Any:
        """Returns the gradients of the tensor arguments of `with_gradient`.

        `hidden` (B, P) is the state before the first step, `states` (T, B, P) are those after each;
        `saved` comes from the forward pass. `upstream` has the gradients of the three results.
        """
        if len(upstream) == 1:  # JAX passes one tuple
            (upstream,) = upstream
        steps, rows, width = ops.shape(inputs)
        units, projected = _widths(bias, projection)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        recurrent = kernel[width:]

        def step(carry: tuple, elements: tuple) -> Any:
            d_cell, d_hidden = carry
            d_state, i, j, f, o, squashed, cell, cell_inside, hidden_inside, *mask = elements
            i, j, f, o, squashed = (_wide(x) for x in (i, j, f, o, squashed))
            d_hidden = d_hidden + d_state
            kept_cell, kept_hidden = 0.0, 0.0
            if mask:
                kept_cell = ops.where(mask[0], 0.0, d_cell)
                kept_hidden = ops.where(mask[0], 0.0, d_hidden)
                d_cell = ops.where(mask[0], d_cell, 0.0)
                d_hidden = ops.where(mask[0], d_hidden, 0.0)
            d_projected = ops.cast(ops.where(hidden_inside, d_hidden, 0.0), dtype)
            d_output = _wide(d_projected)
            if projection is not None:
                d_output = _wide(_matmul(d_projected, projection, transpose_b=True))  # (B, U)
            d_cell = d_cell + _tanh_gradient(squashed, d_output * o)
            d_cell = ops.where(cell_inside, d_cell, 0.0)
            d_gates = ops.concatenate(
                [
                    _sigmoid_gradient(i, d_cell * j),
                    _tanh_gradient(j, d_cell * i),
                    _sigmoid_gradient(f, d_cell * cell),
                    _sigmoid_gradient(o, d_output * squashed),
                ],
                axis=-1,
            )
            d_gates = ops.cast(d_gates, dtype)
            d_hidden = _wide(_matmul(d_gates, recurrent, transpose_b=True))  # (B, P)
            carry = d_cell * f + kept_cell, d_hidden + kept_hidden
            return carry, (d_gates, d_projected)

        d_states, d_cell, d_hidden = upstream
        *gates, output, cell, cell_inside, hidden_inside = saved
        carry, (d_gates, d_projected) = scan(
            step,
            (d_cell, d_hidden),
            [d_states, *gates, cell, cell_inside, hidden_inside, *self.masks],
            [(4 * units, dtype), (projected, dtype)],
            reverse=True,
        )
        d_gates = ops.reshape(stack(d_gates), (-1, 4 * units))
        previous_hidden = ops.cast(ops.concatenate([hidden[None], states], axis=0)[:-1], dtype)
        step_inputs = ops.reshape(
            ops.concatenate([inputs, previous_hidden], axis=-1), (-1, width + projected)
        )
        d_inputs = _matmul(d_gates, kernel[:width], transpose_b=True)  # (TB, 4U) @ (4U, I)
        gradients = (
            ops.reshape(d_inputs, (steps, rows, width)),
            _matmul(step_inputs, d_gates, transpose_a=True),  # (I + P, TB) @ (TB, 4U)
            ops.sum(d_gates, axis=0),
            *carry,
        )
        if projection is None:
            return gradients
        d_projected = ops.reshape(stack(d_projected), (-1, projected))
        output = ops.reshape(stack(output), (-1, units))
        return *gradients, _matmul(output, d_projected, transpose_a=True)  # (U, TB) @ (TB, P)


def _widths(bias: Tensor, projection: Tensor | None) -> tuple[int, int]:
    """Returns the units U and the width P of the hidden state."""
    units = bias.shape[0] // 4
    return units, units if projection is None else projection.shape[1]


def _wide(x: Tensor) -> Tensor:
    return ops.cast(x, "float32")


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else ops.clip(x, -bound, bound)


# TensorFlow has a kernel for each of the three, where formulas would read and write the memory
# several times; the other backends fuse the formulas.


def _sigmoid_gradient(y: Tensor, gradient: Tensor) -> Tensor:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.raw_ops.SigmoidGrad(y=y, dy=gradient)
    return gradient * y * (1.0 - y)


def _tanh_gradient(y: Tensor, gradient: Tensor) -> Tensor:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.raw_ops.TanhGrad(y=y, dy=gradient)
    return gradient * (1.0 - y * y)


def _matmul(a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return ops.matmul(a.T if transpose_a else a, b.T if transpose_b else b)
