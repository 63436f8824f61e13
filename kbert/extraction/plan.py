"""Where the tokens of texts are in the rows that an encoder reads.

A row is [CLS] first [SEP], or [CLS] first [SEP] second [SEP]; of XLNet first [SEP] second [SEP]
[CLS]. A text that is longer than a row is
cut, or read in windows that overlap. Its vectors are then put together as those of one long row.

Shapes: `N` texts, `W` windows, `T` tokens of a text with its special tokens, `D` width.
"""

from typing import NamedTuple

import numpy as np

from kbert.data.tables.inputs import pair_limits
from kbert.data.tables.windows import pair_spans


class Window(NamedTuple):
    """A part of a text, or of both texts of a pair.

    Attributes:
        text: the number of the text.
        first_start, first_end: its tokens of the (first) text.
        second_start, second_end: its tokens of the second text; 0 and 0 without one.
    """

    text: int
    first_start: int
    first_end: int
    second_start: int
    second_end: int

    @property
    def size(self) -> int:
        """Its tokens, without special ones."""
        return self.first_end - self.first_start + self.second_end - self.second_start


class Layout(NamedTuple):
    """The one long row of a text.

    Attributes:
        first: tokens of the (first) text.
        second: tokens of the second text, 0 without one.
        separators: special tokens between the two, 0 for a single text.
        cls_last: whether [CLS] is behind the texts.
    """

    first: int
    second: int
    separators: int
    cls_last: bool = False

    @property
    def begin(self) -> int:
        """The column of the first token of the texts."""
        return 0 if self.cls_last else 1

    @property
    def cls_column(self) -> int:
        """The column of [CLS]."""
        return self.length - 1 if self.cls_last else 0

    @property
    def length(self) -> int:
        """T."""
        return 2 + self.first + self.separators + self.second

    def places(self, window: Window) -> np.ndarray:
        """Where the tokens of a window's row are in the long row."""
        between = self.begin + self.first + np.arange(self.separators)
        second = self.begin + self.first + self.separators
        return np.concatenate([
            np.arange(self.begin),
            self.begin + np.arange(window.first_start, window.first_end),
            between,
            second + np.arange(window.second_start, window.second_end),
            np.arange(self.length - 2 + self.begin, self.length),
        ])  # fmt: skip

    def is_special(self) -> np.ndarray:
        """(T,) bool."""
        special = np.zeros(self.length, bool)
        special[: self.begin] = special[self.length - 2 + self.begin :] = True
        end = self.begin + self.first
        special[end : end + self.separators] = True
        return special

    def segments(self) -> np.ndarray:
        """(T,), 1 for the second text and the [SEP] after it; 2 for [CLS] behind them."""
        second = self.begin + self.first + self.separators
        segments = (np.arange(self.length) >= second).astype(np.int32) * bool(self.separators)
        if self.cls_last:
            segments[-1] = 2
        return segments

    def stitch(self, windows: list[tuple[Window, np.ndarray]]) -> np.ndarray:
        """The long row's vectors; a token in several windows has the mean of its vectors there.

        Args:
            windows: each with its row of vectors (tokens, D).

        Returns:
            (T, D).
        """
        if len(windows) == 1:
            return windows[0][1]
        whole = np.zeros((self.length, windows[0][1].shape[1]), np.float32)
        counts = np.zeros((self.length, 1), np.float32)
        for window, row in windows:
            places = self.places(window)  # each position at most once
            whole[places] += row
            counts[places] += 1
        return whole / counts


def plan_windows(
    first: np.ndarray, second: np.ndarray, budget: int, doc_stride: int | None
) -> tuple[list[Window], np.ndarray]:
    """Cuts texts or pairs into windows.

    The windows of a pair slide over the longer text, and the shorter one is in each of them.

    Args:
        first: (N,), tokens of each (first) text.
        second: (N,), tokens of each second text; 0 for single texts.
        budget: tokens of a row that are left for texts.
        doc_stride: tokens from the start of a window to that of the next; None = one window each.

    Returns:
        Windows, those of a text in sequence, and (N, 2) the tokens of each text in any of its
        windows: fewer than it has where it is cut.

    Example:
        >>> windows, kept = plan_windows(np.array([2, 9]), np.zeros(2), budget=5, doc_stride=3)
        >>> [(window.text, window.first_start, window.first_end) for window in windows]
        [(0, 0, 2), (1, 0, 5), (1, 3, 8), (1, 6, 9)]
    """
    first, second = np.asarray(first, np.int32), np.asarray(second, np.int32)
    kept = np.stack(pair_limits(first, second, budget), 1)
    if doc_stride is None:
        return [Window(n, 0, a, 0, b) for n, (a, b) in enumerate(kept.tolist())], kept
    windows, spans = pair_spans(first, second, budget, doc_stride)
    sides = [side for starts, sizes in spans for side in (starts, starts + sizes)]
    rows = np.stack([windows.text, *sides], 1)
    np.maximum.at(kept, rows[:, 0], rows[:, [2, 4]])
    return [Window(*row) for row in rows.tolist()], kept
