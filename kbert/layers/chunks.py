"""Functions of many rows, computed one chunk of rows after the other.

Attention scores are far larger than what they are computed from. Here only those of one chunk exist
at a time: in the forward pass, and in the backward pass, which computes them again (Rabe and Staats
2021, "Self-attention Does Not Need O(n^2) Memory", https://arxiv.org/abs/2112.05682).

Shapes: T rows of width W, in chunks of C rows; `...` any leading axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from kbert.core.types import Tensor


class RowFunction(NamedTuple):
    """A function of rows. JAX needs `forward` alone, TensorFlow also its gradient and sizes.

    Gradients flow to `rows` and `shared`. Other tensors that the functions read, such as masks and
    seeds, are constants. The functions must not read variables.

    Attributes:
        forward: `(start, rows, shared) -> (output, saved)`: the index of the chunk's first row, the
            chunks (..., C, W) of the rows, and the tensors that every row reads. The results
            (..., C, W) are the output, and what `backward` reads again.
        backward: `(start, rows, shared, output, saved, upstream) -> (gradients of rows, gradients
            of shared)`, both lists.
        output: width and dtype of the output.
        saved: width and dtype of what is saved.
    """

    forward: Callable[[Any, list[Any], list[Any]], tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]] = None  # type: ignore[assignment]
    output: tuple[int, str] = (0, "")
    saved: tuple[int, str] = (0, "")


def map_chunks(
    function: RowFunction, rows: Sequence[Tensor], shared: Sequence[Tensor], *, size: int
) -> Tensor:
    """Returns a function's outputs for all rows, computed for at most `size` rows at a time.

    Args:
        function: the function and its gradient. After the last row it may get rows of zeros, whose
            outputs are dropped.
        rows: tensors (..., T, W).
        shared: tensors of which every chunk gets all.
        size: maximum number of rows in a chunk.

    Returns:
        The outputs (..., T, W).

    Raises:
        NotImplementedError: the backend is neither TensorFlow nor JAX.

    Example:
        >>> square = RowFunction(
        ...     lambda start, rows, shared: (rows[0] * rows[0], rows[0]),
        ...     lambda start, rows, shared, output, saved, upstream: ([2 * saved * upstream], []),
        ...     output=(1, "float32"), saved=(1, "float32"))
        >>> x = ops.reshape(ops.arange(5, dtype="float32"), (5, 1))
        >>> ops.convert_to_numpy(map_chunks(square, [x], [], size=2))[:, 0].tolist()
        [0.0, 1.0, 4.0, 9.0, 16.0]
    """
    length = ops.shape(rows[0])[-2]
    number = (length + size - 1) // size
    if isinstance(length, int):
        size = -(-length // number)  # chunks of equal size
    missing = number * size - length
    if not isinstance(missing, int) or missing:
        none = [(0, 0)] * (len(rows[0].shape) - 2)
        rows = [ops.pad(x, [*none, (0, missing), (0, 0)]) for x in rows]
    outputs = _engine()(function, list(rows), list(shared), size, number)
    return outputs[..., :length, :]


def _engine() -> Callable[[RowFunction, list, list, int, Any], Any]:
    """Returns the function that maps on the present backend."""
    engines = {"tensorflow": _on_tensorflow, "jax": _on_jax}
    backend = keras.backend.backend()
    if backend not in engines:
        raise NotImplementedError(
            "Chunks of rows require KERAS_BACKEND=tensorflow or jax, as training does. "
            f"Received: KERAS_BACKEND={backend}"
        )
    return engines[backend]


def _on_tensorflow(function: RowFunction, rows: list, shared: list, size: int, number: Any) -> Any:
    """Maps in a loop; the backward pass is a second one. `rows` have `number * size` rows."""
    import tensorflow as tf

    def cut(x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        leading = [0] * (len(x.shape) - 2)
        chunk = tf.slice(x, [*leading, i * size, 0], [*(-1 for _ in leading), size, -1])
        return tf.ensure_shape(chunk, [*x.shape[:-2], size, x.shape[-1]])

    def array(width: int, dtype: Any) -> tf.TensorArray:
        shape = [*rows[0].shape[:-2], size, width]
        return tf.TensorArray(dtype, number, element_shape=shape)

    def joined(chunks: tf.TensorArray) -> tf.Tensor:
        x = chunks.stack()  # (M, ..., C, W)
        rank = len(x.shape)
        x = tf.transpose(x, [*range(1, rank - 2), 0, rank - 2, rank - 1])
        return tf.reshape(x, [*ops.shape(x)[:-3], number * size, x.shape[-1]])

    def loop(body: Callable, *carry: Any) -> Any:
        # One chunk after the other: two at once would need twice the memory.
        return tf.while_loop(
            lambda i, *_: i < number, body, (tf.constant(0), *carry), parallel_iterations=1
        )[1:]

    @tf.custom_gradient
    def call(*tensors: tf.Tensor) -> Any:
        whole, others = list(tensors[: len(rows)]), list(tensors[len(rows) :])

        def forward(i: tf.Tensor, outputs: tf.TensorArray, saved: tf.TensorArray) -> Any:
            output, kept = function.forward(i * size, [cut(x, i) for x in whole], others)
            return i + 1, outputs.write(i, output), saved.write(i, kept)

        outputs, saved = map(joined, loop(forward, array(*function.output), array(*function.saved)))

        def gradient(upstream: tf.Tensor) -> list[tf.Tensor]:
            def backward(i: tf.Tensor, arrays: tuple, sums: tuple) -> Any:
                results = (cut(x, i) for x in (outputs, saved, upstream))
                chunks = [cut(x, i) for x in whole]
                of_rows, of_shared = function.backward(i * size, chunks, others, *results)
                arrays = tuple(a.write(i, x) for a, x in zip(arrays, of_rows, strict=True))
                wide = (tf.cast(x, tf.float32) for x in of_shared)
                return i + 1, arrays, tuple(x + y for x, y in zip(sums, wide, strict=True))

            arrays = tuple(array(x.shape[-1], x.dtype) for x in whole)
            sums = tuple(tf.zeros_like(x, tf.float32) for x in others)
            arrays, sums = loop(backward, arrays, sums)
            of_shared = [tf.cast(x, y.dtype) for x, y in zip(sums, others, strict=True)]
            return [*map(joined, arrays), *of_shared]

        return outputs, gradient

    return call(*map(tf.convert_to_tensor, [*rows, *shared]))


def _on_jax(function: RowFunction, rows: list, shared: list, size: int, number: int) -> Any:
    """Maps in a loop that saves its inputs; see `_on_tensorflow`."""
    import jax

    def cut(x: Any) -> Any:  # (M, ..., C, W)
        return ops.moveaxis(ops.reshape(x, (*x.shape[:-2], number, size, x.shape[-1])), -3, 0)

    chunk = jax.checkpoint(lambda start, rows: function.forward(start, rows, shared)[0])
    starts = ops.arange(number, dtype="int32") * size
    outputs = jax.lax.map(lambda inputs: chunk(*inputs), (starts, [cut(x) for x in rows]))
    outputs = ops.moveaxis(outputs, 0, -3)  # (..., M, C, W)
    return ops.reshape(outputs, (*outputs.shape[:-3], number * size, outputs.shape[-1]))
