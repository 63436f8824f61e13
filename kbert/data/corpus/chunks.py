"""First half of `prepare_corpus`: chunks of text → sentences → ids → one spill file per chunk."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kbert.data.corpus import spill
from kbert.io import fingerprints
from kbert.io.paths import exists
from kbert.text.sentences import split_sentences
from kbert.text.source import Source
from kbert.tokenizers.base import Tokenizer

CHUNK_BYTES = 16 << 20
_SENTENCES_PER_CALL = 8192


class Chunk(NamedTuple):
    """Whole documents, about `CHUNK_BYTES` of text together.

    Attributes:
        text: the documents one after the other, UTF-8.
        lengths: (documents,) int64, bytes of each document.
        consumed: bytes of all sources on disk that had been read when the chunk was full.
        aligned: whether each document is a text and its translation, one line each.
    """

    text: bytes
    lengths: np.ndarray
    consumed: int
    aligned: bool = False

    def name(self, settings: str) -> str:
        """Returns the name of the chunk's intermediate file: a hash of content and `settings`.

        `settings` is a text with all settings of the preparation. A resumed run can reuse a file
        of that name, even if the order of the sources or some of the sources have changed.
        """
        return f"chunk-{fingerprints.blake2b([settings, self.lengths, self.text])}.spill"


def chunks(sources: list[Source]) -> Iterator[Chunk]:
    """Yields the documents of all sources in chunks of about 16 MiB; the last may be small.

    Either all or none of the sources must be aligned, which means texts with their translations.
    """
    texts: list[bytes] = []
    size = bytes_before = 0
    for source in sources:
        for text in source.documents():
            texts.append(text)
            size += len(text)
            if size >= CHUNK_BYTES:
                yield _chunk(texts, bytes_before + source.consumed, source.aligned)
                texts, size = [], 0
        bytes_before += source.size
    if texts:
        yield _chunk(texts, bytes_before, sources[-1].aligned)


def _chunk(texts: list[bytes], consumed: int, aligned: bool) -> Chunk:
    lengths = np.array([len(text) for text in texts], np.int64)
    return Chunk(b"".join(texts), lengths, consumed, aligned)


class Done(NamedTuple):
    """Numbers of a finished chunk for the progress bar; `consumed` is that of `Chunk`."""

    consumed: int
    documents: int
    text_bytes: int


def write_spill(tokenizer: Tokenizer, path: str, chunk: Chunk, dtype: str) -> Done:
    """Tokenises a chunk and writes its documents to `path`, unless that exists.

    The file, a spill, is an intermediate one of `prepare_corpus`. `dtype` is the type of the stored
    ids. Runs in a worker process.
    """
    if not exists(path):
        spill.write(path, *tokenise(tokenizer, chunk, dtype))
    return Done(chunk.consumed, len(chunk.lengths), len(chunk.text))


def tokenise(
    tokenizer: Tokenizer, chunk: Chunk, dtype: str
) -> tuple[spill.Segment, dict[str, int]]:
    """Splits a chunk's documents into sentences, tokenises and hashes them.

    Returns the documents sorted by hash, with ids of type `dtype`, and the chunk's counts
    `text_bytes`, `documents_read` and `empty_documents`. Documents without tokens are dropped and
    counted. Duplicates within the chunk are dropped.

    In an aligned chunk, a text with its translation is a document of two sentences. The first ends
    in the separator token, which no other document contains. A pair with an empty side is empty.
    """
    sentences: list[str] = []
    counts = np.zeros(len(chunk.lengths), np.int64)  # sentences of each document
    digests = bytearray()
    start = 0
    for number, length in enumerate(chunk.lengths.tolist()):
        text = chunk.text[start : start + length].decode()
        start += length
        if chunk.aligned:
            document = text.split("\n")
            sentences += document
        else:
            document = split_sentences(text)
            sentences += as_in_text(document, tokenizer)
        counts[number] = len(document)
        # The hash of the sentences, not of the text: white space between them does not count.
        content = "\n".join(document).encode()
        digests += hashlib.blake2b(content, digest_size=16).digest()
    tokens, token_counts = _encode(tokenizer, sentences, dtype)
    if chunk.aligned:
        tokens, token_counts = _separated(tokens, token_counts, tokenizer.sep_id)
    segment, empty = _sort(tokens, token_counts, counts, bytes(digests))
    return segment, {
        "text_bytes": len(chunk.text),
        "documents_read": len(chunk.lengths),
        "empty_documents": empty,
    }


def as_in_text(document: list[str], tokenizer: Tokenizer) -> list[str]:
    """Returns a document's sentences such that `tokenizer` can encode them one by one.

    In byte-level BPE a word includes the space before it. So every sentence but the first gets a
    leading space; otherwise its first word would join the last word of the sentence before.

    Example:
        >>> from types import SimpleNamespace
        >>> as_in_text(["Low.", "New."], SimpleNamespace(kind="bpe"))
        ['Low.', ' New.']
    """
    if tokenizer.kind != "bpe":
        return document
    return [*document[:1], *(f" {sentence}" for sentence in document[1:])]


def _encode(
    tokenizer: Tokenizer, sentences: list[str], dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all sentences, (tokens,) of type `dtype`, and the number of ids of each.

    The latter are (sentences,) int32.
    """
    tokens, counts = [np.zeros(0, dtype)], [np.zeros(0, np.int32)]
    for start in range(0, len(sentences), _SENTENCES_PER_CALL):
        ids = tokenizer.encode(sentences[start : start + _SENTENCES_PER_CALL])
        tokens.append(ids.flat_values.numpy().astype(dtype))
        counts.append(ids.row_lengths().numpy().astype(np.int32))
    return np.concatenate(tokens), np.concatenate(counts)


def _separated(
    tokens: np.ndarray, token_counts: np.ndarray, sep_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Appends a separator to the first text of each pair; empties pairs with an empty text.

    Takes and returns the ids of all texts, (tokens,), and the number of ids of each text,
    (2 · pairs,): a pair's first text, then its second. `sep_id` is the id of the separator.

    >>> [x.tolist() for x in _separated(np.array([7, 8, 9, 5]), np.array([1, 2, 1, 0]), 3)]
    [[7, 3, 8, 9], [2, 2, 0, 0]]
    """
    pairs = token_counts.reshape(-1, 2)
    is_complete = np.all(pairs > 0, axis=1)
    tokens = tokens[np.repeat(np.repeat(is_complete, 2), token_counts)]
    counts = np.where(is_complete[:, None], pairs, 0)
    ends = np.cumsum(counts)[::2][is_complete]
    counts[is_complete, 0] += 1
    return np.insert(tokens, ends, sep_id), counts.reshape(-1).astype(token_counts.dtype)


def _sort(
    tokens: np.ndarray, token_counts: np.ndarray, sentence_counts: np.ndarray, digests: bytes
) -> tuple[spill.Segment, int]:
    """Returns the distinct documents sorted by hash, and the number of documents without tokens.

    Empty sentences are dropped. `digests` holds the hashes, 16 bytes per document.

    Shapes: tokens (N,), token_counts (S,) per sentence, sentence_counts (D,) per document.
    """
    hashes = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    token_ends = np.concatenate([[0], np.cumsum(token_counts, dtype=np.int64)])
    sentence_starts = np.concatenate([[0], np.cumsum(sentence_counts)])
    token_starts = token_ends[sentence_starts]
    order = spill.distinct_order(hashes[:, 0], hashes[:, 1])
    filled = np.diff(token_starts)[order] > 0
    order = order[filled]
    # Python integers slice faster than numpy's.
    first, last = sentence_starts[order].tolist(), sentence_starts[order + 1].tolist()
    begin, end = token_starts[order].tolist(), token_starts[order + 1].tolist()
    sentences = [token_counts[a:b] for a, b in zip(first, last, strict=True)]
    sentences = [lengths[lengths > 0] for lengths in sentences]
    sorted_tokens = [tokens[a:b] for a, b in zip(begin, end, strict=True)]
    return (
        spill.Segment(
            high=hashes[order, 0],
            low=hashes[order, 1],
            sentence_starts=_starts(sentences),
            token_starts=_starts(sorted_tokens),
            sentences=np.concatenate([token_counts[:0], *sentences]),
            tokens=np.concatenate([tokens[:0], *sorted_tokens]),
        ),
        int(np.sum(np.diff(token_starts) == 0)),
    )


def _starts(pieces: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)
