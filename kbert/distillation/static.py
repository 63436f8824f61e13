"""Static token embeddings instead of an encoder, after model2vec.

The embedder embeds each token of the vocabulary alone. The embeddings are projected on their
principal components, and those of frequent tokens are scaled down, so that these weigh little in a
mean. (https://github.com/MinishLab/model2vec; weights: Arora et al. 2017, "A simple but
tough-to-beat baseline for sentence embeddings", https://openreview.net/forum?id=SyK00v5xx.)

Shapes: V tokens of the vocabulary, P of them kept, D width of the embedder, K width of the table.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from kbert import inference
from kbert.configs.static import StaticConfig
from kbert.core.in_memory import each_text
from kbert.core.late import tf
from kbert.io.progress import Progress
from kbert.models import Encoder
from kbert.tasks import TextEmbedder

_UNUSED = re.compile(r"\[unused\d+\]")  # reserved entries of BERT's vocabularies
_BATCH_SIZE = 256


def distill_static(
    embedder: TextEmbedder,
    dimensions: int | None = 256,
    *,
    sif: float | None = 1e-4,
    texts: Iterable[str] | None = None,
    max_length: int = 512,
    batch_size: int = _BATCH_SIZE,
    verbose: str | int = "auto",
    **options: Any,
) -> TextEmbedder:
    """Distils an embedder into one whose encoder is a table of token embeddings, without training.

    The embedding of a token is the embedder's output for `[CLS] token [SEP]`, not normalised to
    unit length. The mean over all tokens is subtracted, and the first principal components are
    kept. The embedding is multiplied by `sif / (sif + p)`, where p is the token's share of all
    tokens. [UNK], the special tokens and [unused…] tokens have zero embeddings.

    Args:
        embedder: a `kbert.tasks.TextEmbedder`. Its prompts are not added to the tokens.
        dimensions: width K of the embeddings; None = the embedder's width, without mean subtraction
            and projection.
        sif: share of all tokens at which a token has half its weight; None = equal weights.
        texts: texts in which the shares are counted. None = shares proportional to 1 / rank in the
            vocabulary (Zipf's law): WordPiece vocabularies are ordered by frequency.
        max_length: maximum length of a row of the task, in tokens.
        batch_size: number of tokens that the embedder embeds per batch.
        verbose: whether to show a progress line; "auto" = in a terminal.
        **options: options of the new `TextEmbedder`.

    Returns:
        The new task; `fit` can train it further.

    Raises:
        ValueError: `embedder` is no `TextEmbedder`, `dimensions` or `sif` is out of range, or no
            token of the texts counts.

    Example:
        >>> import kbert
        >>> pieces = ["a", "man", "woman", "eats", "rice"]
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])
        >>> config = kbert.EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> embedder = kbert.tasks.TextEmbedder(kbert.Encoder(config), tokenizer)
        >>> static = distill_static(embedder, 4)
        >>> static.predict(["a man eats rice"]).shape, static.encoder.count_params()
        ((1, 4), 40)
    """
    if not isinstance(embedder, TextEmbedder):
        raise ValueError(
            "distill_static() requires a TextEmbedder: TextEmbedder.from_preset(folder, "
            "new_head=True) loads the encoder of any task. "
            f"Received: {type(embedder).__name__}"
        )
    if sif is not None and not 0 < sif < 1:
        raise ValueError(f"`sif` must be a share, above 0 and below 1, or None. Received: {sif!r}")
    if texts is not None and sif is None:
        raise ValueError(
            "`texts` requires `sif`, the weights that are counted in them. "
            "Received: texts with sif=None"
        )
    tokenizer = embedder.tokenizer
    ids, uncounted_ids = _pieces(tokenizer)
    limit = min(embedder.width, len(ids) - 1)
    if dimensions is not None and not 1 <= dimensions <= limit:
        raise ValueError(
            f"`dimensions` must be from 1 to {limit} ({len(ids)} subwords with vectors of "
            f"{embedder.width}), or None. Received: {dimensions!r}"
        )
    shares = _zipf(len(ids)) if texts is None else _counted(tokenizer, texts, uncounted_ids)[ids]
    vectors = _vectors(embedder, ids, batch_size, verbose)
    if dimensions is not None:
        vectors = principal_components(vectors, dimensions)
    if sif is not None:
        vectors = vectors * (sif / (sif + shares))[:, None]
    table = np.zeros((tokenizer.vocabulary_size, vectors.shape[1]), np.float32)
    table[ids] = vectors
    table[uncounted_ids] = 0.0
    config = StaticConfig(
        vocabulary_size=len(table),
        hidden_size=table.shape[1],
        max_positions=max_length,
        uncounted_ids=tuple(uncounted_ids),
    )
    encoder = Encoder(config)
    encoder.token_embedding.assign(table)
    return TextEmbedder(encoder, tokenizer, **options)


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Projects vectors on their first principal components.

    Args:
        vectors: vectors (P, D).
        count: number K of components.

    Returns:
        Projections (P, K) in float64. The sign of each component is chosen so that its value with
        the largest magnitude is positive.

    Example:
        >>> points = np.array([[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]])
        >>> np.round(principal_components(points, 1)[:, 0], 2).tolist()
        [-2.83, -1.41, 4.24]
    """
    centred = np.asarray(vectors, np.float64)
    centred = centred - centred.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # eigenvalues in ascending order
    projections = centred @ axes[:, ::-1][:, :count]
    largest = np.take_along_axis(projections, np.abs(projections).argmax(0)[None], 0)
    return projections * np.where(largest < 0, -1.0, 1.0)


def _pieces(tokenizer: Any) -> tuple[np.ndarray, list[int]]:
    """Returns the ids of the tokens to distil (P,), and the ids of [UNK] and the special tokens.

    [PAD] and [UNK] are among the tokens to distil, although means do not count them, so that ranks
    and components are the same as in model2vec.
    """
    special = set(tokenizer.special_ids)
    if tokenizer.unk_id is not None:
        special.add(tokenizer.unk_id)
    left_out = special - {tokenizer.pad_id, tokenizer.unk_id}
    kept_ids = [
        number
        for number, piece in enumerate(tokenizer.vocabulary)
        if number not in left_out and not _UNUSED.fullmatch(piece)
    ]
    return np.array(kept_ids), sorted(special)


def _vectors(
    embedder: TextEmbedder, pieces: np.ndarray, batch_size: int, verbose: str | int
) -> np.ndarray:
    """Returns the embeddings (P, D) of tokens, each embedded as a separate text.

    Args:
        embedder: the embedder.
        pieces: ids of the tokens, (P,).
        batch_size: number of tokens per batch.
        verbose: whether to show a progress line; "auto" = in a terminal.
    """
    inference.check_batch_size(batch_size)
    form = functools.partial(embedder.form.build_inputs, max_length=embedder.row_length, multiple=1)
    runner = inference.Runner(
        embedder.embed_rows, *embedder.parts.values(), assemble=lambda columns: form(columns["ids"])
    )
    ids = tf.RaggedTensor.from_tensor(tf.constant(pieces[:, None], tf.int32))
    rows, vector_parts = inference.token_rows(np.ones(len(pieces), int), ids=ids), []
    with Progress("", len(pieces), " pieces", verbose=verbose) as bar:
        for index, vectors in runner.each(rows, batch_size):  # in order, since lengths are equal
            vector_parts.append(vectors)
            bar.show(index[-1] + 1)
    return np.concatenate(vector_parts)


def _zipf(count: int) -> np.ndarray:
    """Returns shares (P,) proportional to 1 / rank. Ranks begin at 2, as in model2vec."""
    shares = 1 / np.arange(2, count + 2)
    return shares / shares.sum()


def _counted(tokenizer: Any, texts: Iterable[str], uncounted: list[int]) -> np.ndarray:
    """Returns each token's share (V,) of all counted tokens in texts.

    Args:
        tokenizer: tokenizer with V tokens.
        texts: texts, or one text.
        uncounted: ids of tokens that do not count: their share is 0.

    Raises:
        ValueError: the texts contain no token that counts.
    """
    counts = np.zeros(tokenizer.vocabulary_size, np.int64)
    remaining_texts = each_text([texts] if isinstance(texts, str) else texts)
    while part := list(islice(remaining_texts, inference.CHUNK)):
        ids = tokenizer.encode(part).flat_values.numpy()
        counts += np.bincount(ids, minlength=len(counts))
    total = int(counts.sum())
    counts[uncounted] = 0
    if not counts.any():
        raise ValueError(
            "`texts` must contain subwords of the vocabulary, whose shares are counted. "
            f"Received: {total} tokens, none of them such a subword"
        )
    return counts / counts.sum()
