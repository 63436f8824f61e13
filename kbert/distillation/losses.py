"""Distances between a student and its teacher, as pairs (weighted sum, sum of weights).

Like those of all losses in kbert, the pairs add up over any split of a batch (see
`kbert.tasks.losses`). The functions take tensors, not models, and always compute in float32.

Shapes: `...` any leading axes, C classes, B rows, T tokens, N heads, D width of a head, H hidden
width.
"""

from keras import ops

from kbert.core.types import Pair, Tensor
from kbert.layers import example_bias


def soft_targets(
    student: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 1.0
) -> Pair:
    """Returns the KL divergence of student and teacher distributions over classes, times T².

    The temperature softens both distributions. T² gives gradients the same scale as at temperature
    1 (Hinton et al. 2015, section 2, https://arxiv.org/abs/1503.02531). The divergence is the soft
    cross entropy minus the teacher's entropy, so it is 0 for equal logits.

    Args:
        student: the student's logits (..., C).
        teacher: the teacher's logits (..., C).
        weights: weights (...) of the examples.
        temperature: temperature T.

    Returns:
        Float32 scalars (sum of weight · KL · T², sum of weights).

    Example:
        >>> loss, count = soft_targets([[0.0, 0.0]], [[4.0, 0.0]], [1.0], temperature=2.0)
        >>> round(float(loss), 3), float(count)
        (1.311, 1.0)
    """
    student, teacher, weights = _float32(student, teacher, weights)
    divergence = _divergence(student / temperature, teacher / temperature) * temperature**2
    return ops.sum(divergence * weights), ops.sum(weights)


def soft_labels(
    student: Tensor, teacher: Tensor, weights: Tensor, temperature: float = 1.0
) -> Pair:
    """Like `soft_targets`, for multi-label logits: one binary divergence per logit.

    Args:
        student: the student's logits (...).
        teacher: the teacher's logits (...).
        weights: weights (...) of the logits.
        temperature: temperature T.

    Returns:
        Float32 scalars (sum of weight · KL · T², sum of weights).

    Example:
        >>> loss, _ = soft_labels([1.0, 9.0], [1.0, 0.0], [1.0, 0.0])
        >>> float(loss)
        0.0
    """
    student, teacher, weights = _float32(student, teacher, weights)
    # A sigmoid is a softmax over a logit and 0.
    student, teacher = (ops.stack([x, ops.zeros_like(x)], axis=-1) for x in (student, teacher))
    return soft_targets(student, teacher, weights, temperature)


def mean_squares(student: Tensor, teacher: Tensor, weights: Tensor) -> Pair:
    """Returns the squared differences, averaged over the last axis.

    Args:
        student: values (..., H) of the student.
        teacher: values (..., H) of the teacher.
        weights: weights (...) of the positions.

    Returns:
        Float32 scalars (sum of weight · mean square, sum of weights).

    Example:
        >>> loss, count = mean_squares([[1.0, 2.0], [9.0, 9.0]], [[1.0, 4.0], [0.0, 0.0]], [1, 0])
        >>> float(loss), float(count)
        (2.0, 1.0)
    """
    student, teacher, weights = _float32(student, teacher, weights)
    squares = ops.mean(ops.square(student - teacher), axis=-1)
    return ops.sum(squares * weights), ops.sum(weights)


def cosine_distance(student: Tensor, teacher: Tensor, weights: Tensor) -> Pair:
    """Returns 1 - cosine similarity over the last axis.

    Args:
        student: vectors (..., H) of the student.
        teacher: vectors (..., H) of the teacher.
        weights: weights (...) of the vectors.

    Returns:
        Float32 scalars (sum of weight · distance, sum of weights).

    Example:
        >>> loss, _ = cosine_distance([[1.0, 0.0]], [[0.0, 3.0]], [1.0])
        >>> float(loss)
        1.0
    """
    student, teacher, weights = _float32(student, teacher, weights)
    cosine = ops.sum(ops.normalize(student, axis=-1) * ops.normalize(teacher, axis=-1), axis=-1)
    return ops.sum((1.0 - cosine) * weights), ops.sum(weights)


def score_squares(
    student: Tensor, teacher: Tensor, examples: Tensor, weights: Tensor | None = None
) -> Pair:
    """Returns the squared differences of attention scores before the softmax, averaged over heads.

    (TinyBERT, https://arxiv.org/abs/1909.10351, equation 7.) Only pairs of real tokens of one
    example count, because the softmax masks a token's scores with all others.

    Args:
        student: the student's scores (B, N, T, T), without the bias for padding.
        teacher: the teacher's scores (B, N, T, T), without the bias for padding.
        examples: number (B, T) of each token's example in its row, 0 for a token that does not
            count. In a row with one example it is 1 for tokens that count.
        weights: weights (B, T) of the tokens, equal within an example; None = 1.

    Returns:
        Float32 scalars (sum over pairs of tokens, number of such pairs), both weighted.

    Example:
        >>> import numpy as np
        >>> scores = np.zeros((1, 2, 3, 3))
        >>> loss, count = score_squares(scores, scores + 2, np.array([[1, 1, 0]]))
        >>> float(loss), float(count)
        (16.0, 4.0)
    """
    student, teacher, examples = _float32(student, teacher, examples)
    squares = ops.mean(ops.square(student - teacher), axis=1)  # (B, T, T)
    left, right = examples[:, :, None], examples[:, None, :]
    pairs = ops.cast(ops.logical_and(left == right, left > 0), "float32")
    if weights is not None:
        pairs = pairs * ops.cast(weights, "float32")[:, :, None]
    return ops.sum(squares * pairs), ops.sum(pairs)


def relation_divergence(
    student: Tensor, teacher: Tensor, examples: Tensor, weights: Tensor | None = None
) -> Pair:
    """Returns the KL divergence of two relations: of each token's distribution over all tokens.

    (MiniLM, https://arxiv.org/abs/2002.10957, equations 8 and 11.) It is averaged over the heads
    and summed over the real tokens.

    Args:
        student: the student's scores (B, N, T, T), without a bias for padding.
        teacher: the teacher's scores (B, N, T, T), without a bias for padding.
        examples: number (B, T) of each token's example in its row, 0 for a token that does not
            count. A token attends to tokens of its own example only.
        weights: weights (B, T) of the tokens; None = 1.

    Returns:
        Float32 scalars (sum over tokens of the heads' mean, number of tokens), both weighted.

    Example:
        >>> import numpy as np
        >>> scores = np.random.default_rng(0).normal(size=(1, 2, 3, 3))
        >>> loss, count = relation_divergence(scores, scores, np.array([[1, 1, 0]]))
        >>> float(loss), float(count)
        (0.0, 2.0)
    """
    student, teacher, examples = _float32(student, teacher, examples)
    bias = example_bias(examples)
    real = ops.cast(examples > 0, "float32")
    if weights is not None:
        real = real * ops.cast(weights, "float32")
    divergence = ops.mean(_divergence(student + bias, teacher + bias), axis=1)  # (B, T)
    return ops.sum(divergence * real), ops.sum(real)


def relation(vectors: Tensor, num_heads: int | None = None) -> Tensor:
    """Returns scores of all pairs of tokens from queries, keys or values: X · Xᵀ / √D per head.

    (MiniLM, equation 9, for values; MiniLMv2, https://arxiv.org/abs/2012.15828, section 3.1, for
    queries, keys and values with another number of heads.)

    Args:
        vectors: queries, keys or values (B, N, T, D) of an attention layer.
        num_heads: number of heads to split the same total width into; None = N.

    Returns:
        Scores (B, N, T, T), or (B, `num_heads`, T, T), in float32.

    Example:
        >>> relation(ops.ones((1, 2, 3, 8)), num_heads=4).shape[1]
        4
    """
    vectors = ops.cast(vectors, "float32")
    batch, heads, length, size = ops.shape(vectors)
    if num_heads is not None and num_heads != heads:
        x = ops.transpose(vectors, (0, 2, 1, 3))  # (B, T, N, D)
        x = ops.reshape(x, (batch, length, num_heads, heads * size // num_heads))
        vectors = ops.transpose(x, (0, 2, 1, 3))
    return ops.matmul(vectors * vectors.shape[-1] ** -0.5, ops.transpose(vectors, (0, 1, 3, 2)))


def agreement(student: Tensor, teacher: Tensor, weights: Tensor) -> Pair:
    """Returns how often both predict the same class.

    Args:
        student: the student's logits (..., C).
        teacher: the teacher's logits (..., C).
        weights: weights (...) of the examples.

    Returns:
        Float32 scalars (sum of weights where the classes are equal, sum of weights).
    """
    weights = ops.cast(weights, "float32")
    same = ops.equal(ops.argmax(student, axis=-1), ops.argmax(teacher, axis=-1))
    return ops.sum(ops.cast(same, "float32") * weights), ops.sum(weights)


def _divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Returns the divergence KL(teacher ‖ student), (...), from logits (..., C)."""
    log_target = ops.log_softmax(teacher, axis=-1)
    return ops.sum(ops.exp(log_target) * (log_target - ops.log_softmax(student, axis=-1)), axis=-1)


def _float32(*tensors: Tensor) -> list[Tensor]:
    return [ops.cast(x, "float32") for x in tensors]
