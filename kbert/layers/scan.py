"""A loop over time with a tuple as carry, whose outputs a second loop can read.

`keras.ops.scan` fails on TensorFlow if the carry is a tuple (Keras 3.15.1). It also stacks its
outputs: a copy of everything that the backward pass of a recurrence reads again step by step. Here
the outputs stay `tf.TensorArray`s on TensorFlow until `stack` converts them.

Shapes: `T` steps, `...` the leading axes of the carry, `N` width of an output.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor


def scan(
    step: Callable,
    carry: tuple,
    sequences: Sequence[Any],
    outputs: Sequence[tuple[int, str]],
    *,
    reverse: bool = False,
) -> tuple[tuple, list]:
    """Calls `step` once for each index of the first axis.

    Args:
        step: `(carry, list of one element of each sequence) -> (carry, outputs)`, two tuples.
        carry: carry of the first call, tensors (..., any width).
        sequences: tensors (T, ...) or outputs of an earlier scan. The first must be a tensor, which
            determines T.
        outputs: width and dtype of each output (..., N).
        reverse: whether to start with the last element. Outputs keep the order of the sequences.

    Returns:
        The last carry, and the outputs of all steps as a list of sequences (see `stack`).

    Example:
        >>> import numpy as np
        >>> def add(carry, elements):
        ...     total = carry[0] + elements[0]
        ...     return (total,), (total,)
        >>> x = np.ones((3, 2, 1), "float32")
        >>> _, (sums,) = scan(add, (np.zeros((2, 1), "float32"),), [x], [(1, "float32")])
        >>> ops.convert_to_numpy(stack(sums))[:, 0, 0].tolist()
        [1.0, 2.0, 3.0]
    """
    if keras.backend.backend() == "tensorflow":
        return _tensorflow_scan(step, carry, tuple(sequences), outputs, reverse)
    carry, collected = ops.scan(step, carry, tuple(sequences), reverse=reverse)
    return carry, list(collected)


def stack(sequence: Tensor) -> Any:
    """Converts an output of `scan` to one tensor (T, ..., N)."""
    return sequence.stack() if hasattr(sequence, "stack") else sequence


def _tensorflow_scan(
    step: Callable, carry: tuple, sequences: tuple, outputs: Sequence[Any], reverse: bool
) -> Any:
    """Like `scan`, as a TensorFlow loop; outputs are returned as TensorArrays."""
    import tensorflow as tf

    carry = tuple(tf.convert_to_tensor(x) for x in carry)
    sequences = tuple(
        x if isinstance(x, tf.TensorArray) else tf.convert_to_tensor(x) for x in sequences
    )
    length = sequences[0].shape[0]
    if length is None:
        length = tf.shape(sequences[0])[0]
    leading = carry[0].shape[:-1]
    collected = tuple(
        tf.TensorArray(
            dtype, length, clear_after_read=False, element_shape=leading.concatenate(width)
        )
        for width, dtype in outputs
    )

    def body(count: Tensor, carry: tuple, collected: tuple) -> Any:
        index = length - 1 - count if reverse else count
        # Indexing the first axis is a view: nothing is copied.
        elements = [x.read(index) if isinstance(x, tf.TensorArray) else x[index] for x in sequences]
        carry, new = step(carry, elements)
        collected = tuple(x.write(index, y) for x, y in zip(collected, new, strict=True))
        return count + 1, carry, collected

    _, carry, collected = tf.while_loop(
        lambda count, *_: count < length, body, (0, carry, collected)
    )
    return carry, list(collected)
