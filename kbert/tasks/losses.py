"""Losses and metrics as pairs (weighted sum, sum of weights) that add up over any split of a batch.

A mean of means is wrong as soon as two replicas, micro-batches or steps carry different weights;
a pair is added everywhere and divided once. All in float32, whatever the model computes in.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from kbert.core.types import Pair


class Prediction(NamedTuple):
    """A task's predictions for a batch, in a form that can be compared between tasks.

    Attributes:
        kind: "classes", exactly one of which is right: softmax over the last axis; "labels", each
            right or wrong: sigmoid; "number": neither.
        values: logits (..., C), or numbers (...).
        weights: (...), or (..., C) for "labels"; 0 where there is nothing to predict.
    """

    kind: str
    values: Any
    weights: Any


def mean_logits(kind: str, values: Sequence[Any]) -> Any:
    """Returns logits whose probabilities are the mean of those of several models.

    Args:
        kind: kind of the `Prediction`; "number" returns the mean of the values themselves.
        values: values of each model, (..., C) or (...).

    Returns:
        Float32 logits, or numbers, in the shape of one model's.

    Example:
        >>> import numpy as np
        >>> certain, unsure = np.array([[1e4, 0.0]]), np.array([[0.0, 0.0]])
        >>> ops.softmax(mean_logits("classes", [certain, unsure])).numpy().round(2).tolist()
        [[0.75, 0.25]]
        >>> ops.sigmoid(mean_logits("labels", [certain, unsure])).numpy().round(2).tolist()
        [[0.75, 0.5]]
    """
    stacked = ops.stack([ops.cast(x, "float32") for x in values])
    if kind == "number":
        return ops.mean(stacked, axis=0)
    if kind == "classes":
        return ops.logsumexp(ops.log_softmax(stacked, axis=-1), axis=0) - math.log(len(values))
    right, wrong = (ops.logsumexp(ops.log_sigmoid(x), axis=0) for x in (stacked, -stacked))
    return right - wrong


def cross_entropy(logits: Any, labels: Any, weights: Any) -> Pair:
    """Softmax cross entropy from logits; large logits neither overflow nor lose their gradient.

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
    losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return ops.sum(losses * weights), ops.sum(weights)


def z_loss(logits: Any, weights: Any) -> Pair:
    """The z-loss: the squared logarithms of the softmax denominators, to keep logits near 0.

    (PaLM, Chowdhery et al. 2022, section 5, https://arxiv.org/abs/2204.02311, with weight 1e-4.)

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


def accuracy(logits: Any, labels: Any, weights: Any) -> Pair:
    """Counts how often the largest of the logits (…, C) is the label (…), with weights (…).

    Returns float32 scalars (sum of weights of hits, sum of weights).
    """
    weights = ops.cast(weights, "float32")
    labels = ops.cast(labels, "int32")
    hits = ops.cast(ops.argmax(logits, axis=-1), "int32") == labels
    return ops.sum(ops.cast(hits, "float32") * weights), ops.sum(weights)


def binary_cross_entropy(logits: Any, labels: Any, weights: Any) -> Pair:
    """Sigmoid cross entropy from logits, for labels that are each right or wrong.

    Args:
        logits: (...).
        labels: (...), 0 or 1.
        weights: (...), 0 where there is nothing to predict.

    Returns:
        Float32 scalars (sum of weight · loss, sum of weights).

    Example:
        >>> loss, count = binary_cross_entropy([1e4, 0.0], [0, 1], [1.0, 0.0])
        >>> float(loss), float(count)
        (10000.0, 1.0)
    """
    logits, labels, weights = (ops.cast(x, "float32") for x in (logits, labels, weights))
    # log(1 + e^x) - x·y, without the overflow.
    losses = ops.maximum(logits, 0.0) - logits * labels + ops.log1p(ops.exp(-ops.abs(logits)))
    return ops.sum(losses * weights), ops.sum(weights)


def squared_error(scores: Any, labels: Any, weights: Any) -> Pair:
    """Squared error of scores, weighted.

    Args:
        scores: (...).
        labels: (...).
        weights: (...), 0 where there is nothing to predict.

    Returns:
        Float32 scalars (sum of weight · squared error, sum of weights).

    Example:
        >>> error, count = squared_error([3.0, 1.0], [1.0, 9.0], [1.0, 0.0])
        >>> float(error), float(count)
        (4.0, 1.0)
    """
    scores, labels, weights = (ops.cast(x, "float32") for x in (scores, labels, weights))
    return ops.sum(ops.square(scores - labels) * weights), ops.sum(weights)


def detection(logits: Any, labels: Any, weights: Any) -> dict[str, Pair]:
    """Accuracy, precision and recall of a binary prediction; logits above 0 are positive.

    The denominator of precision is the count of predicted positives, that of recall the count of
    actual positives. So these pairs add up too.

    Args:
        logits: (...).
        labels: (...), 0 or 1.
        weights: (...), 0 where there is nothing to predict.

    Returns:
        "accuracy", "precision" and "recall" as pairs of float32 scalars.

    Example:
        >>> found = detection([2.0, 1.0, -1.0, 3.0], [1, 0, 0, 1], [1.0, 1.0, 1.0, 0.0])
        >>> {name: (float(hits), float(count)) for name, (hits, count) in found.items()}
        {'accuracy': (2.0, 3.0), 'precision': (1.0, 2.0), 'recall': (1.0, 1.0)}
    """
    predictions = ops.cast(ops.cast(logits, "float32") > 0, "float32")
    labels, weights = ops.cast(labels, "float32"), ops.cast(weights, "float32")
    correct = ops.cast(predictions == labels, "float32") * weights
    true_positives = ops.sum(predictions * labels * weights)
    return {
        "accuracy": (ops.sum(correct), ops.sum(weights)),
        "precision": (true_positives, ops.sum(predictions * weights)),
        "recall": (true_positives, ops.sum(labels * weights)),
    }
