"""Importance of heads and neurons for a task: the gradient of the loss with respect to a mask.

(Michel et al. 2019, "Are Sixteen Heads Really Better than One?", https://arxiv.org/abs/1905.10650,
section 4.1, equation 2; pruning.py of pmichel31415/are-16-heads-really-better-than-1.)

Shapes: `B` rows of a batch, `N` heads of a layer, `I` neurons of a layer, `U` heads or neurons, `D`
outputs of each head or neuron.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors
from kbert.edit.pruning.rebuilding import plain_encoder, sizes_of
from kbert.layers import Dense
from kbert.models import capturing
from kbert.tasks import EncoderTask, FineTuningTask

_NAME = "masked"


def head_importance(
    task: EncoderTask,
    data: Any,
    labels: Any = None,
    *,
    normalize: bool = True,
    batch_size: int = inference.BATCH_SIZE,
) -> list[np.ndarray]:
    """Returns how much the loss depends on each attention head.

    Each head's output is multiplied by a mask of 1; the importance is the mean over examples of
    |∂ loss / ∂ mask|. It takes one forward and backward pass without dropout. If a task has several
    losses (masked words and next sentences), they are added, each divided by its total weight over
    all examples. If an example has several rows, such as the windows of a long context, the mean is
    over rows.

    Args:
        task: task on a BERT-like `kbert.Encoder`.
        data: labelled examples in any form that `fit` of a fine-tuning task accepts; or, for any
            task, a finite `tf.data.Dataset` of batches that is the same in each iteration.
        labels: labels of the examples if `data` contains none.
        normalize: whether the values of each layer are divided by their L2 norm, so that values of
            different layers are comparable, as the authors do (after Molchanov et al. 2017).
        batch_size: rows per batch; the result does not depend on it.

    Returns:
        One array (N,) per block: a block is a layer, or the layers that share its weights.

    Raises:
        TypeError: `task` is not a task on an encoder.
        ValueError: the data have no rows, the encoder is not BERT-like or has adapters, or the
            backend is not TensorFlow.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=3,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> importance = head_importance(task, ["good", "bad"], ["yes", "no"])
        >>> [values.shape for values in importance]
        [(2,), (2,), (2,)]
    """
    heads, _ = sizes_of(_encoder(task).config)
    layers = [block.attention.output_dense for block in task.encoder.blocks]
    return _importance(task, layers, heads, data, labels, normalize, batch_size)


def neuron_importance(
    task: EncoderTask,
    data: Any,
    labels: Any = None,
    *,
    normalize: bool = True,
    batch_size: int = inference.BATCH_SIZE,
) -> list[np.ndarray]:
    """Like `head_importance`, for the neurons inside the feed-forward parts.

    A neuron is one input of the second dense layer.

    Returns:
        One array (I,) per block.

    Raises:
        TypeError: `task` is not a task on an encoder.
        ValueError: the data have no rows, the encoder is not BERT-like or has adapters, or the
            backend is not TensorFlow.
    """
    _, neurons = sizes_of(_encoder(task).config)
    layers = [block.feed_forward.output_dense for block in task.encoder.blocks]
    return _importance(task, layers, neurons, data, labels, normalize, batch_size)


def _encoder(task: Any) -> Any:
    """Returns the encoder of a task.

    Raises:
        TypeError: it is not a task on an encoder.
        ValueError: the encoder is not BERT-like or has adapters.
    """
    if not isinstance(task, EncoderTask):
        raise TypeError(
            "Importance requires a task on an encoder, for its loss. Received: a "
            f"{type(task).__name__}"
        )
    return plain_encoder(task)


class _Mask(keras.layers.Layer):
    """An edit of a dense layer: multiplies the layer's inputs by a mask of each example."""

    mask: Any = None  # (B, U), mask of the current batch

    def build(self, input_shape: Any) -> None:
        """Does nothing: the edit has no weights."""

    def call(self, rows: Tensor, kernel: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """Returns the masked rows (n, U · D), and the kernel unchanged.

        The n rows of the batch are those of B examples; rows of one example must be adjacent.
        """
        if self.mask is None:
            return rows, kernel
        batch, units = ops.shape(self.mask)
        # An example may be read in several sequences (choices, windows, blocks of a window).
        split = ops.reshape(rows, (batch, -1, self.mask.shape[1], rows.shape[-1] // units))
        masked = split * ops.cast(self.mask, rows.dtype)[:, None, :, None]
        return ops.reshape(masked, ops.shape(rows)), kernel


def _importance(
    task: EncoderTask,
    layers: Sequence[Dense],
    units: Sequence[int],
    data: Any,
    labels: Any,
    normalize: bool,
    batch_size: int,
) -> list[np.ndarray]:
    """Returns the importance (U,) of the heads or neurons of each block, see `head_importance`.

    Args:
        task: task on a BERT-like encoder.
        layers: dense layer of each block whose inputs are the outputs of the heads or neurons.
        units: number of heads or neurons of each block.
        data: labelled examples, or a dataset of batches.
        labels: labels of the examples, or None.
        normalize: whether each block's values are divided by their L2 norm.
        batch_size: rows per batch.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "Importance requires the TensorFlow backend: set KERAS_BACKEND=tensorflow. Received: "
            f"KERAS_BACKEND={keras.backend.backend()}"
        )
    inference.check_batch_size(batch_size)
    batches = _batches(task, data, labels, batch_size)
    with _masked(layers) as masks:

        def weigh(features: Tensors) -> Tensors:
            return {name: weight for name, (_, weight) in _terms(task, features).items()}

        def differentiate(inputs: Tensors) -> list[Tensor]:
            features = dict(inputs)
            factors = features.pop("factors")
            rows = ops.shape(features["token_ids"])[0]
            ones = [tf.ones([rows, number]) for number in units]
            for mask, values in zip(masks, ones, strict=True):
                mask.mask = values
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(ones)
                # Under `capturing` a task reads whole sequences and does not group windows, so
                # the rows of one example are adjacent.
                with capturing(task.encoder):
                    losses = [total for total, _ in _terms(task, features).values()]
                    loss = ops.sum(ops.stack(losses) * factors)
            gradients = tape.gradient(loss, ones, unconnected_gradients="zero")
            return [ops.sum(ops.abs(x), axis=0) for x in gradients]

        parts = task.parts.values()
        factors, rows = _factors(batches, inference.compiled(weigh, *parts))
        run = inference.compiled(differentiate, *parts)
        sums = [np.zeros(number) for number in units]
        for _, features in batches():
            gradients = run({**features, "factors": factors})
            sums = [total + x for total, x in zip(sums, gradients, strict=True)]
    means = [total / rows for total in sums]
    if not normalize:
        return means
    return [x / math.sqrt(max((x**2).sum(), np.finfo("float64").tiny)) for x in means]


@contextlib.contextmanager
def _masked(layers: Sequence[Dense]) -> Iterator[list[_Mask]]:
    """Within the context, multiplies the inputs of each layer by a mask.

    Yields one `_Mask` for each layer; it changes nothing until its `mask`, (B, U), is set.
    """
    masks = [_Mask(name=_NAME, dtype=layer.dtype_policy) for layer in layers]
    try:
        for layer, mask in zip(layers, masks, strict=True):
            layer.add_edit(mask, layer.kernel.shape)
        yield masks
    finally:
        for layer in layers:
            layer.remove_edit(_NAME)


def _terms(task: EncoderTask, features: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns name of a loss -> its sum over the batch and its total weight, float32 scalars."""
    losses, _ = task.loss_terms(features, training=False)
    return {
        name: (ops.cast(total, "float32"), ops.cast(weight, "float32"))
        for name, (total, weight) in losses.items()
    }


# () -> pairs of a batch's number of real rows and its features; it can be called several times.
_Batches = Callable[[], Iterable[tuple[int, dict[str, np.ndarray]]]]


def _batches(task: EncoderTask, data: Any, labels: Any, batch_size: int) -> _Batches:
    """Returns a function that iterates over the batches, see `_Batches`.

    The arguments are those of `head_importance`.

    Raises:
        ValueError: a dataset comes with labels or is infinite, or the task needs a dataset and gets
            other data.
    """
    if isinstance(data, tf.data.Dataset):
        if labels is not None:
            raise ValueError(
                "`labels` must be left out with a dataset, whose batches contain them. Received: "
                "a dataset and labels"
            )
        if data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "The dataset must be finite; dataset.take(100) has 100 batches. Received: an "
                "infinite dataset"
            )

        def from_dataset() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
            for batch in data.as_numpy_iterator():
                yield len(batch["token_ids"]), batch

        return from_dataset
    if not isinstance(task, FineTuningTask):
        raise ValueError(
            f"The data of a {type(task).__name__} must be a tf.data.Dataset of batches. Received: "
            f"a {type(data).__name__}"
        )
    table = task.as_table(data, labels)
    predictor = task.predictor

    def from_table() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        for _, rows in predictor.parts(table, labelled=True):
            for index, features in predictor.padded_batches(rows, batch_size):
                yield len(index), features

    return from_table


def _factors(batches: _Batches, weigh: Callable) -> tuple[np.ndarray, int]:
    """Returns a factor for the sum of each loss, (losses,) float32, and the number R of rows.

    A factor is R divided by the loss's total weight over all batches, so that the gradients, summed
    over rows and divided by R, are those of the weighted mean.

    Args:
        batches: iterates over the batches.
        weigh: features -> name of a loss -> its total weight in the batch.

    Raises:
        ValueError: there are no rows, or a loss has no weight.
    """
    rows = 0
    weights: dict[str, float] = {}
    for number, features in batches():
        rows += number
        weights = {name: weights.get(name, 0.0) + x for name, x in weigh(features).items()}
    if not rows:
        raise ValueError("Importance requires labelled examples. Received: none")
    empty = [name for name, weight in weights.items() if not weight > 0]
    if empty:
        raise ValueError(
            "The data must have examples, words or masks for every loss. Received: data without "
            f"any for {', '.join(empty)}"
        )
    # Multiplied by the rows, because the sum of gradients is divided by them at the end.
    return np.array([rows / weight for weight in weights.values()], "float32"), rows
