"""A lexicon of phrases, matched in rows of tokens, so that each phrase is masked as one unit.

Phrases are entities and noun phrases (ERNIE, Sun et al. 2019, arXiv:1904.09223). Where a tokenizer
splits text into characters, they are Chinese words (BERT-wwm, Cui et al. 2019, arXiv:1906.08101).

All rows are searched at once, one phrase length after the other. A rolling hash of each window of
tokens is looked up in a bitmap. The few windows that pass are compared with the phrase token by
token, so a hash collision is never a match.

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
# Bits of a bitmap's index in addition to those that count its phrases: at most one window in 16
# passes by chance.
_FILTER_BITS = 4


@dataclasses.dataclass(frozen=True)
class _Table:
    """The phrases of one length.

    Attributes:
        ids: (V, L) int32, token ids in the order of the hashes.
        hashes: (V,) int64, ascending.
        bitmap: (2**bits,) bool, indexed by the highest bits of a hash; True if some phrase has
            them.
        bits: number of these highest bits.
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
    """Phrases of at least two tokens, to be matched in rows.

    Args:
        phrases: token ids of each phrase; phrases of one token are ignored.

    Raises:
        ValueError: no phrase has two tokens or more.

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
                "`phrases` must contain a phrase of at least two tokens (a single token is a "
                f"unit by itself). Received: {len(phrases)} phrase(s) of at most one token"
            )
        self._tables = [
            _Table.of(np.array(sorted(by_length[length]), np.int32)) for length in sorted(by_length)
        ]

    def join(self, token_ids: tf.Tensor, in_text: tf.Tensor, begins: tf.Tensor) -> tf.Tensor:
        """Joins the words of each matched phrase into one unit.

        Matches from left to right; of all phrases that begin at a word, the longest. A phrase must
        begin where a word begins and end where a word ends.

        Args:
            token_ids: (N, T) int32, token ids of the rows.
            in_text: (N, T) bool, tokens of the text.
            begins: (N, T) bool, True where a word begins.

        Returns:
            (N, T) bool: `begins`, set to False inside of phrases.
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
        """Returns start and length in tokens of the matches in all rows, (M,) int32 each, in order.

        A match is the longest phrase that begins at its position. It begins where a word begins and
        ends where a word ends. Starts are counted through all rows (row * T + position). The
        arguments are those of `join`.
        """
        width = token_ids.shape[1]
        powers = _powers(_BASE, width).view(np.int64)
        inverse = _powers(pow(_BASE, -1, _WORD), width).view(np.int64)
        weighted = (tf.cast(token_ids, tf.int64) + 1) * powers
        prefix_sums = tf.pad(tf.cumsum(weighted, 1), [[0, 0], [1, 0]])  # (N, T + 1)
        # A word ends before each of these positions; the extra one is after the last row.
        stops = tf.reshape(begins | ~in_text, [-1])
        stops = tf.concat([stops, [True]], 0)
        flat_ids, flat_begins = tf.reshape(token_ids, [-1]), tf.reshape(begins, [-1])
        longest = tf.zeros(tf.shape(flat_ids), tf.int32)
        for table in self._tables:
            size = table.ids.shape[1]
            if size > width:
                break
            hashes = (prefix_sums[:, size:] - prefix_sums[:, :-size]) * inverse[: width - size + 1]
            high = tf.bitwise.right_shift(
                tf.bitcast(hashes, tf.uint64), tf.constant(64 - table.bits, tf.uint64)
            )
            passed = tf.where(tf.gather(table.bitmap, tf.cast(high, tf.int32)))  # (M, 2)
            candidate_hashes = tf.gather_nd(hashes, passed)
            phrase = tf.searchsorted(table.hashes, candidate_hashes)
            phrase = tf.minimum(phrase, len(table.hashes) - 1)
            position = tf.cast(passed[:, 0] * width + passed[:, 1], tf.int32)
            ids = tf.gather(flat_ids, position[:, None] + tf.range(size))
            equal = tf.reduce_all(ids == tf.gather(table.ids, phrase), 1)
            equal &= tf.gather(flat_begins, position) & tf.gather(stops, position + size)
            position = tf.boolean_mask(position, equal)
            # Tables are sorted by length: a longer match overwrites a shorter one.
            longest = tf.tensor_scatter_nd_update(
                longest, position[:, None], tf.fill(tf.shape(position), size)
            )
        start = tf.cast(tf.where(longest > 0)[:, 0], tf.int32)
        return start, tf.gather(longest, start)


def _leftmost(start: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Drops matches that begin inside of an earlier match that stays; returns those that stay.

    Matches are given and returned as start, ascending, and length in tokens, (M,) int32 each.
    Each match points to the first match that begins at or after its end. The matches on the path
    from the first one stay. Pointers are doubled, so a path through M matches takes log(M) steps.
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
    """Tokenises the lexicon given to `pretraining_dataset`.

    Args:
        phrases: strings, or the path of a UTF-8 file with one phrase per line. Phrases that the
            vocabulary cannot spell are left out with a warning.
        tokenizer: tokenizer of the text to be searched.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not UTF-8, a phrase is not a string, or no phrase has two tokens.
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
        raise ValueError("`phrases` must contain at least one phrase. Received: none")
    # Where spaces are part of tokens (byte-level BPE), a phrase has other ids at a text's start.
    spellings = tokenizer.encode([*phrases, *(f" {phrase}" for phrase in phrases)]).to_list()
    is_spelt = [tokenizer.unk_id not in ids for ids in spellings]
    unspelt = sorted({p for p, spelt in zip(phrases, is_spelt, strict=False) if not spelt})
    if unspelt:
        warnings.warn(
            f"{len(unspelt)} of {len(phrases)} phrases have characters that the vocabulary lacks "
            f"and are skipped, such as {unspelt[0]!r}",
            stacklevel=3,
        )
    return Phrases(list(itertools.compress(spellings, is_spelt)))


def _lines(path: PathLike) -> list[str]:
    """Returns the lines of a lexicon, with their line ends.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not UTF-8.
    """
    if not is_file(path):
        raise FileNotFoundError(
            f"No such lexicon (one phrase per line). Received: {os.fspath(path)}"
        )
    lines = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                lines.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{os.fspath(path)}, line {number}: a lexicon must be UTF-8. "
                    f"Received: {line[:40]!r}"
                ) from error
    return lines
