"""A lexicon of phrases, found in rows of tokens: what is to be masked as one unit.

Entities and noun phrases (ERNIE, Sun et al. 2019, arXiv:1904.09223) or, where a tokenizer splits
text into characters, the words of Chinese (BERT-wwm, Cui et al. 2019, arXiv:1906.08101).

All rows are searched at once, length by length: a rolling hash of each window of tokens is looked
up in a bitmap, and the few windows that pass are compared with the phrase token by token, so a
match is never a coincidence of hashes.

Shapes: N rows, T sequence length, V phrases of one length L, M matches.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
from collections.abc import Sequence

import numpy as np

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io.paths import Path, is_file
from kbert.tokenizers.base import Tokenizer

_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_WORD = 2**64
# Of a bitmap, above those that count its phrases: one window in 16 passes by chance.
_FILTER_BITS = 4


@dataclasses.dataclass(frozen=True)
class _Table:
    """The phrases of one length.

    Attributes:
        ids: (V, L) int32, in the order of their hashes.
        hashes: (V,) int64, ascending.
        bitmap: (2**bits,) bool, True where the highest bits of some hash point.
        bits: how many of them.
    """

    ids: np.ndarray
    hashes: np.ndarray
    bitmap: np.ndarray
    bits: int

    @classmethod
    def of(cls, ids: np.ndarray) -> _Table:
        hashes = np.sum((ids.astype(np.uint64) + 1) * _powers(_BASE, ids.shape[1]), 1)
        order = np.argsort(hashes.view(np.int64))
        bits = len(ids).bit_length() + _FILTER_BITS
        bitmap = np.zeros(2**bits, bool)
        bitmap[hashes >> np.uint64(64 - bits)] = True
        return cls(ids[order], hashes.view(np.int64)[order], bitmap, bits)


def _powers(base: int, count: int) -> np.ndarray:
    powers, power = [], 1
    for _ in range(count):
        powers.append(power)
        power = power * base % _WORD
    return np.array(powers, np.uint64)


class Phrases:
    """Phrases of at least two tokens, to be found in rows.

    Args:
        phrases: ids of each phrase.

    Raises:
        ValueError: if there is none of two tokens or more.

    Example:
        >>> phrases = Phrases([[7, 8], [7, 8, 9]])
        >>> rows = tf.constant([[1, 7, 8, 9, 7, 8, 2]])
        >>> in_text = (rows > 2)
        >>> phrases.join(rows, in_text, begins=in_text).numpy().astype(int).tolist()
        [[0, 1, 0, 0, 1, 0, 0]]
    """

    def __init__(self, phrases: Sequence[Sequence[int]]) -> None:
        by_length: dict[int, set[tuple[int, ...]]] = {}
        for ids in phrases:
            if len(ids) > 1:
                by_length.setdefault(len(ids), set()).add(tuple(ids))
        if not by_length:
            raise ValueError(
                "`phrases` must hold a phrase of at least two tokens: a single one is a unit "
                f"anyway. Received: {len(phrases)} phrase(s) of one token or none"
            )
        self._tables = [
            _Table.of(np.array(sorted(by_length[length]), np.int32)) for length in sorted(by_length)
        ]

    def join(self, token_ids: tf.Tensor, in_text: tf.Tensor, begins: tf.Tensor) -> tf.Tensor:
        """Makes each phrase found one unit.

        From left to right and of all phrases that begin at a word the longest; it must end where a
        word ends, too.

        Args:
            token_ids: (N, T) int32.
            in_text: (N, T) bool, tokens of the text.
            begins: (N, T) bool, where words begin.

        Returns:
            (N, T) bool: `begins` without those inside of a phrase.
        """
        start, length = _leftmost(*self._matches(token_ids, in_text, begins))
        inner = length - 1
        inside = tf.repeat(start + 1 - tf.cumsum(inner, exclusive=True), inner)
        inside += tf.range(tf.size(inside))
        flat = tf.reshape(begins, [-1])
        flat = tf.tensor_scatter_nd_update(flat, inside[:, None], tf.zeros_like(inside, tf.bool))
        return tf.reshape(flat, tf.shape(begins))

    def _matches(
        self, token_ids: tf.Tensor, in_text: tf.Tensor, begins: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Where a phrase begins, counted through all rows, and the longest one's length: (M,)."""
        width = token_ids.shape[1]
        powers = _powers(_BASE, width).view(np.int64)
        inverse = _powers(pow(_BASE, -1, _WORD), width).view(np.int64)
        weighted = (tf.cast(token_ids, tf.int64) + 1) * powers
        before = tf.pad(tf.cumsum(weighted, 1), [[0, 0], [1, 0]])  # (N, T + 1)
        # A word ends before each of these places; the spare one is after the last row.
        stops = tf.reshape(begins | ~in_text, [-1])
        stops = tf.concat([stops, [True]], 0)
        flat_ids, flat_begins = tf.reshape(token_ids, [-1]), tf.reshape(begins, [-1])
        longest = tf.zeros(tf.shape(flat_ids), tf.int32)
        for table in self._tables:
            size = table.ids.shape[1]
            if size > width:
                break
            hashes = (before[:, size:] - before[:, :-size]) * inverse[: width - size + 1]
            high = tf.bitwise.right_shift(
                tf.bitcast(hashes, tf.uint64), tf.constant(64 - table.bits, tf.uint64)
            )
            passed = tf.where(tf.gather(table.bitmap, tf.cast(high, tf.int32)))  # (M, 2)
            found = tf.gather_nd(hashes, passed)
            phrase = tf.searchsorted(table.hashes, found)
            phrase = tf.minimum(phrase, len(table.hashes) - 1)
            place = tf.cast(passed[:, 0] * width + passed[:, 1], tf.int32)
            ids = tf.gather(flat_ids, place[:, None] + tf.range(size))
            equal = tf.reduce_all(ids == tf.gather(table.ids, phrase), 1)
            equal &= tf.gather(flat_begins, place) & tf.gather(stops, place + size)
            place = tf.boolean_mask(place, equal)
            # Tables come by length: a longer match overwrites a shorter one.
            longest = tf.tensor_scatter_nd_update(
                longest, place[:, None], tf.fill(tf.shape(place), size)
            )
        start = tf.cast(tf.where(longest > 0)[:, 0], tf.int32)
        return start, tf.gather(longest, start)


def _leftmost(start: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Drops matches that begin inside of an earlier one that stays.

    From the first match on, each points to the first one after its end; those in between stay.
    Pointers are doubled, so that the way through M matches takes log(M) steps.
    """
    total = tf.size(start)
    jump = tf.pad(tf.searchsorted(start, start + length), [[0, 1]], constant_values=0)
    jump = tf.where(tf.range(total + 1) < total, jump, total)  # the end points to itself
    stays = tf.range(total + 1) == 0

    def step(reach: tf.Tensor, jump: tf.Tensor, stays: tf.Tensor) -> tuple[tf.Tensor, ...]:
        target = tf.boolean_mask(jump, stays)[:, None]
        stays = tf.tensor_scatter_nd_update(stays, target, tf.ones([tf.size(target)], tf.bool))
        return 2 * reach, tf.gather(jump, jump), stays

    *_, stays = tf.while_loop(
        lambda reach, jump, stays: reach < 2 * total,
        step,
        [1, jump, stays],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None])],
    )
    stays = stays[:-1]
    return tf.boolean_mask(start, stays), tf.boolean_mask(length, stays)


def read_phrases(phrases: str | os.PathLike | Sequence[str], tokenizer: Tokenizer) -> Phrases:
    """The lexicon that `pretraining_dataset` was given, in tokens.

    Args:
        phrases: strings, or the path of a UTF-8 file with one phrase a line. Those that the
            vocabulary cannot spell are left out with a warning.
        tokenizer: the tokenizer of the text to be searched.

    Raises:
        FileNotFoundError: no such file.
        ValueError: bytes that are not UTF-8, something that is no string, or no phrase of two
            tokens.
    """
    if isinstance(phrases, str | os.PathLike):
        phrases = _lines(phrases)
    for phrase in phrases:
        if not isinstance(phrase, str):
            raise ValueError(
                "`phrases` must be a path or a sequence of strings. "
                f"Received: {phrase!r:.100} of type {type(phrase).__name__}"
            )
    phrases = [phrase.strip() for phrase in phrases if phrase.strip()]
    if not phrases:
        raise ValueError("`phrases` must hold at least one phrase. Received: none")
    # Where blanks belong to tokens (byte-level BPE), a phrase looks different at a text's start.
    spellings = tokenizer.encode([*phrases, *(f" {phrase}" for phrase in phrases)]).to_list()
    is_spelt = [tokenizer.unk_id not in ids for ids in spellings]
    unspelt = sorted({p for p, spelt in zip(phrases, is_spelt, strict=False) if not spelt})
    if unspelt:
        warnings.warn(
            f"{len(unspelt)} of {len(phrases)} phrases have characters that the vocabulary lacks "
            f"and are left out, such as {unspelt[0]!r}",
            stacklevel=3,
        )
    return Phrases(list(itertools.compress(spellings, is_spelt)))


def _lines(path: PathLike) -> list[str]:
    if not is_file(path):
        raise FileNotFoundError(f"No lexicon (a phrase a line). Received: {os.fspath(path)}")
    lines = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                lines.append(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{os.fspath(path)}, line {number}: a lexicon must be UTF-8. "
                    f"Received: {line[:40]!r}"
                ) from error
    return lines
