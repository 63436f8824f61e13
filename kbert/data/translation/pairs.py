"""Pairs of texts as ids in memory, tokenised once.

Shapes: N pairs, B rows of a batch, S and T tokens of its sources and targets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np
from absl import logging

from kbert.core.late import tf
from kbert.data.corpus.records import token_dtype
from kbert.io.chunks import chunks
from kbert.tokenizers.base import Tokenizer

_CHUNK = 4096  # pairs that are tokenised at once


@dataclasses.dataclass(frozen=True)
class Side:
    """The ids of one side of all pairs, one text after the other.

    Args:
        ids: token ids of all texts: a uint16 tensor if the vocabulary allows it, else int32.
        lengths: (N,) int32, number of ids of each text.
    """

    ids: tf.Tensor
    lengths: np.ndarray

    @functools.cached_property
    def _places(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Start of each text in `ids`, and its number of ids, (N + 1,) each; text N is empty."""
        starts = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(np.append(starts, 0)), tf.constant(np.append(self.lengths, 0))

    def gather(self, rows: tf.Tensor, width: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids, (B, width) int32, and lengths, (B, 1) int32, of some texts.

        `rows` (B,) are the numbers of the texts; N is an empty text. The ids after the end of a
        text are arbitrary.
        """
        starts, lengths = self._places
        last = tf.size(self.ids, tf.int64) - 1
        column = tf.range(tf.cast(width, tf.int64))
        index = tf.minimum(tf.gather(starts, rows)[:, None] + column, last)
        ids = tf.cast(tf.gather(self.ids, index), tf.int32)
        return ids, tf.cast(tf.gather(lengths, rows)[:, None], tf.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedPairs:
    """Encoded pairs, the result of `encode_pairs`.

    Args:
        source: ids of the sources, without special tokens.
        target: ids of the targets, without special tokens.
        max_length: maximum number of tokens of a text, with the end token.
        too_long: number of pairs left out because a side is longer.
        empty: number of pairs left out because a side has no tokens.
        checksum: checksum of the tokenizer.
    """

    source: Side
    target: Side
    max_length: int
    too_long: int
    empty: int
    checksum: str

    def __len__(self) -> int:
        return len(self.source.lengths)


def encode_pairs(
    pairs: Iterable[tuple[str, str]],
    tokenizer: Tokenizer,
    *,
    max_length: int,
) -> EncodedPairs:
    """Tokenises pairs and keeps their ids in memory.

    An id needs 2 bytes for a vocabulary of up to 65,536 tokens, else 4. A million pairs with 30
    tokens on either side need 130 MB, and their batches 200 MB more. White space around a text is
    removed, as in files of pairs. Pairs are left out if a side has more than `max_length` tokens,
    with the end token, or no tokens at all; their number is logged.

    Args:
        pairs: pairs of (source, target).
        tokenizer: tokenizer of the sources; its `target` is that of the targets.
        max_length: maximum number of tokens of a source or a target, with the end token.

    Raises:
        ValueError: an element is not a pair of strings.

    Example:
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "go", "geh", "!"])
        >>> encoded = encode_pairs([("Go!", "Geh!"), ("Go", "Geh!!!!!")], tokenizer, max_length=4)
        >>> len(encoded), encoded.too_long, encoded.target.ids.numpy().tolist()
        (1, 1, [6, 7])
    """
    tokenizers = (tokenizer, tokenizer.target)
    dtype = token_dtype(max(x.vocabulary_size for x in tokenizers))

    parts: tuple[list, list] = ([], [])
    too_long = empty = 0
    for texts in _chunks(pairs):
        sides = [x.encode(side) for x, side in zip(tokenizers, texts, strict=True)]
        lengths = np.stack([side.row_lengths() for side in sides])
        fits, has_tokens = np.all(lengths < max_length, 0), np.all(lengths > 0, 0)
        too_long += int(np.sum(~fits))
        empty += int(np.sum(fits & ~has_tokens))
        is_kept = fits & has_tokens
        for part, side, count in zip(parts, sides, lengths, strict=True):
            ids = tf.boolean_mask(tf.cast(side.flat_values, dtype), np.repeat(is_kept, count))
            part.append((ids, count[is_kept]))
    if too_long:
        logging.warning(
            "%d pairs are skipped: the source or target has more than %d tokens",
            too_long,
            max_length,
        )
    if empty:
        logging.warning("%d pairs are skipped: the source or target has no tokens", empty)
    source, target = (_join(part, dtype) for part in parts)
    return EncodedPairs(
        source=source,
        target=target,
        max_length=max_length,
        too_long=too_long,
        empty=empty,
        checksum=tokenizer.checksum,
    )


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the pairs in chunks: the source texts and the target texts, stripped.

    A pair that is not two strings raises ValueError.
    """
    for chunk in chunks(enumerate(pairs), _CHUNK):
        for number, pair in chunk:
            if (
                not isinstance(pair, tuple | list)
                or len(pair) != 2
                or not all(isinstance(text, str) for text in pair)
            ):
                raise ValueError(
                    f"A pair must be two strings, a source and a target. Received: {pair!r:.80} "
                    f"as pair {number} (from 0)"
                )
        yield [pair[0].strip() for _, pair in chunk], [pair[1].strip() for _, pair in chunk]


def _join(parts: list[tuple[tf.Tensor, np.ndarray]], dtype: str) -> Side:
    # The ids are tensors throughout: TensorFlow uses twice the memory for tensors made from NumPy.
    with tf.device("CPU"):
        ids = tf.concat([tf.zeros([0], dtype), *(ids for ids, _ in parts)], 0)
    lengths = [np.zeros(0, np.int32), *(lengths.astype(np.int32) for _, lengths in parts)]
    return Side(ids, np.concatenate(lengths))
