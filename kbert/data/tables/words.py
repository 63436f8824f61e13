"""Words of texts, and windows of whole words over sentences that are too long for an encoder.

Only core TensorFlow operations are used; they run in a graph or eagerly.

Shapes: B sentences, W words of all sentences together, P subwords, N windows.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kbert.core.late import tf

# White space as in Python: Unicode's property White_Space and four separators.
_SPACES = [*range(0x09, 0x0E), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
_SPACES += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
_IS_SPACE = np.isin(np.arange(max(_SPACES) + 2), _SPACES)  # the last entry: all higher codes


def split_at_white_space(
    texts: tf.Tensor,
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Splits texts into words at white space, like `str.split`, and returns their positions.

    Args:
        texts: (B,) strings. Each byte that is not UTF-8 counts as a character of a word.

    Returns:
        Words (B, None) strings; their starts and ends (B, None) int32, in characters (indices of a
        Python str).

    Example:
        >>> words, starts, ends = split_at_white_space(tf.constant(["un  café "]))
        >>> [word.decode() for word in words[0].numpy()], starts.to_list(), ends.to_list()
        (['un', 'café'], [[0, 4]], [[2, 8]])
    """
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    space = tf.gather(_IS_SPACE, tf.minimum(codes.flat_values, len(_IS_SPACE) - 1))
    # Append one white-space character to each text, to end its last word.
    end = tf.RaggedTensor.from_tensor(tf.strings.length(texts)[:, None])
    end = end.with_row_splits_dtype(codes.row_splits.dtype)
    offsets = tf.concat([tf.cast(offsets, tf.int32), end], 1)  # (B, characters + 1)
    space = tf.concat([codes.with_values(space), tf.ones_like(end, tf.bool)], 1)
    # Every text ends with white space, so no word continues in the next text.
    before = tf.concat([[True], space.values], 0)[:-1]
    first = tf.where(~space.values & before)[:, 0]  # (W,)
    last = tf.where(space.values & ~before)[:, 0]  # (W,) the character after each word

    rows = tf.gather(offsets.value_rowids(), first)
    # Words are joined from bytes: `substr` would copy a text for each of its words.
    before = tf.cumsum(tf.strings.length(texts), exclusive=True)
    begin, end = (tf.gather(offsets.values, x) + tf.gather(before, rows) for x in (first, last))
    index = tf.ragged.range(begin, end)
    text_bytes = tf.strings.bytes_split(texts).values
    words = tf.strings.reduce_join(index.with_values(tf.gather(text_bytes, index.values)), -1)
    words = tf.RaggedTensor.from_value_rowids(words, rows, nrows=tf.size(texts, rows.dtype))
    text_start = tf.gather(offsets.row_starts(), rows)
    starts, ends = (tf.cast(x - text_start, tf.int32) for x in (first, last))
    return words, words.with_values(starts), words.with_values(ends)


@dataclasses.dataclass(frozen=True)
class WordWindows:
    """Sentences split into windows of whole words.

    Attributes:
        ids: (N, ragged) int32, subwords of each window.
        places: (N, ragged) int32, position in the window of each word's first subword.
        words: (N, ragged) int64, index of each word among all W words.
        sentences: (N,) int64, index of each window's sentence.
    """

    ids: tf.RaggedTensor
    places: tf.RaggedTensor
    words: tf.RaggedTensor
    sentences: tf.Tensor


def word_windows(pieces: tf.RaggedTensor, length: int, overlap: int) -> WordWindows:
    """Splits sentences into windows of whole words that together contain every word.

    A sentence that fits is one window; a sentence without words has none. Windows of a longer
    sentence contain as many words as fit. Each begins with the last words of the window before: as
    many as have at most `overlap` subwords together and leave space for a new word. A word that is
    longer than a window is truncated to its first subwords.

    Args:
        pieces: (B, ragged, ragged) int32, ids of each word's subwords; a word has at least one.
        length: maximum number of subwords in a window.
        overlap: maximum number of subwords that a window shares with the one before.

    Example:
        >>> pieces = tf.ragged.constant([[[1], [2], [3, 4], [5]], [[6]]], dtype=tf.int32)
        >>> windows = word_windows(pieces, length=4, overlap=2)
        >>> windows.ids.to_list(), windows.places.to_list(), windows.words.to_list()
        ([[1, 2, 3, 4], [3, 4, 5], [6]], [[0, 1, 2], [0, 2], [0]], [[0, 1, 2], [2, 3], [4]])
    """
    words = pieces.values[:, :length]  # (W, ragged)
    num_words = words.nrows()
    sentence = pieces.value_rowids()  # (W,)
    sentence_end = tf.gather(pieces.row_limits(), sentence)
    starts, ends = words.row_starts(), words.row_limits()  # (W,)
    # For each word as the first of a window: `stop`, the word after the window's last one, and
    # `following`, the first word of the next window (W if there is none).
    stop = tf.searchsorted(ends, starts + length, side="right", out_type=tf.int64)
    stop = tf.minimum(stop, sentence_end)
    is_last = stop == sentence_end
    behind = tf.gather(ends, tf.minimum(stop, num_words - 1))
    earliest = tf.maximum(tf.gather(ends, stop - 1) - overlap, behind - length)
    following = tf.searchsorted(starts, earliest, out_type=tf.int64)
    following = tf.where(is_last, num_words, following)

    first = tf.gather(_reached(pieces, following), tf.range(num_words))
    begin = tf.where(first)[:, 0]  # (N,)
    stop = tf.gather(stop, begin)
    piece_starts = tf.gather(starts, begin)
    ids = tf.ragged.range(piece_starts, tf.gather(ends, stop - 1))
    index = tf.ragged.range(begin, stop)
    offsets = tf.gather(starts, index.values) - tf.gather(piece_starts, index.value_rowids())
    return WordWindows(
        ids=ids.with_values(tf.gather(words.values, ids.values)),
        places=index.with_values(tf.cast(offsets, tf.int32)),
        words=index,
        sentences=tf.gather(sentence, begin),
    )


def _reached(pieces: tf.RaggedTensor, following: tf.Tensor) -> tf.Tensor:
    """Returns whether a window begins with each word, (W + 1,) bool; the last entry is no word.

    `following` (W,) is, for each word as the first of a window, the first word of the next window,
    or W if there is none. Windows begin with the first words of the sentences in `pieces`, and with
    all words reached from them through `following`. Each step doubles the distance, so the number
    of steps is logarithmic in the number of windows.
    """
    num_words = tf.size(following, tf.int64)
    starts = tf.boolean_mask(pieces.row_starts(), pieces.row_lengths() > 0)
    reached = _marked(starts, num_words + 1)
    following = tf.concat([following, [num_words]], 0)

    def is_unfinished(reached: tf.Tensor, following: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any(following < num_words)

    def step(reached: tf.Tensor, following: tf.Tensor) -> tuple[tf.Tensor, ...]:
        further = tf.boolean_mask(following, reached)
        reached |= _marked(further, num_words + 1)
        return reached, tf.gather(following, following)

    return tf.while_loop(is_unfinished, step, [reached, following])[0]


def _marked(places: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns (size,) bool, True at the indices `places`, which may contain duplicates."""
    counts = tf.scatter_nd(places[:, None], tf.ones_like(places), size[None])
    return counts > 0
