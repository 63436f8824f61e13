"""Positions of a text's tokens in the sequences that an encoder reads.

A sequence is [CLS] first [SEP], or [CLS] first [SEP] second [SEP]; for XLNet it is first [SEP]
second [SEP] [CLS], and sources of T5 have no [CLS]. A text that is longer than a sequence is
truncated, or read in overlapping windows. The vectors of its windows are then merged into those of
one full sequence.

Shapes: `N` texts, `T` tokens of a text with its special tokens, `D` width.
"""

from typing import NamedTuple

import numpy as np

from kbert.data.tables.windows import pair_spans
from kbert.tokenizers.packing import pair_limits


class Window(NamedTuple):
    """A window of a text, or of both texts of a pair.

    Attributes:
        text: number of the text.
        first_start, first_end: start and end of the window in tokens of the (first) text.
        second_start, second_end: start and end in tokens of the second text; 0 and 0 without one.
    """

    text: int
    first_start: int
    first_end: int
    second_start: int
    second_end: int

    @property
    def size(self) -> int:
        """Number of tokens in the window, without special tokens."""
        return self.first_end - self.first_start + self.second_end - self.second_start


class Layout(NamedTuple):
    """Layout of a text's full sequence, which may be longer than the encoder's.

    Attributes:
        first: number of tokens of the (first) text.
        second: number of tokens of the second text, 0 without one.
        separators: number of special tokens between the two, 0 for a single text.
        begin: number of special tokens before the texts, and column of their first token.
        end: number of special tokens after the texts; with two the last one is [CLS].
    """

    first: int
    second: int
    separators: int
    begin: int = 1
    end: int = 1

    @property
    def cls_column(self) -> int | None:
        """Column of [CLS], None without one."""
        return 0 if self.begin else self.length - 1 if self.end == 2 else None

    @property
    def length(self) -> int:
        """Length of the full sequence, T."""
        return self.begin + self.first + self.separators + self.second + self.end

    def places(self, window: Window) -> np.ndarray:
        """Returns, for each token of a window's sequence, its column in the full sequence.

        Special tokens are included.
        """
        between = self.begin + self.first + np.arange(self.separators)
        second = self.begin + self.first + self.separators
        return np.concatenate([
            np.arange(self.begin),
            self.begin + np.arange(window.first_start, window.first_end),
            between,
            second + np.arange(window.second_start, window.second_end),
            np.arange(self.length - self.end, self.length),
        ])  # fmt: skip

    def is_special(self) -> np.ndarray:
        """Returns (T,) bool, true for special tokens."""
        special = np.zeros(self.length, bool)
        special[: self.begin] = special[self.length - self.end :] = True
        end_of_first = self.begin + self.first
        special[end_of_first : end_of_first + self.separators] = True
        return special

    def segments(self) -> np.ndarray:
        """Segments (T,): 1 for the second text and its [SEP], 2 for a last [CLS]; else 0."""
        second = self.begin + self.first + self.separators
        segments = (np.arange(self.length) >= second).astype(np.int32) * bool(self.separators)
        if self.end == 2:
            segments[-1] = 2
        return segments

    def stitch(self, windows: list[tuple[Window, np.ndarray]]) -> np.ndarray:
        """Merges the vectors of windows; a token in several windows gets the mean of its vectors.

        Args:
            windows: windows of the text, each with its vectors (tokens, D).

        Returns:
            Vectors of the full sequence (T, D).
        """
        if len(windows) == 1:
            return windows[0][1]
        sums = np.zeros((self.length, windows[0][1].shape[1]), np.float32)
        counts = np.zeros((self.length, 1), np.float32)
        for window, row in windows:
            columns = self.places(window)  # each column at most once
            sums[columns] += row
            counts[columns] += 1
        return sums / counts


def plan_windows(
    first: np.ndarray, second: np.ndarray, budget: int, doc_stride: int | None
) -> tuple[list[Window], np.ndarray]:
    """Splits texts or pairs into windows.

    The windows of a pair slide over the longer text, and each includes the shorter one.

    Args:
        first: (N,), number of tokens of each (first) text.
        second: (N,), number of tokens of each second text; 0 for single texts.
        budget: most tokens of texts in a sequence, without special tokens.
        doc_stride: tokens from the start of a window to that of the next; None = one window each.

    Returns:
        Windows, those of a text in order, and (N, 2), the number of tokens of each text that its
        windows cover: fewer than the text has if it is truncated.

    Example:
        >>> windows, kept = plan_windows(np.array([2, 9]), np.zeros(2), budget=5, doc_stride=3)
        >>> [(window.text, window.first_start, window.first_end) for window in windows]
        [(0, 0, 2), (1, 0, 5), (1, 3, 8), (1, 6, 9)]
    """
    first, second = np.asarray(first, np.int32), np.asarray(second, np.int32)
    limits = np.stack(pair_limits(first, second, budget), 1)
    if doc_stride is None:
        return [Window(n, 0, a, 0, b) for n, (a, b) in enumerate(limits.tolist())], limits
    windows, spans = pair_spans(first, second, budget, doc_stride)
    sides = [side for starts, sizes in spans for side in (starts, starts + sizes)]
    rows = np.stack([windows.text, *sides], 1)
    np.maximum.at(limits, rows[:, 0], rows[:, [2, 4]])
    return [Window(*row) for row in rows.tolist()], limits
