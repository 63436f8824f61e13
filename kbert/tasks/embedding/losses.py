"""Losses of vectors of texts, each of the whole global batch, for it compares its rows.

A loss gives a number for each row; the loss of the batch is their mean, weighted. Where it is one
number for all rows together (CoSENT), each row has that.

Shapes: B rows of the global batch, N wrong texts of a row at most, C texts that a row is compared
with, D width.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from kbert.core.types import Tensor

_LEAST = 1e-12  # of the square of a vector's length
_MINUS_INFINITY = -1e30  # of a logit; its exponential is 0 in float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """What a loss compares: vectors of texts, and what is known of these.

    Attributes:
        first: (B, D) float32.
        second: (B, D), of the texts that belong to them, or are scored with them; or None.
        negatives: (B, N, D), of texts that do not belong to them; or None.
        labels: (B,) scores of the pairs, or (B, D) of a teacher; or None.
        weights: (B,), what each row counts; 0 for a copy that fills the batch up. The loss of a
            row is multiplied by it elsewhere; CoSENT's, of all rows together, heeds it here.
        numbers: (B,), (B,) and (B, N) int32: the same number is the same text. -1 is none.
    """

    first: Any
    second: Any = None
    negatives: Any = None
    labels: Any = None
    weights: Any
    numbers: tuple[Any, ...] = ()

    def narrowed(self, width: int) -> "Compared":
        """The first entries of all vectors."""
        kept = {
            name: x[..., :width]
            for name in ("first", "second", "negatives")
            if (x := getattr(self, name)) is not None
        }
        return dataclasses.replace(self, **kept)


def unit(vectors: Any) -> Tensor:
    """Vectors (…, D) of length 1; zeros stay zeros."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, _LEAST))


def cosines(first: Any, second: Any) -> Tensor:
    """(…,) of vectors (…, D)."""
    return ops.sum(unit(first) * unit(second), axis=-1)


def ranking(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """Cross entropy of the right text among all texts of the batch, by cosines times `scale`.

    Compared with are the second texts of all rows, and the wrong ones of all rows. A text that is
    the row's first or second one too is left out: it is not wrong. (Henderson et al. 2017, section
    4.4, https://arxiv.org/abs/1705.00652; of texts alone, which dropout makes pairs of, Gao et al.
    2021, "SimCSE", https://arxiv.org/abs/2104.08821.)
    """
    firsts, seconds, wrong = x.numbers[0], x.numbers[1], x.numbers[2:]
    candidates, numbers = [x.second], [ops.where(x.weights > 0, seconds, -1)]
    if x.negatives is not None:
        width = x.first.shape[-1]
        candidates.append(ops.reshape(x.negatives, (-1, width)))
        counted = ops.logical_and(wrong[0] >= 0, x.weights[:, None] > 0)
        numbers.append(ops.reshape(ops.where(counted, wrong[0], -1), (-1,)))
    scores = scale * ops.matmul(unit(x.first), ops.transpose(unit(_joined(candidates))))  # (B, C)
    return _right_among(scores, _joined(numbers), (firsts, seconds))


def symmetric_ranking(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """The mean of `ranking` and of the same from the second texts to the first ones.

    (Radford et al. 2021, figure 3, https://arxiv.org/abs/2103.00020.)
    """
    firsts, seconds = x.numbers[:2]
    scores = scale * ops.matmul(unit(x.second), ops.transpose(unit(x.first)))  # (B, B)
    numbers = ops.where(x.weights > 0, firsts, -1)
    back = _right_among(scores, numbers, (firsts, seconds))
    return (ranking(x, scale=scale) + back) / 2


def cosent(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """log(1 + Σ exp(scale · (cos of a pair - cos of one that is scored higher))), for all rows.

    (Su 2022, https://kexue.fm/archives/8847; Huang et al. 2024, "CoSENT",
    https://doi.org/10.1109/TASLP.2024.3402087.)
    """
    return _ordered(scale * cosines(x.first, x.second), x)


def angle(x: Compared, *, scale: float, **_: Any) -> Tensor:
    """CoSENT of the differences of angles in the complex plane instead of cosines.

    A vector's halves are real and imaginary parts. (Li & Li 2023, "AnglE", equations 5 to 8,
    https://arxiv.org/abs/2309.12871.)
    """
    a, b = ops.split(x.first, 2, axis=-1)
    c, d = ops.split(x.second, 2, axis=-1)
    lengths = [ops.sum(ops.square(v), axis=-1, keepdims=True) for v in (x.first, x.second)]
    both = ops.rsqrt(ops.maximum(lengths[0] * lengths[1], _LEAST))
    # The quotient (a + ib) / (c + id), and both numbers' lengths taken away.
    real, imaginary = (a * c + b * d) * both, (b * c - a * d) * both
    return _ordered(scale * ops.abs(ops.sum(real + imaginary, axis=-1)), x)


def cosine(x: Compared, **_: Any) -> Tensor:
    """The square of cosine minus score: scores are from -1 to 1.

    (Reimers & Gurevych 2019, section 3, https://arxiv.org/abs/1908.10084.)
    """
    return ops.square(cosines(x.first, x.second) - x.labels)


def triplet(x: Compared, *, margin: float, **_: Any) -> Tensor:
    """How much less than `margin` the right text's cosine is above that of each wrong text; a mean.

    (Schroff et al. 2015, https://arxiv.org/abs/1503.03832, with cosines.)
    """
    right = cosines(x.first, x.second)[:, None]
    wrong = cosines(x.first[:, None], x.negatives)  # (B, N)
    each = ops.maximum(margin + wrong - right, 0.0)
    there = ops.cast(x.numbers[2] >= 0, each.dtype)
    return ops.sum(each * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1.0)


def teacher(x: Compared, **_: Any) -> Tensor:
    """The mean square of the differences to a teacher's vector.

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
SCORED = ("cosent", "angle", "cosine")  # those of pairs with a number


def row_losses(
    x: Compared, objective: str, *, widths: Sequence[int] = (), **settings: Any
) -> Tensor:
    """The losses of the rows, (B,) float32.

    Args:
        x: the batch.
        objective: a key of `LOSSES`.
        widths: the sum of the losses of vectors of so many first entries; none = the vectors as
            they are (Kusupati et al. 2022, https://arxiv.org/abs/2205.13147).
        **settings: `scale` and `margin`.

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
    """Cross entropy of candidate i for row i; (B, C) scores, (C,) numbers, -1 = not there."""
    rows = ops.arange(ops.shape(scores)[0])
    is_right = rows[:, None] == ops.arange(ops.shape(scores)[1])[None]
    left_out = numbers[None] < 0
    for texts in own:
        left_out = ops.logical_or(left_out, numbers[None] == texts[:, None])
    left_out = ops.logical_and(left_out, ops.logical_not(is_right))
    scores = ops.where(left_out, _MINUS_INFINITY, scores)
    right = ops.sum(ops.where(is_right, scores, 0.0), axis=1)
    return ops.logsumexp(scores, axis=1) - right


def _ordered(scores: Any, x: Compared) -> Tensor:
    """log(1 + Σ exp(score i - score j)) over pairs with label i < label j, the same for all.

    A term counts the product of both rows' weights, these as shares of the mean of those above 0.
    """
    counted = x.weights > 0
    weights = ops.cast(x.weights, scores.dtype)
    number = ops.sum(ops.cast(counted, scores.dtype))
    shares = weights * number / ops.maximum(ops.sum(weights), _LEAST)
    logs = ops.log(ops.where(counted, shares, 1.0))
    wanted = x.labels[:, None] < x.labels[None]
    wanted = ops.logical_and(wanted, ops.logical_and(counted[:, None], counted[None]))
    differences = (scores + logs)[:, None] - (scores - logs)[None]
    differences = ops.where(wanted, differences, _MINUS_INFINITY)
    terms = ops.concatenate([ops.zeros((1,), scores.dtype), ops.reshape(differences, (-1,))])
    return ops.logsumexp(terms) + ops.zeros_like(scores)
