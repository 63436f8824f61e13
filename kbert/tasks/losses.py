"""Losses and metrics as pairs (weighted sum, sum of weights) that add up over any split of a batch.

A mean of means is wrong as soon as two replicas, micro-batches or steps carry different weights;
a pair is added everywhere and divided once. All in float32, whatever the model computes in.
"""

from typing import Any

from keras import ops

Pair = tuple[Any, Any]


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


def accuracy(logits: Any, labels: Any, weights: Any) -> Pair:
    """How often the largest logit is the label; arguments and result as in `cross_entropy`."""
    weights = ops.cast(weights, "float32")
    labels = ops.cast(labels, "int32")
    hits = ops.cast(ops.argmax(logits, axis=-1), "int32") == labels
    return ops.sum(ops.cast(hits, "float32") * weights), ops.sum(weights)
