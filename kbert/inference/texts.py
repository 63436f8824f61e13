"""Texts from users as lists of strings, split into parts whose tokens fit into memory."""

from collections.abc import Iterator, Sequence
from typing import Any

from absl import logging

from kbert.core.in_memory import each_text

READ_WHOLE = "; with doc_stride=… they are read in full, in windows"  # `remedy` of `warn_of_cut`
CHUNK = 8192  # number of texts tokenised at a time: limits the memory for any number of texts


def as_texts(texts: Any, what: str = "texts", start: int = 0) -> list[str | bytes]:
    """Returns a list of strings from a string, a list, an array, or a column `text` of other data.

    Args:
        texts: one string, or data in any form that `kbert.core.in_memory.each_text` accepts.
        what: name of the texts in error messages.
        start: number of the first text in error messages.

    Raises:
        TypeError: an element is not a string.
        ValueError: the data are a set, which has no order, or of an unknown kind.
    """
    if isinstance(texts, str | bytes):
        return [texts]
    return list(each_text(texts, what, start))


def chunks(items: Sequence) -> Iterator[tuple[int, Sequence]]:
    """Yields consecutive slices of at most `CHUNK` items, each with its first item's number."""
    return ((i, items[i : i + CHUNK]) for i in range(0, len(items), CHUNK))


def warn_of_cut(cut: int, count: int, length: int, what: str = "", remedy: str = "") -> None:
    """Warns that `cut` of `count` examples are truncated, if any are.

    Args:
        cut: number of truncated examples.
        count: number of examples.
        length: maximum number of tokens in a row.
        what: text before "examples" in the message, with a space at its end.
        remedy: end of the message: what the user can do.
    """
    if cut:
        logging.warning(
            "%d of %d %sexamples are longer than %d tokens and are truncated%s",
            *(cut, count, what, length, remedy),
        )
