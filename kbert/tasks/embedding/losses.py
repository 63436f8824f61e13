"""Losses of embeddings, computed on the whole global batch, since they compare its rows.

A loss returns a number for each row; the loss of the batch is their weighted mean. If the loss is
one number for all rows together (CoSENT), each row gets that number.

Shapes: B rows of the global batch, N negatives of a row at most, C candidates that a row is
compared with, D embedding width.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from kbert.core.types import Tensor

_LEAST = 1e-12  # lower bound of the squared length of an embedding
_MINUS_INFINITY = -1e30  # as a logit; its exponential is 0 in float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """The inputs of a loss: embeddings, labels, weights and numbers of texts.

    Attributes:
        first: (B, D) float32, embeddings of the first texts.
        second: (B, D), embeddings of the positives, or of the other texts of scored pairs; or None.
        negatives: (B, N, D), embeddings of the negatives; or None.
        labels: (B,) scores of the pairs, or (B, D) embeddings of a teacher; or None.
        weights: (B,), weights of the rows; 0 for copies that fill up the batch. The caller
            multiplies the rows' losses by them. Only CoSENT, whose loss is for all rows together,
            uses the values here.
        numbers: (B,), (B,) and (B, N) int32, numbers of the texts; equal texts have the same
            number. -1 = no text.
    """

    first: Any
    second: Any = None
    negatives: Any = None
    labels: Any = None
    weights: Any
    numbers: tuple[Any, ...] = ()

    def narrowed(self, width: int) -> "Compared":
        """Returns a copy with all embeddings truncated to their first `width` entries."""
        truncated = {
            name: x[..., :width]
            for name in ("first", "second", "negatives")
            if (x := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **truncated)


def unit(vectors: Any) -> Tensor:
    """Scales vectors (…, D) to length 1; zeros stay zeros."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, _LEAST))


def cosines(first: Any, second: Any) -> Tensor:
    """Returns the cosines (…,) of vectors (…, D)."""
    return ops.sum(unit(first) * unit(second), axis=-1)


def ranking(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """Cross entropy (B,) of each row's second text among the batch; logits are `scale` · cosine.

    The candidates are the second texts and the negatives of all rows. A text that equals the row's
    first or second text is masked as a negative. (Henderson et al. 2017, section 4.4,
    https://arxiv.org/abs/1705.00652; for texts alone, paired by dropout, Gao et al. 2021, "SimCSE",
    https://arxiv.org/abs/2104.08821.)
    """
    firsts, seconds, negative_numbers = x.numbers[0], x.numbers[1], x.numbers[2:]
    candidates, numbers = [x.second], [ops.where(x.weights > 0, seconds, -1)]
    if x.negatives is not None:
        width = x.first.shape[-1]
        candidates.append(ops.reshape(x.negatives, (-1, width)))
        is_counted = ops.logical_and(negative_numbers[0] >= 0, x.weights[:, None] > 0)
        numbers.append(ops.reshape(ops.where(is_counted, negative_numbers[0], -1), (-1,)))
    scores = scale * ops.matmul(unit(x.first), ops.transpose(unit(_joined(candidates))))  # (B, C)
    return _right_among(scores, _joined(numbers), (firsts, seconds))


def symmetric_ranking(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """The mean (B,) of `ranking` and of the same loss from second texts to first texts.

    Logits are `scale` · cosine.

    (Radford et al. 2021, figure 3, https://arxiv.org/abs/2103.00020.)
    """
    firsts, seconds = x.numbers[:2]
    scores = scale * ops.matmul(unit(x.second), ops.transpose(unit(x.first)))  # (B, B)
    numbers = ops.where(x.weights > 0, firsts, -1)
    reverse_losses = _right_among(scores, numbers, (firsts, seconds))
    return (ranking(x, scale=scale) + reverse_losses) / 2


def cosent(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """CoSENT: log(1 + Σ exp(scale · (cos(pair) - cos(pair with a higher score)))), for all rows.

    Returns this number for each of the B rows.

    (Su 2022, https://kexue.fm/archives/8847; Huang et al. 2024, "CoSENT",
    https://doi.org/10.1109/TASLP.2024.3402087.)
    """
    return _ordered(scale * cosines(x.first, x.second), x)


def angle(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """CoSENT with differences of angles in the complex plane instead of cosines, times `scale`.

    Returns the same number for each of the B rows. The halves of an embedding are its real and
    imaginary parts. (Li & Li 2023, "AnglE", equations 5 to 8, https://arxiv.org/abs/2309.12871.)
    """
    a, b = ops.split(x.first, 2, axis=-1)
    c, d = ops.split(x.second, 2, axis=-1)
    lengths = [ops.sum(ops.square(v), axis=-1, keepdims=True) for v in (x.first, x.second)]
    inverse_norm = ops.rsqrt(ops.maximum(lengths[0] * lengths[1], _LEAST))
    # The quotient (a + ib) / (c + id), of both numbers scaled to length 1.
    real, imaginary = (a * c + b * d) * inverse_norm, (b * c - a * d) * inverse_norm
    return _ordered(scale * ops.abs(ops.sum(real + imaginary, axis=-1)), x)


def cosine(x: Compared, **_: Any) -> Tensor:
    """The squared difference (B,) of each pair's cosine and score; scores are from -1 to 1.

    (Reimers & Gurevych 2019, section 3, https://arxiv.org/abs/1908.10084.)
    """
    return ops.square(cosines(x.first, x.second) - x.labels)


def triplet(x: Compared, *, margin: float, **_: Any) -> Tensor:
    """Triplet loss (B,): mean over negatives of max(margin + cos(negative) - cos(positive), 0).

    (Schroff et al. 2015, https://arxiv.org/abs/1503.03832, with cosines.)
    """
    positive = cosines(x.first, x.second)[:, None]
    negative = cosines(x.first[:, None], x.negatives)  # (B, N)
    hinge = ops.maximum(margin + negative - positive, 0.0)
    weights = ops.cast(x.numbers[2] >= 0, hinge.dtype)
    return ops.sum(hinge * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1.0)


def teacher(x: Compared, **_: Any) -> Tensor:
    """The mean squared difference (B,) of each embedding and a teacher's, over its entries.

    (Reimers & Gurevych 2020, https://arxiv.org/abs/2004.09813.)
    """
    return ops.mean(ops.square(x.first - x.labels), axis=-1)


# Name -> the loss.
LOSSES: dict[str, Callable[..., Tensor]] = {
    "ranking": ranking,
    "symmetric_ranking": symmetric_ranking,
    "cosent": cosent,
    "angle": angle,
    "cosine": cosine,
    "triplet": triplet,
    "teacher": teacher,
}
SCORED = ("cosent", "angle", "cosine")  # losses for pairs with a score


def row_losses(
    x: Compared, objective: str, *, widths: Sequence[int] = (), **settings: Any
) -> Tensor:
    """Returns the losses of the rows, (B,) float32.

    Args:
        x: the batch.
        objective: a key of `LOSSES`.
        widths: widths to truncate the embeddings to, whose losses are summed (Matryoshka, Kusupati
            et al. 2022, https://arxiv.org/abs/2205.13147); none = only the whole embeddings.
        **settings: `scale`, the factor of cosines in ranking, CoSENT and AnglE, and `margin`, that
            of `triplet`.

    Example:
        >>> import numpy as np
        >>> pairs = Compared(first=np.eye(2, 4, dtype="float32"), labels=np.array([1.0, 0.5]),
        ...                  second=np.eye(2, 4, dtype="float32"), weights=np.ones(2))
        >>> [round(float(loss), 2) for loss in row_losses(pairs, "cosine")]
        [0.0, 0.25]
    """
    parts = [x.narrowed(width) for width in widths] or [x]
    return sum(LOSSES[objective](part, **settings) for part in parts)


def _joined(parts: list) -> Tensor:
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=0)


def _right_among(scores: Any, numbers: Any, own: tuple[Any, Any]) -> Tensor:
    """Cross entropy (B,) with candidate i as the positive of row i.

    `scores` (B, C) are the logits of the candidates. `numbers` (C,) are those of their texts, -1 =
    no text. `own` are the numbers of each row's texts, (B,) each, which are masked as negatives.
    """
    rows = ops.arange(ops.shape(scores)[0])
    is_right = rows[:, None] == ops.arange(ops.shape(scores)[1])[None]
    is_ignored = numbers[None] < 0
    for texts in own:
        is_ignored = ops.logical_or(is_ignored, numbers[None] == texts[:, None])
    is_ignored = ops.logical_and(is_ignored, ops.logical_not(is_right))
    scores = ops.where(is_ignored, _MINUS_INFINITY, scores)
    positive_scores = ops.sum(ops.where(is_right, scores, 0.0), axis=1)
    return ops.logsumexp(scores, axis=1) - positive_scores


def _ordered(scores: Any, x: Compared) -> Tensor:
    """Returns log(1 + Σ exp(score i - score j)) over rows with label i < label j.

    `scores` are (B,). The result is (B,) too, the same number for all rows. A term is weighted by
    the product of both rows' weights, each divided by the mean of the weights above 0.
    """
    is_counted = x.weights > 0
    weights = ops.cast(x.weights, scores.dtype)
    number = ops.sum(ops.cast(is_counted, scores.dtype))
    shares = weights * number / ops.maximum(ops.sum(weights), _LEAST)
    logs = ops.log(ops.where(is_counted, shares, 1.0))
    is_ordered = x.labels[:, None] < x.labels[None]
    is_ordered = ops.logical_and(is_ordered, ops.logical_and(is_counted[:, None], is_counted[None]))
    differences = (scores + logs)[:, None] - (scores - logs)[None]
    differences = ops.where(is_ordered, differences, _MINUS_INFINITY)
    terms = ops.concatenate([ops.zeros((1,), scores.dtype), ops.reshape(differences, (-1,))])
    return ops.logsumexp(terms) + ops.zeros_like(scores)
