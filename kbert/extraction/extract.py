"""`kbert.features`: features of texts from a pretrained encoder, as arrays.

Shapes: `N` texts, `T` tokens (or words) of a text, `D` width of the features.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from absl import logging

from kbert.core.layer_choice import LayerChoice
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
    layers: LayerChoice = "last",
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
    """Extracts features of texts, of their tokens or of their words, from a frozen encoder.

    BERT as features (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 5.3 and Table
    7). The encoder computes in its own dtype (`Encoder.from_preset(path, dtype="mixed_bfloat16")`
    for half precision); the features are float32.

    A `kbert.TextToText` or `kbert.Translator` instead of an encoder gives the states of its
    encoder, in rows with its own special tokens: CoVe (McCann et al. 2017,
    https://arxiv.org/abs/1708.00107). Its rows may have no [CLS], and `pooling="cls"` then raises.

    Args:
        encoder: a `kbert.Encoder`, or a `kbert.TextToText` or `kbert.Translator`.
        tokenizer: tokenizer of the encoder.
        texts: strings; pairs of strings; with `words` also lists of words; or a table or frame with
            the columns `text`, `first` and `second`, or `words`.
        layers: hidden states to use: "embeddings" (0), "last" (L), "second_to_last" (L - 1),
            "sum_all" (the sum of 1..L), "sum_last_four", "concat_last_four" (width 4 H, the lowest
            layer first); or the index of one (negative from the end); or several indices, whose
            states are concatenated, or as a text "sum:9,10" added.
        pooling: "mean" of the tokens, "max", "cls" (the vector of [CLS]), or None: no pooling.
        words: whether to return one vector per word instead of pooling. The tokenizer splits a
            string into words, with each punctuation mark a word; pass lists of words for another
            split.
        merge: how subwords become a word's vector: their "mean", or the "first" one.
        special_tokens: whether [CLS] and [SEP] are among the tokens and count in the mean and the
            maximum. They count in the mean of `sentence-transformers`.
        max_length: most tokens of a sequence, special tokens included; None = the encoder's
            `max_positions`.
        doc_stride: tokens between the starts of overlapping windows, in which longer texts are read
            (as in run_squad; in Hugging Face's tokenizers `stride` is the overlap). A token in
            several windows gets the mean of its vectors. None truncates longer texts and warns with
            their number.
        with_tokens: whether to return `TextVectors` with tokens and offsets, not bare arrays.
        batch_size: sequences of a batch.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if the work takes over 2 seconds.

    Returns:
        With pooling (N, D) float32. Otherwise a list of N arrays (T, D) float32, without padding,
        or of N `TextVectors` (vectors, tokens, starts, ends, segments).

    Raises:
        TypeError: an item is not a text, or the first arguments are not an encoder and a tokenizer.
        ValueError: an argument is out of range or does not fit the model, or a list of words is too
            long for one sequence and there is no `doc_stride`.

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
    """Returns the encoder's cached extractor with these arguments of `Extractor`, or a new one.

    Its count of truncated texts begins at 0. Its compiled graphs live as long as the encoder, like
    those of Keras' `predict`.
    """
    extractors = (
        vars(encoder).setdefault("_extractors", {}) if isinstance(encoder, keras.Model) else {}
    )
    key = (id(tokenizer), repr(settings))
    if key not in extractors:
        extractors[key] = Extractor(encoder, tokenizer, **settings)
    extractors[key].cut = 0
    return extractors[key]


def each_chunk(extractor: Extractor, texts: Any, verbose: str | int) -> Iterator:
    """Yields the features of `CHUNK` texts at a time, with a progress bar.

    Args:
        extractor: extractor of the features.
        texts: `Texts` from `as_inputs`.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if the work takes over 2 seconds.
    """
    with Progress("features", len(texts), " texts", verbose=verbose) as bar:
        for start in range(0, len(texts), CHUNK):
            yield extractor(texts.part(slice(start, start + CHUNK)))
            bar.show(min(start + CHUNK, len(texts)))


def report_cut(extractor: Extractor) -> None:
    """Logs a warning with the number of texts that the extractor truncated, if there are any."""
    if extractor.cut:
        logging.warning(
            "%d texts are longer than %d tokens and are truncated; with doc_stride they are read "
            "in overlapping windows",
            *(extractor.cut, extractor.max_length),
        )
