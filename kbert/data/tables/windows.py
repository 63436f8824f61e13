"""Splits texts that are longer than the encoder's maximum into overlapping windows.

Classifiers, features and questions use the same rule (`doc_stride` of google-research/bert's
run_squad.py). It is computed in closed form for any number of texts, in a graph and eagerly.
Windows of whole words, for word labels, are in `kbert.data.tables.words`.

Only core TensorFlow operations are used, as in `kbert.tokenizers.packing`.

Shapes: B texts, W windows of all texts together, P tokens of all windows together.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from kbert.core.late import tf
from kbert.tokenizers.packing import pair_lengths, pair_limits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """The positions of windows, counted in tokens of their texts.

    Attributes:
        text: (W,) int32, index of each window's text; windows of a text are consecutive.
        number: (W,) int32, number of the window within its text, from 0.
        starts: (W,) int32, first token of each window.
        sizes: (W,) int32, number of tokens in each window.
        counts: (B,) int32, number of windows of each text: at least 1, even for an empty text.
        steps: (B,) int32, tokens from the start of a window to that of the next.
        budget: (B,) int32, number of tokens in each window but the last.
        lengths: (B,) int32, number of tokens in each text.
    """

    text: tf.Tensor
    number: tf.Tensor
    starts: tf.Tensor
    sizes: tf.Tensor
    counts: tf.Tensor
    steps: tf.Tensor
    budget: tf.Tensor
    lengths: tf.Tensor

    def positions(self) -> tf.RaggedTensor:
        """Returns the positions in the text of each window's tokens, (W, ragged) int32."""
        return tf.ragged.range(self.starts, self.starts + self.sizes)

    def most_context(self) -> tf.RaggedTensor:
        """Returns whether each window shows most context around each of its tokens.

        The result is (W, ragged) bool, True in exactly one of the windows with a token. A window
        scores the number of tokens to the left or to the right of the token, whichever is smaller,
        plus a hundredth of its own size. On a tie the first window is chosen (run_squad.py,
        `_check_is_max_context`).
        """
        positions = self.positions()
        window = positions.value_rowids()
        p = positions.flat_values  # (P,)
        text = tf.gather(self.text, window)
        budget, step = tf.gather(self.budget, text), tf.gather(self.steps, text)
        length = tf.gather(self.lengths, text)
        last = tf.gather(self.counts, text) - 1

        def score(number: tf.Tensor) -> tf.Tensor:
            start = number * step
            size = tf.minimum(budget, length - start)
            around = tf.minimum(p - start, start + size - 1 - p)
            # float64 as in Python's run_squad.py, so that ties are the same.
            total = tf.cast(around, tf.float64) + 0.01 * tf.cast(size, tf.float64)
            return tf.where(around < 0, tf.constant(-1.0, tf.float64), total)

        # Windows before the last have the same size, so the best of them is the one whose centre is
        # nearest to the token. The last window may be shorter, and is compared separately.
        nearest = (2 * p - (budget - 1)) // (2 * step)
        best = tf.clip_by_value(nearest, 0, tf.maximum(last - 1, 0))
        for candidate in (tf.clip_by_value(nearest + 1, 0, tf.maximum(last - 1, 0)), last):
            best = tf.where(score(candidate) > score(best), candidate, best)
        return positions.with_flat_values(best == tf.gather(self.number, window))


def cut_windows(lengths: Any, budget: Any, doc_stride: int) -> Windows:
    """Splits texts into windows; the last window of a text ends with the text.

    Args:
        lengths: (B,), number of tokens in each text.
        budget: (B,), number of tokens in a window of each text.
        doc_stride: tokens from the start of a window to that of the next, 1 or more; at most the
            budget is used, so that no token is skipped.

    Returns:
        The windows, those of the first text first. A text that fits is one window.

    Example:
        >>> windows = cut_windows([10, 3], [6, 6], 3)
        >>> windows.positions().to_list()
        [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9], [0, 1, 2]]
        >>> windows.most_context()[0].numpy().tolist()
        [True, True, True, True, True, False]
    """
    lengths, budget = (tf.cast(x, tf.int32) for x in (lengths, budget))
    steps = tf.maximum(tf.minimum(doc_stride, budget), 1)
    counts = window_counts(lengths, budget, doc_stride)
    text = tf.repeat(tf.range(tf.size(counts)), counts)
    number = tf.cast(tf.ragged.range(counts).flat_values, tf.int32)
    starts = number * tf.gather(steps, text)
    return Windows(
        text=text,
        number=number,
        starts=starts,
        sizes=tf.minimum(tf.gather(budget, text), tf.gather(lengths, text) - starts),
        counts=counts,
        steps=steps,
        budget=budget,
        lengths=lengths,
    )


def window_counts(lengths: Any, budgets: Any, doc_stride: int) -> tf.Tensor:
    """Returns how many windows of `budgets` tokens cover texts of `lengths` tokens, (B,) int32.

    A window begins `doc_stride` tokens after the one before, or `budgets` tokens if that is less.
    An empty text has one window.

    >>> window_counts([0, 3, 5], [3, 3, 3], doc_stride=2).numpy().tolist()
    [1, 1, 2]
    """
    lengths, budgets = (tf.cast(x, tf.int32) for x in (lengths, budgets))
    step = tf.maximum(tf.minimum(doc_stride, budgets), 1)
    return 1 + (tf.maximum(lengths - budgets, 0) + step - 1) // step


def text_windows(
    ids: tf.RaggedTensor, budget: int, doc_stride: int
) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Splits the tokens of single texts into windows.

    Args:
        ids: (B, ragged), token ids of the texts.
        budget: number of tokens in a window.
        doc_stride: tokens from the start of a window to that of the next, 1 or more.

    Returns:
        Windows (W, ragged), and the number of windows of each text, (B,) int32: at least one.

    Example:
        >>> ids = tf.ragged.constant([[1, 2, 3, 4, 5], [6]], dtype=tf.int32)
        >>> windows, counts = text_windows(ids, budget=3, doc_stride=2)
        >>> windows.to_list(), counts.numpy().tolist()
        ([[1, 2, 3], [3, 4, 5], [6]], [2, 1])
    """
    lengths = tf.cast(ids.row_lengths(), tf.int32)
    windows = cut_windows(lengths, tf.fill(tf.shape(lengths), budget), doc_stride)
    return _slices(ids, windows.text, windows.starts, windows.sizes), windows.counts


Span: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"


def pair_spans(
    first: Any, second: Any, budget: int, doc_stride: int
) -> tuple[Windows, tuple[Span, Span]]:
    """Plans the windows of pairs: windows over the longer text, each with the shorter text.

    The first window equals the truncated pair without windows. If both texts have more than half of
    the budget, the shorter one is truncated to that half.

    Args:
        first: (B,) int32, number of tokens in each first text.
        second: (B,) int32, number of tokens in each second text.
        budget: number of tokens of both texts together in a window.
        doc_stride: tokens from the start of a window to that of the next, 1 or more.

    Returns:
        The windows over the longer text; then for both texts the part in each window: its first
        token (W,) and its number of tokens (W,), int32.
    """
    limits = pair_limits(first, second, budget)
    first_is_longer = first > second
    longer, budgets = tf.where(first_is_longer, first, second), tf.where(first_is_longer, *limits)
    windows = cut_windows(longer, budgets, doc_stride)
    slides = tf.gather(first_is_longer, windows.text)

    def span(slides: tf.Tensor, keep: tf.Tensor) -> Span:
        sizes = tf.where(slides, windows.sizes, tf.gather(keep, windows.text))
        return tf.where(slides, windows.starts, 0), sizes

    return windows, (span(slides, limits[0]), span(~slides, limits[1]))


def pair_windows(
    first: tf.RaggedTensor, second: tf.RaggedTensor, budget: int, doc_stride: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]:
    """Splits the tokens of pairs into windows, see `pair_spans`.

    Args:
        first: (B, ragged), token ids of the first texts.
        second: (B, ragged), token ids of the second texts.
        budget: number of tokens of both texts together in a window.
        doc_stride: tokens from the start of a window to that of the next, 1 or more.

    Returns:
        Both texts of the windows (W, ragged), and the number of windows of each pair, (B,) int32.

    Example:
        >>> question = tf.ragged.constant([[1, 2]], dtype=tf.int32)
        >>> text = tf.ragged.constant([[5, 6, 7, 8, 9]], dtype=tf.int32)
        >>> first, second, counts = pair_windows(question, text, budget=5, doc_stride=2)
        >>> first.to_list(), second.to_list()
        ([[1, 2], [1, 2]], [[5, 6, 7], [7, 8, 9]])
    """
    windows, spans = pair_spans(*pair_lengths(first, second), budget, doc_stride)
    first, second = (
        _slices(ids, windows.text, *span) for ids, span in zip((first, second), spans, strict=True)
    )
    return first, second, windows.counts


def _slices(
    ids: tf.RaggedTensor, row: tf.Tensor, starts: tf.Tensor, sizes: tf.Tensor
) -> tf.RaggedTensor:
    """Returns `ids[row, start : start + size]` for each window, (W, ragged).

    `ids` is (B, ragged); `row`, `starts` and `sizes` are (W,).
    """
    begin = tf.gather(tf.cast(ids.row_starts(), tf.int32), row) + starts
    index = tf.ragged.range(begin, begin + sizes, row_splits_dtype=tf.int64)
    return index.with_flat_values(tf.gather(ids.flat_values, index.flat_values))
