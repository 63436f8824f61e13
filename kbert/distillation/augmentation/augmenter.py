"""Copies of the texts of a table in which words are replaced by others of similar meaning.

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

# Rows of a table whose texts go through the model together.
CHUNK = 256
_ASKED = ("question", "context", "answers", "answer_starts", "choices")


@dataclasses.dataclass(frozen=True)
class Copy:
    """A row's texts with some words replaced.

    Attributes:
        values: the text, or list of words, of each augmented column.
        replaced: for each column: number of a replaceable word -> its replacement.
    """

    values: tuple[str | list[str], ...]
    replaced: tuple[dict[int, str], ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table with its copies.

    Attributes:
        number: in the table.
        sentences: of each augmented column.
        candidates: of each column: for each replaceable word, its candidates.
        copies: the distinct ones that are not the row itself.
    """

    number: int
    sentences: tuple[Sentence, ...]
    candidates: tuple[list[list[str]], ...]
    copies: list[Copy]


class Augmenter:
    """TinyBERT's data augmentation of a table (Jiao et al. 2020, algorithm 1).

    Of a pair both texts are augmented: copy i of the first is paired with copy i of the second.
    (data_augmentation.py pairs all copies of the first text with the original second one, and then
    all copies of the second with the last copy of the first; twice as many rows.) The label of a
    pair may be wrong then, as it may in theirs: a student learns the teacher's answer to the copy.

    Every draw is a hash of (seed, row, column, word, copy), and no result depends on which rows are
    computed together.

    Args:
        table: with the column `text`, or `first` and `second`, or `words`.
        model: the masked language model.
        settings: how much is replaced.
        stop_words: in lower case; they stay.
        vectors: in which words of several pieces have their neighbours; None: the model's own
            table of tokens, among the vocabulary's words and those of the table.
        batch_size: rows that the model computes at once.

    Raises:
        ValueError: a table of another kind, or without rows; vectors of no word of letters.
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
        given = self.settings.with_original
        self.with_original = bool(model.encoder.config.num_segments > 1 if given is None else given)
        self._masked = MaskedWords(model, self.settings.candidates, self.with_original, batch_size)

    def identity(self) -> dict[str, Any]:
        """What the copies depend on, for the manifest of a folder."""
        words = "\n".join(sorted(self.stop_words))
        named = {
            **dataclasses.asdict(self.settings),
            "with_original": self.with_original,
            "stop_words": f"{len(self.stop_words)}, checksum {fingerprints.crc32([words]):08x}",
            "vectors": "the model's own table",
            "model": f"{_sizes(self.model)}, checksum {model_checksum(self.model)}",
            "tokenizer": f"{self.model.tokenizer.kind}, checksum {self.model.tokenizer.checksum}",
            "data": f"{len(self.table):,} rows, checksum {self.table.checksum:08x}",
        }
        if self._given is not None:
            named["vectors"] = f"{len(self._given):,}, checksum {self._given.checksum}"
        return named

    def rows(self, numbers: Sequence[int] | None = None) -> Iterator[Row]:
        """The rows of these numbers (None: all), each with its copies."""
        every = range(len(self.table)) if numbers is None else numbers
        for first in range(0, len(every), CHUNK):
            numbers = every[first : first + CHUNK]
            sentences = [
                Sentence.of(self.table[name][number], self.stop_words)
                for number in numbers
                for name in self.columns
            ]
            distinct = list(dict.fromkeys(sentences))
            found = dict(zip(distinct, self._candidates(distinct), strict=True))
            candidates = [found[sentence] for sentence in sentences]
            texts, words, drawn = (
                _grouped(x, len(self.columns))
                for x in (sentences, candidates, self._draw(numbers, candidates))
            )
            for row in zip(numbers, texts, words, drawn, strict=True):
                yield Row(*row[:3], _copies(row[1], row[3]))

    def versions(self, row: Row) -> Iterator[dict[str, Any]]:
        """The row itself and then its copies, with all columns of the table."""
        record = {name: column[row.number] for name, column in self.table.columns.items()}
        yield record
        for copy in row.copies:
            yield record | dict(zip(self.columns, copy.values, strict=True))

    def _candidates(self, sentences: Sequence[Sentence]) -> list[list[list[str]]]:
        """The candidates of each replaceable word."""
        if not sentences:
            return []
        encoded = self.model.tokenizer.encode_with_offsets(
            [sentence.text for sentence in sentences], unit="character"
        )
        ids, starts, ends = (as_rows(encoded[name]) for name in ("token_ids", "starts", "ends"))
        found: list[list[list[str]]] = [[[] for _ in x.spans] for x in sentences]
        masked: dict[tuple[int, int], int] = {}
        others: list[tuple[int, int]] = []
        for text, sentence in enumerate(sentences):
            for number, (start, end) in enumerate(sentence.spans):
                piece = _only_piece(sentence.text, starts[text], ends[text], start, end)
                if piece is None:
                    others.append((text, number))
                else:
                    masked[text, number] = piece
        places = [(text, piece) for (text, _), piece in masked.items()]
        for (text, number), words in zip(masked, self._masked(ids, places), strict=True):
            found[text][number] = _cased(sentences[text].word(number), words)
        self._find_neighbours({sentences[text].word(number) for text, number in others})
        for text, number in others:
            word = sentences[text].word(number)
            found[text][number] = _cased(word, self._nearest[word])
        return found

    def _find_neighbours(self, words: Collection[str]) -> None:
        new = sorted(word for word in words if word not in self._nearest)
        if new:
            nearest = self.neighbours.nearest(new, self.settings.candidates)
            self._nearest.update(zip(new, nearest, strict=True))

    @functools.cached_property
    def neighbours(self) -> Neighbours:
        """By the vectors that were given, or by the model's, which all words of the table have."""
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
        """For each text, in each copy: number of a word -> its replacement."""
        counts = [len(words) for each in candidates for words in each]  # (W,)
        places = [
            (number, column, word)
            for (number, column), each in zip(
                itertools.product(numbers, range(len(self.columns))), candidates, strict=True
            )
            for word in range(len(each))
        ]
        chosen = self._choices(
            np.array(places, np.int64).reshape(-1, 3), np.array(counts, np.int32)
        )
        behind = 0
        for each in candidates:
            block = chosen[behind : behind + len(each)]  # (words of the text, N)
            behind += len(each)
            copies: list[dict[int, str]] = [{} for _ in range(self.settings.copies)]
            for word, copy in zip(*np.nonzero(block >= 0), strict=True):
                copies[copy][int(word)] = each[word][block[word, copy]]
            yield copies

    def _choices(self, places: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """(W, N) which candidate takes a word's place in a copy, -1 where it stays.

        Args:
            places: (W, 3) row of the table, column, number of the word in the text.
            counts: (W,) candidates of the word.
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


def _sizes(model: Pretraining) -> str:
    config = model.encoder.config
    return f"{config.num_layers} layers of width {config.hidden_size}"


def check_model(model: Any) -> Pretraining:
    """The model, where it is one that fills masks.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(model, Pretraining) or model.masked_lm is None:
        raise ValueError(
            "Candidates are predicted by a masked language model, a kbert.tasks.Pretraining with a "
            "masked-LM head. "
            f"Received: a {type(model).__name__}"
        )
    return model


def augmented_columns(table: Table) -> tuple[str, ...]:
    """The columns of a table whose words are replaced.

    Raises:
        ValueError: a table with questions or choices, without a text or without rows.
    """
    if not len(table):
        raise ValueError("A table that is augmented has rows. Received: one without any")
    asked = [name for name in _ASKED if name in table]
    if not asked:
        for columns in (("words",), ("first", "second"), ("text",)):
            if all(name in table for name in columns):
                return columns
    raise ValueError(
        "Texts (text), pairs (first, second) and tagged words (words) can be augmented"
        f"{'; replaced words would move the answers to questions' if asked else ''}. Received: a "
        f"table with the columns {', '.join(table.columns)}"
    )


def _copies(texts: Sequence[Sentence], replaced: Sequence[list[dict[int, str]]]) -> list[Copy]:
    """The distinct ones, in the order in which they were drawn."""
    seen = {tuple(sentence.text for sentence in texts)}
    copies = []
    for drawn in zip(*replaced, strict=True):
        values = tuple(x.replaced(words) for x, words in zip(texts, drawn, strict=True))
        key = tuple(x if isinstance(x, str) else " ".join(x) for x in values)
        if key not in seen:
            seen.add(key)
            copies.append(Copy(values, drawn))
    return copies


def _only_piece(
    text: str, starts: np.ndarray, ends: np.ndarray, start: int, end: int
) -> int | None:
    """The piece that is the word at start … end and nothing more but blanks before it, if any."""
    first = int(np.searchsorted(ends, start, "right"))
    behind = int(np.searchsorted(starts, end, "left"))
    if behind - first != 1 or ends[first] != end or text[starts[first] : start].strip():
        return None
    return first if starts[first] <= start else None


def _cased(word: str, candidates: Sequence[str]) -> list[str]:
    """The candidates in the word's case, each once, without the word."""
    fitting = dict.fromkeys(match_case(word, candidate) for candidate in candidates)
    return [candidate for candidate in fitting if candidate.casefold() != word.casefold()]


def _grouped(items: Iterable, size: int) -> Iterator[tuple]:
    """Tuples of so many items that follow each other."""
    return zip(*[iter(items)] * size, strict=True)
