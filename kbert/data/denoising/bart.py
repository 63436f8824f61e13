"""BART's noise: masked or deleted tokens, masked spans, permuted sentences, rotated text.

Source: Lewis et al. 2020, section 2.2 (arXiv:1910.13461); fairseq/data/denoising_dataset.py of
facebookresearch/fairseq. BART itself masks spans with 30 % of the tokens, and permutes all
sentences (section 5.1).

Shapes: N rows, L text tokens of a row, K maximum number of masks of a row.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from kbert.core.late import tf
from kbert.core.options import option
from kbert.data.denoising.noise import Noise, Sides, Text, frame, gather_rows, scatter_rows
from kbert.data.denoising.sentences import permuted
from kbert.data.masking.hashing import below, chance, fold
from kbert.data.masking.masking import span_counts
from kbert.data.masking.tokens import sample_sorted
from kbert.tokenizers.base import Tokenizer

_ORDER, _LENGTH, _PLACE, _ACTION, _TOKEN, _ROTATION = range(6)  # streams of draws under a row's key
_MASKINGS = ("infilling", "tokens", "deletion", "none")


class Bart(Noise):
    """BART's noise, in the order in which it is applied to the source; the target is the text.

    Sentences are permuted first. Then tokens are masked or deleted: exactly the masked share of
    them, rounded up. With "infilling" each span is replaced by one mask. Span lengths are Poisson
    numbers; a span of length 0 inserts a mask. The last span of a row is shortened to the number
    of tokens that are left. Masks and kept tokens are then in any order with equal probability. (In
    fairseq's code spans may overlap or end at the end of the text, so it masks fewer tokens.)
    Rotation is last. Special tokens stay where they are.

    A row has at most as many masks as masked tokens, and at most `max_masks`; the last mask then
    replaces all tokens that are left. With BART's settings this happens in very short rows only.

    Args:
        {options}
    """

    kind = "bart"
    segments: ClassVar[str] = "doc_sentences"
    decoder_start: ClassVar[str | None] = "sep"
    roles: ClassVar[tuple[str, ...]] = ("pad", "cls", "sep", "mask")

    masking: str = option(
        "infilling",
        help="What happens to tokens: infilling replaces spans by one mask each, tokens replaces "
        "single tokens, deletion removes them, none does nothing.",
        choices=_MASKINGS,
    )
    masked_share: float = option(
        0.3, help="Share of the tokens to mask or delete.", above=0, below=1
    )
    mean_span: float = option(
        3.0, help="Mean of the Poisson numbers of infilling.", above=0, at_most=30
    )
    random_share: float = option(
        0.0,
        help="Share of the masks that are a random token instead of the mask token.",
        at_least=0,
        at_most=1,
    )
    permuted_share: float = option(
        1.0, help="Share of a row's sentences to permute.", at_least=0, at_most=1
    )
    rotated_share: float = option(
        0.0,
        help="Share of the rows to rotate, so that they begin with a random token.",
        at_least=0,
        at_most=1,
    )
    targets_begin: bool | None = option(
        None,
        help='Whether the "cls" token begins the targets. None: as the targets of the task begin; '
        "without a task they do.",
    )

    def check(self) -> None:
        if self.random_share and self.masking in ("deletion", "none"):
            raise ValueError(
                f'`random_share` requires masks: masking="infilling" or "tokens". Received: '
                f"masking={self.masking!r}, random_share={self.random_share}"
            )

    @property
    def uses_sentences(self) -> bool:
        return self.permuted_share > 0

    def text_length(self, sequence_length: int) -> int:
        return sequence_length - 2

    def target_length(self, sequence_length: int) -> int:
        return sequence_length - (self.targets_begin is False)

    def max_masks(self, sequence_length: int) -> int:
        """Returns K, the maximum number of masked tokens or spans of a row.

        For spans it is six standard deviations above the mean: the number of spans for m tokens is
        m / λ on average, with a variance of m / λ².
        """
        tokens = math.ceil(self.text_length(sequence_length) * self.masked_share)
        if self.masking != "infilling":
            return tokens
        spans = tokens / self.mean_span + 6 * math.sqrt(tokens) / self.mean_span
        return min(tokens, math.ceil(spans) + 4)

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        ids, length = text.ids, text.length
        if self.permuted_share:
            ids = permuted(fold(keys, _ORDER), text, self.permuted_share)
        if self.masking != "none":
            columns = self.max_masks(sequence_length)
            ids, length = self._masked(keys, ids, length, tokenizer, columns)
        if self.rotated_share:
            ids = self._rotated(fold(keys, _ROTATION), ids, length)
        specials = {"pad_id": tokenizer.pad_id, "sep_id": tokenizer.sep_id}
        cls_id = tokenizer.cls_id
        target_cls = {} if self.targets_begin is False else {"cls_id": cls_id}
        target_length = self.target_length(sequence_length)
        return Sides(
            *frame(ids, length, sequence_length, cls_id=cls_id, **specials),
            *frame(text.ids, text.length, target_length, **target_cls, **specials),
        )

    def _masked(
        self,
        keys: tf.Tensor,
        ids: tf.Tensor,
        length: tf.Tensor,
        tokenizer: Tokenizer,
        columns: int,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Masks or deletes tokens; returns the new ids (N, L) and the new lengths (N,).

        `keys`, `ids` (N, L) and `length` (N,) are those of the rows, `columns` is K.
        """
        masked = span_counts(length, self.masked_share)
        if self.masking == "infilling":
            sizes, count = span_lengths(fold(keys, _LENGTH), masked, self.mean_span, columns)
        else:
            count = masked
            sizes = tf.cast(tf.range(columns) < count[:, None], tf.int32)
        places, used = sample_sorted(fold(keys, _PLACE), length - masked + count, count, columns)
        width = ids.shape[1]
        # Column L collects what is not used.
        places = tf.where(used, places, width)
        if self.masking == "deletion":
            # Places count the deleted tokens too; in the new text, those before are missing.
            at = tf.where(used, places - tf.range(columns), width)
            shift = tf.cumsum(scatter_rows(at, tf.ones_like(at), width + 1)[:, :-1], 1)
            return gather_rows(ids, tf.range(width) + shift), length - masked
        # After a mask, the new text continues with the token after the span.
        shift = tf.cumsum(scatter_rows(places, sizes - 1, width + 1)[:, :-1], 1)
        new_ids = gather_rows(ids, tf.range(width) + shift)
        masks = self._mask_ids(keys, tokenizer, columns)
        masks = scatter_rows(places, tf.broadcast_to(masks + 1, tf.shape(places)), width + 1)
        masks = masks[:, :-1]
        return tf.where(masks > 0, masks - 1, new_ids), length - masked + count

    def _mask_ids(self, keys: tf.Tensor, tokenizer: Tokenizer, columns: int) -> tf.Tensor:
        """Returns the ids of a row's masks, (N, K) or a scalar: the mask token or random ones."""
        if not self.random_share:
            return tf.constant(tokenizer.mask_id)
        number = tf.range(columns)[None]
        is_random = chance(fold(fold(keys, _ACTION)[:, None], number), self.random_share)
        random_ids = below(fold(fold(keys, _TOKEN)[:, None], number), tokenizer.vocabulary_size)
        return tf.where(is_random, random_ids, tokenizer.mask_id)

    def _rotated(self, keys: tf.Tensor, ids: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Rotates a share of the rows `ids` (N, L), of `length` (N,) tokens each."""
        offset = tf.where(chance(keys, self.rotated_share), below(fold(keys, 0), length), 0)
        column = tf.range(ids.shape[1]) + offset[:, None]
        column = tf.where(column < length[:, None], column, column - length[:, None])
        return gather_rows(ids, column)


def poisson_bounds(mean: float) -> np.ndarray:
    """Returns the probabilities of at most 0, 1, … events, times 2**32 and rounded, as int64.

    Larger numbers than the last one have a probability below 2**-33.

    >>> (poisson_bounds(3.0)[:3] / 2**32).round(4).tolist()
    [0.0498, 0.1991, 0.4232]
    """
    shares: list[float] = []
    share, number = math.exp(-mean), 0
    while not shares or sum(shares) < 1 - 2**-33:
        shares.append(share)
        number += 1
        share *= mean / number
    return np.round(np.cumsum(shares) * 2**32).astype(np.int64)


def span_lengths(
    keys: tf.Tensor, total: tf.Tensor, mean: float, columns: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws Poisson numbers until their sum reaches a total; the last one is set to fit.

    Args:
        keys: (N,) uint64, random key of each row.
        total: (N,) int32, sum of the lengths of a row.
        mean: mean of the Poisson numbers.
        columns: K, maximum number of lengths of a row. A row also has at most `total` lengths.

    Returns:
        The lengths, (N, K) int32, and their number in each row, (N,) int32. In further columns the
        lengths are 0.

    Example:
        >>> sizes, count = span_lengths(fold(0, tf.range(2)), tf.constant([9, 2]), 3.0, 5)
        >>> sizes.numpy().tolist(), count.numpy().tolist()
        ([[4, 4, 1, 0, 0], [2, 0, 0, 0, 0]], [3, 1])
    """
    bits = fold(keys[:, None], tf.range(columns))  # (N, K)
    high = tf.cast(tf.bitwise.right_shift(bits, tf.constant(32, tf.uint64)), tf.int64)
    bounds = tf.constant(poisson_bounds(mean))
    drawn = tf.searchsorted(bounds, tf.reshape(high, [-1]), side="right")
    drawn = tf.reshape(drawn, tf.shape(high))
    end = tf.cumsum(drawn, 1)
    reached = tf.reduce_sum(tf.cast(end < total[:, None], tf.int32), 1) + 1
    count = tf.minimum(reached, tf.minimum(total, columns))
    number, last = tf.range(columns), count[:, None] - 1
    rest = total[:, None] - (end - drawn)
    sizes = tf.where(number < last, drawn, tf.where(number == last, rest, 0))
    return sizes, count
