"""Texts as they are given: a list of strings, in parts whose tokens fit into memory."""

from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from kbert.core.in_memory import each_text

READ_WHOLE = "; with doc_stride=… they are read whole, in windows"  # a remedy of `warn_of_cut`
CHUNK = 8192  # texts tokenised at a time: bounds the memory of an endless list


def as_texts(texts: Any, what: str = "texts", start: int = 0) -> list[str | bytes]:
    """A list of strings from one string, a list, an array, or the column `text` of other data.

    Args:
        texts: one string, or what `kbert.core.in_memory.each_text` takes.
        what: what an error calls them.
        start: the number of the first in an error.

    Raises:
        TypeError: if an element is not a string.
        ValueError: for a set, which has no order, and for data that is of no kind that is known.
    """
    if isinstance(texts, str | bytes):
        return [texts]
    return list(each_text(texts, what, start))


def chunks(items: Sequence) -> Iterator[tuple[int, Sequence]]:
    """Consecutive slices of at most `CHUNK` items, each with the number of its first."""
    return ((i, items[i : i + CHUNK]) for i in range(0, len(items), CHUNK))


def warn_of_cut(cut: int, count: int, length: int, what: str = "", remedy: str = "") -> None:
    """Warns that `cut` of `count` examples have more tokens than rows of that length, if any do.

    Args:
        cut: how many examples lost tokens.
        count: how many examples there are.
        length: the most tokens that a row holds.
        what: what is before "examples", with a space behind it.
        remedy: what the message ends with.
    """
    if cut:
        logging.warning(
            "%d of %d %sexamples are too long for rows of %d tokens and are cut%s",
            *(cut, count, what, length, remedy),
        )
