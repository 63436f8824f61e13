"""Augments data in one call."""

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
    """Augments a table with copies of its texts in which words are replaced (TinyBERT).

    For a word that is a single token, a masked language model predicts the most probable words at
    its position. Candidates for a word of several subwords are its nearest neighbours in an
    embedding space. In each copy of a text, each word is replaced by one of its candidates with
    some probability. Stop words, numbers, punctuation, labels and all other columns stay the same.
    Jiao et al. 2020, https://arxiv.org/abs/1909.10351, algorithm 1.

    Args:
        data: data in any form that `kbert.data.as_table` accepts: texts, pairs or lists of tagged
            words (tags keep their positions), with or without labels.
        model: masked language model.
        output_dir: folder to write to, see `write_augmented`; None = all stays in memory.
        stop_words: words that are not replaced, in lower case.
        vectors: word vectors in which to search neighbours of words with several subwords: an
            object, or a file that `kbert.word_vectors.WordVectors.load` reads, of which the first
            `MAX_VECTORS` words are used. None = the model's token embeddings.
        batch_size: rows per batch of the model; the result does not depend on it.
        shards: number of files to write to `output_dir`.
        verbose: whether to show a progress bar, if there is a folder.
        **settings: fields of `AugmentationSettings`: `copies` (30), `candidates` (15),
            `replaced_share` (0.4), `with_original` and `seed`.

    Returns:
        A table with each row, followed by its distinct copies that differ from the row.

    Raises:
        ValueError: the table has questions or choices, a setting is out of range, or
            `write_augmented` raises it.

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
        raise ValueError(f"`shards` requires `output_dir`, their folder. Received: {shards=}")
    records = [record for row in augmenter.rows() for record in augmenter.versions(row)]
    columns = augmenter.table.columns
    return Table({name: [record[name] for record in records] for name in columns})
