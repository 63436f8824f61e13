"""Losses and metrics as pairs (weighted sum, sum of weights) that add up over any split of a batch.

A mean of means is wrong as soon as two replicas, micro-batches or steps carry different weights;
a pair is added everywhere and divided once. All in float32, whatever the model computes in.
"""

from typing import Any, NamedTuple

from keras import ops

from kbert.core.types import Pair


class Prediction(NamedTuple):
    """What a task predicts of a batch, so that two tasks can be compared.

    Attributes:
        kind: "classes", of which one is right: softmax over the last axis; "labels", each right or
            not: sigmoid; "number": none of them.
        values: logits (..., C), or numbers (...).
        weights: (...), of labels (..., C): 0 where there is nothing to predict.
    """

    kind: str
    values: Any
    weights: Any


def cross_entropy(logits: Any, labels: Any, weights: Any) -> Pair:
    """Softmax cross entropy, from logits: large ones neither overflow nor lose their gradient.

    Args:
        logits: (..., C).
        labels: (...) integers in [0, C).
        weights: (...), 0 where there is nothing to predict.

    Returns:
        Float32 scalars (sum of weight · loss, sum of weights).

    Example:
        >>> import numpy as np
        >>> loss, count = cross_entropy(np.array([[1e4, 0.0], [0.0, 0.0]]), [1, 0], [1.0, 0.0])
        >>> float(loss), float(count)
        (10000.0, 1.0)
    """
    logits, weights = ops.cast(logits, "float32"), ops.cast(weights, "float32")
    each = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return ops.sum(each * weights), ops.sum(weights)


def z_loss(logits: Any, weights: Any) -> Pair:
    """The squares of the logarithms of the softmax' denominators, which keep logits near 0.

    (PaLM, Chowdhery et al. 2022, section 5, https://arxiv.org/abs/2204.02311, by a weight of 1e-4.)

    Args:
        logits: (..., C).
        weights: (...), 0 where there is nothing to predict.

    Returns:
        Float32 scalars (sum of weight · log² Z, sum of weights).

    Example:
        >>> import numpy as np
        >>> loss, count = z_loss(np.log([[1.0, 1.0], [0.5, 0.5]]), [1.0, 1.0])
        >>> round(float(loss / np.log(2) ** 2), 3), float(count)
        (1.0, 2.0)
    """
    logits, weights = ops.cast(logits, "float32"), ops.cast(weights, "float32")
    return ops.sum(ops.square(ops.logsumexp(logits, axis=-1)) * weights), ops.sum(weights)


def smoothed_cross_entropy(
    logits: Any, labels: Any, weights: Any, smoothing: float
) -> tuple[Pair, Pair]:
    """Cross entropy against labels that give a share to all classes, and the plain one.

    The labels are (1 - smoothing) · one-hot + smoothing / C (Szegedy et al. 2015, section 7,
    https://arxiv.org/abs/1512.00567). No such row is ever made: against them the cross entropy is
    that of the label plus smoothing · (logit of the label - mean of the logits).

    Args:
        logits: (..., C).
        labels: (...) integers in [0, C).
        weights: (...), 0 where there is nothing to predict.
        smoothing: share that is spread over all C classes, from 0 to below 1.

    Returns:
        Two pairs of float32 scalars (sum of weight · loss, sum of weights): smoothed and plain.

    Example:
        >>> import numpy as np
        >>> smoothed, plain = smoothed_cross_entropy(np.zeros((1, 4)), [1], [1.0], 0.1)
        >>> [round(float(x / np.log(4)), 3) for x in (smoothed[0], plain[0])]
        [1.0, 1.0]
    """
    logits, weights = ops.cast(logits, "float32"), ops.cast(weights, "float32")
    labels = ops.cast(labels, "int32")
    plain = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    of_label = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    smoothed = plain + smoothing * (of_label - ops.mean(logits, axis=-1))
    count = ops.sum(weights)
    return (ops.sum(smoothed * weights), count), (ops.sum(plain * weights), count)


def accuracy(logits: Any, labels: Any, weights: Any) -> Pair:
    """How often the largest logit is the label; arguments and result as in `cross_entropy`."""
    weights = ops.cast(weights, "float32")
    labels = ops.cast(labels, "int32")
    hits = ops.cast(ops.argmax(logits, axis=-1), "int32") == labels
    return ops.sum(ops.cast(hits, "float32") * weights), ops.sum(weights)


def binary_cross_entropy(logits: Any, labels: Any, weights: Any) -> Pair:
    """Sigmoid cross entropy, from logits.

    Args:
        logits: (...).
        labels: (...), 0 or 1.
        weights: (...), 0 where there is nothing to tell.

    Returns:
        Float32 scalars (sum of weight · loss, sum of weights).

    Example:
        >>> loss, count = binary_cross_entropy([1e4, 0.0], [0, 1], [1.0, 0.0])
        >>> float(loss), float(count)
        (10000.0, 1.0)
    """
    logits, labels, weights = (ops.cast(x, "float32") for x in (logits, labels, weights))
    # log(1 + e^x) - x·y, without the overflow.
    each = ops.maximum(logits, 0.0) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))
    return ops.sum(each * weights), ops.sum(weights)


def squared_error(scores: Any, labels: Any, weights: Any) -> Pair:
    """Squares of the differences.

    Args:
        scores: (...).
        labels: (...).
        weights: (...), 0 where there is nothing to tell.

    Returns:
        Float32 scalars (sum of weight · square, sum of weights).

    Example:
        >>> error, count = squared_error([3.0, 1.0], [1.0, 9.0], [1.0, 0.0])
        >>> float(error), float(count)
        (4.0, 1.0)
    """
    scores, labels, weights = (ops.cast(x, "float32") for x in (scores, labels, weights))
    return ops.sum(ops.square(scores - labels) * weights), ops.sum(weights)


def detection(logits: Any, labels: Any, weights: Any) -> dict[str, Pair]:
    """Accuracy, precision and recall of "yes" where a logit is above 0.

    Precision is of what was called "yes", recall of what is: their denominators are the counts of
    these, so they add up too.

    Args:
        logits: (...).
        labels: (...), 0 or 1.
        weights: (...), 0 where there is nothing to tell.

    Returns:
        "accuracy", "precision" and "recall" as pairs of float32 scalars.

    Example:
        >>> found = detection([2.0, 1.0, -1.0, 3.0], [1, 0, 0, 1], [1.0, 1.0, 1.0, 0.0])
        >>> {name: (float(hits), float(count)) for name, (hits, count) in found.items()}
        {'accuracy': (2.0, 3.0), 'precision': (1.0, 2.0), 'recall': (1.0, 1.0)}
    """
    yes = ops.cast(ops.cast(logits, "float32") > 0, "float32")
    labels, weights = ops.cast(labels, "float32"), ops.cast(weights, "float32")
    right = ops.cast(yes == labels, "float32") * weights
    hits = ops.sum(yes * labels * weights)
    return {
        "accuracy": (ops.sum(right), ops.sum(weights)),
        "precision": (hits, ops.sum(yes * weights)),
        "recall": (hits, ops.sum(labels * weights)),
    }
