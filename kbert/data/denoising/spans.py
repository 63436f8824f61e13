"""T5's span corruption: sentinels replace spans of the source, and the spans are the target.

Source: Raffel et al. 2020, sections 3.1.4 and 3.3.4 (arXiv:1910.10683); `random_spans_noise_mask`,
`random_spans_helper` and `noise_span_to_unique_sentinel` in t5/data/preprocessors.py of
google-research/text-to-text-transfer-transformer.

Shapes: N rows, L text tokens of a row, K spans of a row.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import ClassVar

import numpy as np

from kbert.core.late import tf
from kbert.core.options import option
from kbert.data.denoising.noise import Noise, Sides, Text, compact, frame, scatter_rows
from kbert.data.masking.hashing import fold
from kbert.data.masking.tokens import sample_sorted
from kbert.tokenizers.base import Tokenizer

_MASKED, _KEPT = 0, 1  # streams of draws under a row's key
_LONGEST = 2**17  # text tokens of a row
_SENTINELS = (r"<extra_id_(\d+)>", r"\[unused(\d+)\]")


class SpanCorruption(Noise):
    """T5's span corruption.

    A row begins with text that is kept, and then masked and kept spans alternate; so it ends with a
    masked span. The number of masked tokens and of spans depends on the row's length only. All
    masks with these numbers are equally likely. In the source a sentinel replaces each masked span,
    in the target one replaces each kept span. Sentinels are the tokens "<extra_id_0>",
    "<extra_id_1>", … of the vocabulary, as in T5's; without any, "[unused0]" or "[unused1]" and so
    on, as in BERT's.

    Args:
        {options}
    """

    kind = "t5"
    segments: ClassVar[str] = "joined"

    masked_share: float = option(0.15, help="Share of the tokens to mask.", above=0, below=1)
    mean_span: float = option(3.0, help="Mean number of tokens of a masked span.", at_least=1)

    def check(self) -> None:
        if self.masked_share > self.mean_span / (1 + self.mean_span):
            raise ValueError(
                "`masked_share` must leave a token between masked spans: it must be at most "
                "mean_span / (1 + mean_span). Received: "
                f"masked_share={self.masked_share}, mean_span={self.mean_span}"
            )

    def text_length(self, sequence_length: int) -> int:
        return span_sizes(sequence_length, self.masked_share, self.mean_span)[0]

    def target_length(self, sequence_length: int) -> int:
        return span_sizes(sequence_length, self.masked_share, self.mean_span)[1]

    def check_tokenizer(self, tokenizer: Tokenizer, sequence_length: int) -> None:
        super().check_tokenizer(tokenizer, sequence_length)
        required = self.max_spans(sequence_length)
        available = len(self.sentinel_ids(tokenizer))
        if available < required:
            raise ValueError(
                f"sequence_length={sequence_length} requires {required} sentinels, one for each "
                "masked span of a row, which are tokens named <extra_id_0>, <extra_id_1>, … or "
                "[unused0], [unused1], …: use a vocabulary with more of them, such as T5's, "
                "BERT's, or one of kbert-prepare-corpus --num_sentinels; or raise `mean_span`. "
                f"Received: {available}"
            )

    def max_spans(self, sequence_length: int) -> int:
        """Returns the number of masked spans of a full row."""
        _, spans = span_counts(self.text_length(sequence_length), self.masked_share, self.mean_span)
        return int(spans[-1])

    def sentinel_ids(self, tokenizer: Tokenizer) -> list[int]:
        """Returns the ids of the sentinels, in the order of their use."""
        for pattern in _SENTINELS:
            matches = (re.fullmatch(pattern, token) for token in tokenizer.vocabulary)
            ids = {int(match[1]): i for i, match in enumerate(matches) if match}
            if ids:
                first = min(ids)
                is_next = (number in ids for number in itertools.count(first))
                count = sum(itertools.takewhile(bool, is_next))
                return [ids[number] for number in range(first, first + count)]
        return []

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        masked_count, span_count = (
            tf.gather(tf.constant(table, tf.int32), tf.maximum(text.length, 2))
            for table in span_counts(text.width, self.masked_share, self.mean_span)
        )
        columns = self.max_spans(sequence_length)
        kept_count = tf.maximum(text.length, 2) - masked_count
        masked, used = _segmentation(fold(keys, _MASKED), masked_count, span_count, columns)
        kept, _ = _segmentation(fold(keys, _KEPT), kept_count, span_count, columns)
        # Column L collects what is not used, and the second token of a row of one token.
        width = text.width + 1
        kept_start = tf.where(used, kept[:, :-1] + masked[:, :-1], width - 1)
        masked_start = tf.where(used, kept[:, 1:] + masked[:, :-1], width - 1)
        begins_kept = scatter_rows(kept_start, tf.ones_like(kept_start), width)[:, :-1]
        begins_masked = scatter_rows(masked_start, tf.ones_like(kept_start), width)[:, :-1]
        number = tf.cumsum(begins_kept, 1) - 1  # (N, L): of the pair of spans
        is_masked = tf.cumsum(begins_masked, 1) > number
        sentinels = tf.gather(
            tf.constant(self.sentinel_ids(tokenizer)[:columns], tf.int32),
            tf.clip_by_value(number, 0, columns - 1),
        )
        begins_kept, begins_masked = begins_kept > 0, begins_masked > 0

        def side(is_hidden: tf.Tensor, begins_hidden: tf.Tensor, width: int) -> tuple:
            ids = tf.where(begins_hidden, sentinels, text.ids)
            keep = text.inside & (begins_hidden | ~is_hidden)
            ids, length = compact(ids, keep, width - 1)
            return frame(ids, length, width, pad_id=tokenizer.pad_id, sep_id=tokenizer.sep_id)

        return Sides(
            *side(is_masked, begins_masked, sequence_length),
            *side(~is_masked, begins_kept, self.target_length(sequence_length)),
        )


def _segmentation(
    keys: tf.Tensor, total: tf.Tensor, count: tf.Tensor, columns: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Divides items into segments that are not empty, uniformly at random.

    Args:
        keys: (N,) uint64, random key of each row.
        total: (N,) int32, number of items.
        count: (N,) int32, number of segments, at most `total` and `columns`.
        columns: K, maximum number of segments.

    Returns:
        The starts of the segments and the end of the last one, (N, K + 1) int32, `total` in further
        columns; and (N, K) bool, True for the segments of the row.
    """
    starts, used = sample_sorted(keys, total - 1, count - 1, columns - 1)
    starts = tf.where(used, starts + 1, total[:, None])
    starts = tf.concat([tf.zeros_like(total)[:, None], starts, total[:, None]], 1)
    return starts, tf.range(columns) < count[:, None]


@functools.lru_cache
def span_counts(
    longest: int, masked_share: float, mean_span: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of masked tokens and of spans for rows of 0 to `longest` tokens.

    Both are int64 arrays (max(`longest`, 2) + 1,). Numbers are rounded in float32, as in T5's code.
    A row of less than two tokens has the numbers of two.

    >>> masked, spans = span_counts(568, 0.15, 3.0)
    >>> int(masked[568]), int(spans[568])
    (85, 28)
    """
    length = np.maximum(np.arange(max(longest, 2) + 1), 2)
    masked = np.round(length.astype(np.float32) * np.float32(masked_share)).astype(np.int64)
    masked = np.clip(masked, 1, length - 1)
    spans = np.round(masked.astype(np.float32) / np.float32(mean_span)).astype(np.int64)
    # T5's code fails on the few short rows with less kept tokens than spans.
    return masked, np.clip(spans, 1, length - masked)


@functools.lru_cache
def span_sizes(sequence_length: int, masked_share: float, mean_span: float) -> tuple[int, int]:
    """Returns the number of text tokens for which a source fills a row, and that of its targets.

    The text is as long as in T5's code, which rounds in float64 here, or shorter if the source
    would not fit as `span_counts` rounds. Both sides end with a special token. `sequence_length` is
    the number of tokens of the source.

    >>> span_sizes(512, 0.15, 3.0)
    (568, 114)
    """
    lengths = np.arange(_LONGEST)
    masked = np.round(lengths * masked_share)
    spans = np.round(masked / mean_span)
    length = _longest(lengths - masked + spans + 1, sequence_length)
    # As in T5's code: targets are not longer than the source.
    if masked_share == 0.5 and masked[length] > length - masked[length]:
        length -= 1
    masked, spans = span_counts(length, masked_share, mean_span)
    source = np.arange(len(masked)) - masked + spans + 1
    length = min(length, _longest(source, sequence_length))
    return length, int(masked[length] + spans[length]) + 1


def _longest(sources: np.ndarray, sequence_length: int) -> int:
    """Returns the last index of the ascending `sources` with at most `sequence_length` tokens."""
    return int(np.searchsorted(sources, sequence_length, side="right")) - 1
