"""Augments the texts of a table: copies in which words are replaced by words of similar meaning.

Shapes: `W` replaceable words, `N` copies, `M` candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.data import Table
from kbert.data.masking.hashing import below, chance, fold
from kbert.distillation.augmentation.masked_words import MaskedWords
from kbert.distillation.augmentation.neighbours import Neighbours, model_neighbours
from kbert.distillation.augmentation.sentences import Sentence, find_words, is_word, match_case
from kbert.distillation.augmentation.settings import AugmentationSettings
from kbert.distillation.augmentation.stop_words import STOP_WORDS
from kbert.experiments import model_checksum
from kbert.inference import as_rows
from kbert.io import fingerprints
from kbert.tasks import Pretraining
from kbert.word_vectors import WordVectors

# Number of table rows that are augmented together.
CHUNK = 256
_ASKED = ("question", "context", "answers", "answer_starts", "choices")


@dataclasses.dataclass(frozen=True)
class Copy:
    """The texts of a row with some words replaced.

    Attributes:
        values: text, or list of words, of each augmented column.
        replaced: replacements in each column: number of a replaceable word -> its replacement.
    """

    values: tuple[str | list[str], ...]
    replaced: tuple[dict[int, str], ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table with its copies.

    Attributes:
        number: number of the row in the table.
        sentences: sentence of each augmented column.
        candidates: candidates of each replaceable word, in each column.
        copies: distinct copies that differ from the row itself.
    """

    number: int
    sentences: tuple[Sentence, ...]
    candidates: tuple[list[list[str]], ...]
    copies: list[Copy]


class Augmenter:
    """TinyBERT's data augmentation of a table (Jiao et al. 2020, algorithm 1).

    In a pair both texts are augmented: copy i of the first is paired with copy i of the second.
    (data_augmentation.py pairs all copies of the first text with the original second one, and then
    all copies of the second with the last copy of the first: twice as many rows.) The label of a
    copied pair may be wrong in both cases. That does not matter for a student, which learns the
    teacher's answer to the copy.

    Every random number is a hash of (seed, row, column, word, copy). So results do not depend on
    which rows are computed together.

    Args:
        table: table with the column `text`, the columns `first` and `second`, or the column
            `words`.
        model: masked language model.
        settings: settings of the augmentation; None = the defaults.
        stop_words: words that are not replaced, in lower case.
        vectors: word vectors in which to search neighbours of words with several subwords; None =
            the model's token embeddings, with the words of vocabulary and table as candidates.
        batch_size: rows per batch of the model.

    Raises:
        ValueError: the table has other columns or no rows, the model has no masked-LM head, or
            `vectors` has no word of letters.
    """

    def __init__(
        self,
        table: Table,
        model: Pretraining,
        settings: AugmentationSettings | None = None,
        *,
        stop_words: Collection[str] = STOP_WORDS,
        vectors: WordVectors | None = None,
        batch_size: int = 32,
    ) -> None:
        self.table = table
        self.model = check_model(model)
        self.settings = settings or AugmentationSettings()  # type: ignore[call-arg]  # all have a default
        self.columns = augmented_columns(table)
        self.stop_words = frozenset(stop_words)
        self._given = None if vectors is None else Neighbours.among(vectors)
        self._nearest: dict[str, list[str]] = {}
        with_original = self.settings.with_original
        self.with_original = bool(
            model.encoder.config.num_segments > 1 if with_original is None else with_original
        )
        self._masked = MaskedWords(model, self.settings.candidates, self.with_original, batch_size)

    def identity(self) -> dict[str, Any]:
        """Returns all that the copies depend on, for the manifest of a folder."""
        words, config = "\n".join(sorted(self.stop_words)), self.model.encoder.config
        size = f"{config.num_layers} layers of width {config.hidden_size}"
        record = {
            **dataclasses.asdict(self.settings),
            "with_original": self.with_original,
            "stop_words": f"{len(self.stop_words)}, checksum {fingerprints.crc32([words]):08x}",
            "vectors": "the model's own table",
            "model": f"{size}, checksum {model_checksum(self.model)}",
            "tokenizer": f"{self.model.tokenizer.kind}, checksum {self.model.tokenizer.checksum}",
            "data": f"{len(self.table):,} rows, checksum {self.table.checksum:08x}",
        }
        if self._given is not None:
            record["vectors"] = f"{len(self._given):,}, checksum {self._given.checksum}"
        return record

    def rows(self, numbers: Sequence[int] | None = None) -> Iterator[Row]:
        """Yields the table's rows of these numbers, each with its copies; None = all rows."""
        selected = range(len(self.table)) if numbers is None else numbers
        for first in range(0, len(selected), CHUNK):
            numbers = selected[first : first + CHUNK]
            sentences = [
                Sentence.of(self.table[name][number], self.stop_words)
                for number in numbers
                for name in self.columns
            ]
            distinct = list(dict.fromkeys(sentences))
            candidates_by_sentence = dict(zip(distinct, self._candidates(distinct), strict=True))
            candidates = [candidates_by_sentence[sentence] for sentence in sentences]
            texts, words, drawn = (
                _grouped(x, len(self.columns))
                for x in (sentences, candidates, self._draw(numbers, candidates))
            )
            for row in zip(numbers, texts, words, drawn, strict=True):
                yield Row(*row[:3], _copies(row[1], row[3]))

    def versions(self, row: Row) -> Iterator[dict[str, Any]]:
        """Yields name -> value of all columns: the row itself, then each of its copies."""
        record = {name: column[row.number] for name, column in self.table.columns.items()}
        yield record
        for copy in row.copies:
            yield record | dict(zip(self.columns, copy.values, strict=True))

    def _candidates(self, sentences: Sequence[Sentence]) -> list[list[list[str]]]:
        """Returns for each sentence and each of its replaceable words the candidates."""
        if not sentences:
            return []
        encoded = self.model.tokenizer.encode_with_offsets(
            [sentence.text for sentence in sentences], unit="character"
        )
        ids, starts, ends = (as_rows(encoded[name]) for name in ("token_ids", "starts", "ends"))
        candidates: list[list[list[str]]] = [[[] for _ in x.spans] for x in sentences]
        masked: dict[tuple[int, int], int] = {}
        multi_piece_words: list[tuple[int, int]] = []
        for text, sentence in enumerate(sentences):
            for number, (start, end) in enumerate(sentence.spans):
                piece = _only_piece(sentence.text, starts[text], ends[text], start, end)
                if piece is None:
                    multi_piece_words.append((text, number))
                else:
                    masked[text, number] = piece
        positions = [(text, piece) for (text, _), piece in masked.items()]
        for (text, number), words in zip(masked, self._masked(ids, positions), strict=True):
            candidates[text][number] = _cased(sentences[text].word(number), words)
        self._find_neighbours({sentences[text].word(number) for text, number in multi_piece_words})
        for text, number in multi_piece_words:
            word = sentences[text].word(number)
            candidates[text][number] = _cased(word, self._nearest[word])
        return candidates

    def _find_neighbours(self, words: Collection[str]) -> None:
        """Searches the neighbours of new words, for `_nearest`."""
        new = sorted(word for word in words if word not in self._nearest)
        if new:
            nearest = self.neighbours.nearest(new, self.settings.candidates)
            self._nearest.update(zip(new, nearest, strict=True))

    @functools.cached_property
    def neighbours(self) -> Neighbours:
        """Neighbours by the given vectors, or by the model's embeddings with the table's words."""
        if self._given is not None:
            return self._given
        words: set[str] = set()
        for name in self.columns:
            for value in self.table[name]:
                if isinstance(value, str):
                    words.update(value[start:end] for start, end in find_words(value))
                else:
                    words.update(filter(is_word, value))
        return model_neighbours(self.model, words)

    def _draw(
        self, numbers: Sequence[int], candidates: Sequence[list[list[str]]]
    ) -> Iterator[list[dict[int, str]]]:
        """Draws the replacements in all copies, in one step for many rows.

        Args:
            numbers: numbers of the table rows.
            candidates: candidates of each word of each text, row by row and column by column.

        Yields:
            For each text a list over copies: number of a word -> its replacement.
        """
        counts = [len(words) for text_candidates in candidates for words in text_candidates]  # (W,)
        word_positions = [
            (number, column, word)
            for (number, column), text_candidates in zip(
                itertools.product(numbers, range(len(self.columns))), candidates, strict=True
            )
            for word in range(len(text_candidates))
        ]
        chosen = self._choices(
            np.array(word_positions, np.int64).reshape(-1, 3), np.array(counts, np.int32)
        )
        offset = 0
        for text_candidates in candidates:
            block = chosen[offset : offset + len(text_candidates)]  # (words of the text, N)
            offset += len(text_candidates)
            copies: list[dict[int, str]] = [{} for _ in range(self.settings.copies)]
            for word, copy in zip(*np.nonzero(block >= 0), strict=True):
                copies[copy][int(word)] = text_candidates[word][block[word, copy]]
            yield copies

    def _choices(self, places: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns (W, N): the candidate that replaces a word in a copy, or -1 for no replacement.

        Args:
            places: table row, column and number in the text of each word, (W, 3).
            counts: number of candidates of each word, (W,).
        """
        with tf.device("CPU"):
            key: Any = self.settings.seed
            for column in range(3):
                key = fold(key, tf.constant(places[:, column]))  # (W,)
            copies = tf.range(self.settings.copies)[None]
            is_replaced = chance(fold(fold(key, 0)[:, None], copies), self.settings.replaced_share)
            choice = below(fold(fold(key, 1)[:, None], copies), tf.constant(counts)[:, None])
            is_replaced &= tf.constant(counts)[:, None] > 0
            return tf.where(is_replaced, choice, -1).numpy()


def check_model(model: Any) -> Pretraining:
    """Returns the model if it has a masked-LM head.

    Raises:
        ValueError: it is no `Pretraining` task or has no such head.
    """
    if not isinstance(model, Pretraining) or model.masked_lm is None:
        raise ValueError(
            "The model must be a masked language model: a kbert.tasks.Pretraining with a "
            "masked-LM head. "
            f"Received: a {type(model).__name__}"
        )
    return model


def augmented_columns(table: Table) -> tuple[str, ...]:
    """Returns the columns of a table whose words are replaced.

    Raises:
        ValueError: the table has questions or choices, no text or no rows.
    """
    if not len(table):
        raise ValueError("The table to augment must have rows. Received: a table without any")
    refused = [name for name in _ASKED if name in table]
    if not refused:
        for columns in (("words",), ("first", "second"), ("text",)):
            if all(name in table for name in columns):
                return columns
    raise ValueError(
        "Only texts (text), pairs (first, second) and tagged words (words) can be augmented"
        f"{'; replaced words would move the answers to questions' if refused else ''}. Received: a "
        f"table with the columns {', '.join(table.columns)}"
    )


def _copies(texts: Sequence[Sentence], replaced: Sequence[list[dict[int, str]]]) -> list[Copy]:
    """Returns the distinct copies of a row that differ from it, in the order of their numbers.

    Args:
        texts: sentence of each column.
        replaced: for each column a list over copies: number of a word -> its replacement.
    """
    seen_texts = {tuple(sentence.text for sentence in texts)}
    copies = []
    for drawn in zip(*replaced, strict=True):
        values = tuple(x.replaced(words) for x, words in zip(texts, drawn, strict=True))
        key = tuple(x if isinstance(x, str) else " ".join(x) for x in values)
        if key not in seen_texts:
            seen_texts.add(key)
            copies.append(Copy(values, drawn))
    return copies


def _only_piece(
    text: str, starts: np.ndarray, ends: np.ndarray, start: int, end: int
) -> int | None:
    """Returns the number of the token that is exactly one word, or None if there is no such.

    The token may also cover white space before the word.

    Args:
        text: the text.
        starts: first character of each token.
        ends: end of each token, exclusive.
        start: first character of the word.
        end: end of the word, exclusive.
    """
    first = int(np.searchsorted(ends, start, "right"))
    stop = int(np.searchsorted(starts, end, "left"))
    if stop - first != 1 or ends[first] != end or text[starts[first] : start].strip():
        return None
    return first if starts[first] <= start else None


def _cased(word: str, candidates: Sequence[str]) -> list[str]:
    """Returns the distinct candidates, without spellings of the word itself.

    They are capitalised or in upper case if the word is, else unchanged.
    """
    cased_candidates = dict.fromkeys(match_case(word, candidate) for candidate in candidates)
    return [candidate for candidate in cased_candidates if candidate.casefold() != word.casefold()]


def _grouped(items: Iterable, size: int) -> Iterator[tuple]:
    """Yields tuples of `size` consecutive items; their number must be a multiple of `size`."""
    return zip(*[iter(items)] * size, strict=True)
