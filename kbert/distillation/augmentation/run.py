"""Augmenting data in one call."""

import os
from collections.abc import Collection
from typing import Any

from kbert.core.types import PathLike
from kbert.data import Table, as_table
from kbert.distillation.augmentation.augmenter import Augmenter
from kbert.distillation.augmentation.folder import read_augmented, write_augmented
from kbert.distillation.augmentation.settings import MAX_VECTORS, AugmentationSettings
from kbert.distillation.augmentation.stop_words import STOP_WORDS
from kbert.tasks import Pretraining
from kbert.word_vectors import WordVectors


def augment(
    data: Any,
    model: Pretraining,
    output_dir: PathLike | None = None,
    *,
    stop_words: Collection[str] = STOP_WORDS,
    vectors: WordVectors | str | os.PathLike | None = None,
    batch_size: int = 32,
    shards: int | None = None,
    verbose: bool = False,
    **settings: Any,
) -> Table:
    """Copies every text of a table with words replaced by others that fit (TinyBERT).

    A word of one piece is masked, and a masked language model predicts the most probable words for
    its place; a word of several pieces gets the nearest words in an embedding space. Then a text is
    copied, and in a copy each word is replaced by one of its candidates with some probability.
    Stop words, numbers and punctuation stay, and so do labels and all other columns. Jiao et al.
    2020, https://arxiv.org/abs/1909.10351, algorithm 1.

    Args:
        data: what `kbert.data.as_table` takes: texts, pairs, lists of tagged words (tags stay with
            their places), with labels or without.
        model: the masked language model.
        output_dir: folder to write to, see `write_augmented`; None keeps all in memory.
        stop_words: in lower case; they stay.
        vectors: in which words of several pieces have their neighbours: vectors, or a file that
            `kbert.word_vectors.WordVectors.load` reads, of which the first `MAX_VECTORS` words
            count. None: the model's own table of tokens.
        batch_size: rows that the model computes at once; it changes no result.
        shards: files to write to `output_dir`.
        verbose: show a progress bar, where there is a folder.
        **settings: `copies` (30), `candidates` (15), `replaced_share` (0.4), `with_original`,
            `seed`; see `AugmentationSettings`.

    Returns:
        Each row, followed by its copies: those that equal the row or each other count once.

    Raises:
        ValueError: a table with questions or choices, a setting that is out of range, or what
            `write_augmented` raises.

    Example:
        >>> import kbert
        >>> words = ["the", "film", "movie", "was", "good"]
        >>> tokenizer = kbert.WordPieceTokenizer([*kbert.tokenizers.SPECIAL_TOKENS, *words])
        >>> config = kbert.family("bert-tiny").replace(vocabulary_size=10)
        >>> model = Pretraining(kbert.Encoder(config), tokenizer)
        >>> table = augment((["the film was good"], ["positive"]), model, candidates=1, copies=50)
        >>> len(table), table["text"][0], set(table["label"])  # "film", "good" or both are replaced
        (4, 'the film was good', {'positive'})
    """
    if isinstance(vectors, str | os.PathLike):
        vectors = WordVectors.load(vectors, limit=MAX_VECTORS)
    augmenter = Augmenter(
        as_table(data),
        model,
        AugmentationSettings(**settings),
        stop_words=stop_words,
        vectors=vectors,
        batch_size=batch_size,
    )
    if output_dir is not None:
        write_augmented(output_dir, augmenter, shards=shards, verbose=verbose)
        return read_augmented(output_dir)
    if shards is not None:
        raise ValueError(f"Shards are written to a folder: give output_dir. Received: {shards=}")
    records = [record for row in augmenter.rows() for record in augmenter.versions(row)]
    columns = augmenter.table.columns
    return Table({name: [record[name] for record in records] for name in columns})
