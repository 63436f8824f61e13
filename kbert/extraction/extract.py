"""`kbert.features`: features of texts from a pretrained encoder, as arrays.

Shapes: `N` texts, `T` tokens (or words) of a text, `D` width of the features.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from kbert.extraction.described import TextVectors
from kbert.extraction.extractor import Extractor
from kbert.extraction.inputs import as_inputs
from kbert.inference import BATCH_SIZE
from kbert.io.progress import Progress
from kbert.tokenizers.base import Tokenizer

# Texts tokenised and sorted by length together; the progress bar moves once for each chunk.
CHUNK = 1024


def features(
    encoder: keras.Model,
    tokenizer: Tokenizer,
    texts: Any,
    *,
    layers: str | int | Sequence[int] = "last",
    pooling: str | None = "mean",
    words: bool = False,
    merge: str = "mean",
    special_tokens: bool = True,
    max_length: int | None = None,
    doc_stride: int | None = None,
    with_tokens: bool = False,
    batch_size: int = BATCH_SIZE,
    verbose: str | int = "auto",
) -> np.ndarray | list[np.ndarray] | list[TextVectors]:
    """Vectors of texts, of their tokens or of their words, from a frozen encoder.

    BERT as features (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 5.3 and Table
    7). The encoder computes in its own dtype (`Encoder.from_preset(path, dtype="mixed_bfloat16")`
    for half precision); the features are float32.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: its tokenizer.
        texts: strings; pairs of strings; with `words` also lists of words; or a table or frame with
            the columns `text`, `first` and `second`, or `words`.
        layers: which hidden states: "embeddings" (0), "last" (L), "second_to_last" (L - 1),
            "sum_all" (the sum of 1..L), "sum_last_four", "concat_last_four" (H times 4, the lowest
            layer first), or the index of one (negative from the end), or several, joined.
        pooling: "mean" of the tokens, "max", "cls" (the first token), or None: no pooling.
        words: a vector per word, instead of pooling. The words of a string are the tokenizer's own,
            where a punctuation mark is a word; for others give lists of words.
        merge: a word's vector is the "mean" of its pieces' or the "first" one's.
        special_tokens: whether [CLS] and [SEP] are among the tokens and in the mean and the
            maximum. They are in the mean of `sentence-transformers`.
        max_length: tokens of a row, special tokens included; None = all that the encoder takes.
        doc_stride: a text that is longer is read in overlapping windows whose starts are this many
            tokens apart (run_squad's meaning; in Hugging Face's tokenizers `stride` is the
            overlap). A token that is in several windows has the mean of its vectors. None truncates
            such a text, and a warning says how many were truncated.
        with_tokens: `TextVectors` with tokens and offsets, instead of bare arrays.
        batch_size: rows that go through the encoder together.
        verbose: 1 = a progress bar, 0 = none, "auto" = one where it takes longer than a moment.

    Returns:
        Pooled: (N, D) float32. Else a list of N arrays (T, D) float32, without padding, or of N
        `TextVectors` (vectors, tokens, starts, ends, segments).

    Raises:
        TypeError: an item is no text, or not an encoder and a tokenizer.
        ValueError: an argument out of range, or a list of words too long for one row where there
            is no `doc_stride`.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "rain", "##y", "day"])
        >>> config = kbert.family("bert-tiny").replace(vocabulary_size=8)
        >>> encoder = kbert.Encoder(config)
        >>> features(encoder, tokenizer, ["rainy day", "day"], layers="sum_all").shape
        (2, 128)
        >>> [rows.shape for rows in features(encoder, tokenizer, ["rainy day"], pooling=None)]
        [(5, 128)]
        >>> [rows.shape for rows in features(encoder, tokenizer, ["rainy day"], words=True)]
        [(2, 128)]
    """
    extractor = _extractor(
        encoder,
        tokenizer,
        layers=layers,
        pooling=pooling,
        words=words,
        merge=merge,
        special_tokens=special_tokens,
        max_length=max_length,
        doc_stride=doc_stride,
        batch_size=batch_size,
        with_tokens=with_tokens,
    )
    parts = list(each_chunk(extractor, as_inputs(texts, words), verbose))
    report_cut(extractor)
    if extractor.pooling is None:
        return [row for part in parts for row in part]
    return np.concatenate([np.zeros((0, extractor.width), np.float32), *parts])


def _extractor(encoder: keras.Model, tokenizer: Tokenizer, **settings: Any) -> Extractor:
    """A cached one of the same settings, or a new one.

    Its compiled graphs live as long as the encoder does, as those of Keras' own `predict` do.
    """
    kept = vars(encoder).setdefault("_extractors", {}) if isinstance(encoder, keras.Model) else {}
    key = (id(tokenizer), repr(settings))
    if key not in kept:
        kept[key] = Extractor(encoder, tokenizer, **settings)
    kept[key].cut = 0
    return kept[key]


def each_chunk(extractor: Extractor, texts: Any, verbose: str | int) -> Iterator:
    """The features of `CHUNK` texts at a time, with a progress bar."""
    with Progress("features", len(texts), " texts", verbose=verbose) as bar:
        for start in range(0, len(texts), CHUNK):
            yield extractor(texts.part(slice(start, start + CHUNK)))
            bar.show(min(start + CHUNK, len(texts)))


def report_cut(extractor: Extractor) -> None:
    """A warning that says how many texts were cut."""
    if extractor.cut:
        logging.warning(
            "%d texts are longer than %d tokens and are truncated; with doc_stride they are read "
            "in overlapping windows",
            *(extractor.cut, extractor.max_length),
        )
