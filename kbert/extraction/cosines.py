"""Cosine similarities, nearest neighbours, and one word in several contexts.

Shapes: `N` and `M` vectors, `D` width, `Q` queries, `K` neighbours.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from kbert.extraction.extract import features
from kbert.extraction.inputs import as_inputs
from kbert.search.exact import best_of_array, unit
from kbert.tokenizers.base import Tokenizer

_AROUND = 25  # characters of context on each side of a word


def similarity(vectors: Any, others: Any = None) -> np.ndarray:
    """Returns the cosine similarity of each pair of vectors.

    Args:
        vectors: first vectors (N, D).
        others: second vectors (M, D); None = `vectors`.

    Returns:
        (N, M) float32; 0 for zero vectors.

    Example:
        >>> similarity([[1, 0], [0, 2]], [[3, 3]]).round(3).tolist()
        [[0.7070000171661377], [0.7070000171661377]]
    """
    vectors = unit(vectors)
    return vectors @ (vectors if others is None else unit(others)).T


def nearest(vectors: Any, queries: Any = None, k: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Finds the nearest vectors by cosine similarity.

    Args:
        vectors: vectors (N, D); a memory-mapped file is read in parts.
        queries: query vectors (Q, D); None = each of `vectors`, without itself as a neighbour.
        k: neighbours per query; fewer if there are fewer vectors.

    Returns:
        Indices of the neighbours (Q, K) and their cosines (Q, K), the nearest first, the lower
        index on a tie.

    Raises:
        ValueError: `k` is below 1, or the queries have another width.

    Example:
        >>> numbers, cosines = nearest([[1, 0], [1, 1], [0, 1]], [[2, 0.1]], k=2)
        >>> numbers.tolist(), cosines.round(2).tolist()
        ([[0, 1]], [[1.0, 0.7400000095367432]])
    """
    among_themselves = queries is None
    queries = vectors if among_themselves else queries
    width = np.shape(vectors)[1]
    if k < 1 or np.shape(queries)[1] != width:
        raise ValueError(
            "k must be 1 or more, and queries must be as wide as the vectors. Received: "
            f"k={k}, queries of width {np.shape(queries)[1]}, vectors of width {width}"
        )
    size = min(k, max(len(vectors) - among_themselves, 0))
    # Each vector's own index is removed below. With duplicates it may be missing from the results.
    cosines, numbers = best_of_array(queries, vectors, min(size + among_themselves, len(vectors)))
    numbers = numbers.astype(np.int64)
    if among_themselves:
        is_other = numbers != np.arange(len(numbers))[:, None]  # (N, K + 1)
        is_other[is_other.all(1), -1] = False
        numbers, cosines = numbers[is_other], cosines[is_other]
    return numbers.reshape(len(queries), size), cosines.reshape(len(queries), size)


class WordInContext(NamedTuple):
    """Embeddings and positions of the N occurrences of one word in texts.

    Attributes:
        vectors: (N, D) float32, the mean over the word's subwords at each occurrence.
        texts: (N,), index of the text of each occurrence.
        starts, ends: (N,), start and end of each occurrence in characters of its text.
        contexts: N excerpts around the word, which is in brackets.
    """

    vectors: np.ndarray
    texts: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    contexts: list[str]


def word_in_context(
    encoder: keras.Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    word: str,
    *,
    layers: str | int | Sequence[int] = "last",
    doc_stride: int | None = None,
) -> WordInContext:
    """Returns the contextual embeddings of one word (or several consecutive words) in texts.

    `similarity(found.vectors)` shows whether the encoder separates the word's meanings.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        texts: strings that contain the word in any case; each occurrence counts.
        word: the word or words to find, in any case.
        layers: hidden states to use: "last", another name or indices (see `kbert.features`).
        doc_stride: tokens between the starts of the windows of a long text; None truncates it.

    Raises:
        ValueError: there are no texts, they are pairs, or a text does not have the word or is
            truncated before it.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "a", "river", "bank", "note"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9))
        >>> texts = ["A river bank", "A bank note"]
        >>> word_in_context(encoder, tokenizer, texts, "bank").contexts
        ['A river [bank]', 'A [bank] note']
    """
    inputs = as_inputs(texts)
    if inputs.second is not None or not len(inputs):
        raise ValueError(f"texts must be single texts, at least one. Received: {texts!r}")
    texts = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in inputs.first]
    token_features = features(
        encoder,
        tokenizer,
        texts,
        layers=layers,
        pooling=None,
        special_tokens=False,
        with_tokens=True,
        doc_stride=doc_stride,
        verbose=0,
    )
    vectors, occurrences = [], []
    for number, (text, tokens) in enumerate(zip(texts, token_features, strict=True)):
        spans = _spans(text, word)
        if not word or not spans:
            raise ValueError(
                f"Each text must have the word {word!r}. Received: {text!r}, number {number}"
            )
        for start, end in spans:
            inside = (tokens.starts < end) & (tokens.ends > start)
            if not inside.any():
                raise ValueError(
                    f"Each occurrence of {word!r} must be among the tokens that the encoder "
                    f"reads: pass `doc_stride`. Received: character {start} of text number "
                    f"{number}"
                )
            vectors.append(tokens.vectors[inside].mean(0))
            occurrences.append((number, start, end))
    numbers, starts, ends = np.array(occurrences).reshape(-1, 3).T
    contexts = [_context(texts[number], start, end) for number, start, end in occurrences]
    return WordInContext(np.array(vectors), numbers, starts, ends, contexts)


def _spans(text: str, word: str) -> list[tuple[int, int]]:
    """Returns (start, end) of each occurrence as a whole word, in characters, in any case."""
    # No letter, digit or underscore directly before or after it.
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def _context(text: str, start: int, end: int) -> str:
    """Returns the word at `start` to `end` in brackets, with 25 characters on each side."""
    before = text[max(start - _AROUND, 0) : start]
    after = text[end : end + _AROUND]
    before = ("…" if start > _AROUND else "") + before
    after += "…" if end + _AROUND < len(text) else ""
    return " ".join(f"{before}[{text[start:end]}]{after}".split())
