"""Intermediate file of `prepare_corpus`: one chunk of text as tokenised documents.

Documents are sorted by the hash of their content. A shard is a range of hashes, so it is one
contiguous slice of each spill. Layout: six int64 (`_HEADER`), then the arrays of `Segment` one
after the other.
"""

import dataclasses

import numpy as np

from kbert.io import atomic

_HEADER = ("documents", "sentences", "tokens", "text_bytes", "documents_read", "empty_documents")


@dataclasses.dataclass(frozen=True)
class Segment:
    """D documents sorted by hash, with S sentences and N tokens in total.

    Attributes:
        high, low: (D,) uint64, the two halves of each document's 128-bit hash.
        sentence_starts: (D + 1,) int64, first sentence of each document, and S.
        token_starts: (D + 1,) int64, first token of each document, and N.
        sentences: (S,) int32, tokens per sentence.
        tokens: (N,) ids.
    """

    high: np.ndarray
    low: np.ndarray
    sentence_starts: np.ndarray
    token_starts: np.ndarray
    sentences: np.ndarray
    tokens: np.ndarray

    def between(self, first: int, last: int) -> "Segment":
        """Copies the documents whose hashes have a high half in first … last, both included."""
        begin = np.searchsorted(self.high, np.uint64(first), "left")
        end = np.searchsorted(self.high, np.uint64(last), "right")
        sentence_starts = np.array(self.sentence_starts[begin : end + 1])
        token_starts = np.array(self.token_starts[begin : end + 1])
        return Segment(
            high=np.array(self.high[begin:end]),
            low=np.array(self.low[begin:end]),
            sentence_starts=sentence_starts - sentence_starts[0],
            token_starts=token_starts - token_starts[0],
            sentences=np.array(self.sentences[sentence_starts[0] : sentence_starts[-1]]),
            tokens=np.array(self.tokens[token_starts[0] : token_starts[-1]]),
        )


def distinct_order(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Returns indices that sort documents by hash, only the first of those with an equal hash.

    `high` and `low`, (D,) each, are the halves of the documents' hashes.

    >>> distinct_order(np.array([5, 2, 5, 2]), np.array([1, 9, 1, 0])).tolist()
    [3, 1, 0]
    """
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return order[is_new]


def write(path: str, segment: Segment, counts: dict[str, int]) -> None:
    """Writes a spill, whole or not at all.

    Args:
        path: path of the file.
        segment: sorted documents without duplicates.
        counts: `text_bytes`, `documents_read` and `empty_documents` of the chunk.
    """
    sizes = {
        "documents": len(segment.high),
        "sentences": len(segment.sentences),
        "tokens": len(segment.tokens),
        **counts,
    }
    header = np.array([sizes[name] for name in _HEADER], np.int64)
    arrays = [getattr(segment, field.name) for field in dataclasses.fields(Segment)]
    atomic.write(path, header.tobytes(), *(memoryview(array).cast("B") for array in arrays))


class Spill:
    """A memory-mapped spill; only the copies made by `Segment.between` are in memory.

    `path` is the path of the file, `dtype` the type of its ids.

    Attributes:
        counts: name -> number, for the names in `_HEADER`.
        segment: all documents of the spill, on disk.
    """

    def __init__(self, path: str, dtype: str) -> None:
        with open(path, "rb") as file:
            header = np.fromfile(file, np.int64, len(_HEADER))
        self.counts: dict[str, int] = dict(zip(_HEADER, header.tolist(), strict=True))
        documents, sentences, tokens = header[:3]
        self._raw = np.memmap(path, np.uint8, "r")
        self._end = header.nbytes
        self.segment = Segment(
            high=self._take(np.uint64, documents),
            low=self._take(np.uint64, documents),
            sentence_starts=self._take(np.int64, documents + 1),
            token_starts=self._take(np.int64, documents + 1),
            sentences=self._take(np.int32, sentences),
            tokens=self._take(dtype, tokens),
        )

    def _take(self, dtype: type[np.integer] | str, count: int) -> np.ndarray:
        start = self._end
        self._end = start + int(count) * np.dtype(dtype).itemsize
        return self._raw[start : self._end].view(dtype)

    def two_hashes(self, first: int) -> set[tuple[int, int]]:
        """Returns the hashes (high half, low half) of at most two documents.

        They are the first two whose high half is `first` or above.
        """
        high, low = self.segment.high, self.segment.low
        begin = np.searchsorted(high, np.uint64(first), "left")
        pairs = zip(high[begin : begin + 2], low[begin : begin + 2], strict=True)
        return {(int(high), int(low)) for high, low in pairs}


def join(segments: list[Segment]) -> Segment:
    """Joins segments into one, in the order given (no longer sorted)."""

    def starts(name: str) -> np.ndarray:
        lengths = [np.diff(getattr(segment, name)) for segment in segments]
        return np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)

    def values(name: str) -> np.ndarray:
        return np.concatenate([getattr(segment, name) for segment in segments])

    return Segment(
        high=values("high"),
        low=values("low"),
        sentence_starts=starts("sentence_starts"),
        token_starts=starts("token_starts"),
        sentences=values("sentences"),
        tokens=values("tokens"),
    )
