"""Conversion of ranges in normalised text to ranges in the original text.

Shapes: B texts, C characters of all texts together, P tokens of all texts together.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers.normalization import INVALID, IS_MARK


def original_ranges(
    texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor, table: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Converts byte ranges in normalised texts to byte ranges in the original texts.

    The number of normalised bytes of a character depends only on its code point (`byte_table`), so
    a cumulative sum maps each normalised byte to its character.

    Args:
        texts: (B,) texts before normalisation.
        starts: (B, None) first byte of each token in the normalised text.
        ends: (B, None) byte after the last byte of each token in the normalised text.
        table: `byte_table` of the normalisation that was used.

    Returns:
        Starts and ends of the same shapes, in bytes of `texts`. A token includes the stripped
        accents that follow its last character.
    """
    codes, offsets = tf.strings.unicode_decode_with_offsets(
        texts, "UTF-8", replacement_char=INVALID
    )
    entry = tf.gather(table, tf.minimum(codes.flat_values, tf.size(table) - 1))  # (C,)
    is_mark = entry >= IS_MARK
    lengths = tf.cast(tf.where(is_mark, tf.zeros_like(entry), entry), tf.int32)
    normal = tf.cumsum(lengths, exclusive=True)  # (C,) first normalised byte of each character

    # All offsets count from the start of the batch, so that no loop over texts is needed.
    text_bytes = tf.strings.length(texts)
    text_ends = tf.cumsum(text_bytes)  # (B,)
    text_starts = text_ends - text_bytes
    rows = offsets.value_rowids()
    original = tf.cast(offsets.flat_values, tf.int32) + tf.gather(text_starts, rows)  # (C,)
    # A character ends where the next character that is not a mark begins.
    cluster = tf.cumsum(tf.cast(~is_mark, tf.int32))
    cluster_starts = tf.concat([tf.boolean_mask(original, ~is_mark), text_ends[-1:]], 0)

    rows = starts.value_rowids()
    first_characters = tf.gather(codes.row_starts(), rows)
    base = tf.gather(normal, first_characters)  # (P,)
    text_start, text_end = tf.gather(text_starts, rows), tf.gather(text_ends, rows)
    first = tf.searchsorted(normal, starts.flat_values + base, side="right") - 1
    last = tf.searchsorted(normal, ends.flat_values - 1 + base, side="right") - 1
    # The last character of a text may be followed by marks at the start of the next text.
    piece_ends = tf.minimum(tf.gather(cluster_starts, tf.gather(cluster, last)), text_end)
    return (
        starts.with_flat_values(tf.gather(original, first) - text_start),
        ends.with_flat_values(piece_ends - text_start),
    )


def bytes_to_characters(
    texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Converts ranges in bytes of `texts` to ranges in code points.

    Args:
        texts: (B,) texts.
        starts: (B, None) byte offsets.
        ends: (B, None) byte offsets.

    Returns:
        Starts and ends of the same shapes, as indices of a Python str. A range that begins or ends
        inside a character includes the whole character.
    """
    _, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    text_starts = tf.cumsum(tf.strings.length(texts), exclusive=True)
    original = tf.cast(offsets.flat_values, tf.int32) + tf.gather(
        text_starts, offsets.value_rowids()
    )
    rows = starts.value_rowids()
    base = tf.gather(text_starts, rows)
    first_character = tf.cast(tf.gather(offsets.row_starts(), rows), tf.int32)

    start = tf.searchsorted(original, starts.flat_values + base, side="right") - 1
    end = tf.searchsorted(original, ends.flat_values + base)
    return (
        starts.with_flat_values(start - first_character),
        ends.with_flat_values(end - first_character),
    )


def given_ranges(
    texts: tf.Tensor, valid: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Converts ranges in texts without their invalid bytes to ranges in the original texts.

    Args:
        texts: (B,) texts, perhaps with bytes that are not UTF-8.
        valid: (B,) texts without invalid bytes, see `normalization.drop_invalid`.
        starts: (B, None) byte offsets in `valid`.
        ends: (B, None) byte offsets in `valid`.

    Returns:
        Starts and ends of the same shapes, in bytes of `texts`.
    """
    return tf.cond(
        tf.reduce_all(valid == texts),
        lambda: (starts, ends),
        lambda: _given_ranges(texts, starts, ends),
    )


def _given_ranges(
    texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Like `given_ranges`, for texts of which some have invalid bytes."""
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
    code = codes.flat_values[:, None]
    lengths = 1 + tf.reduce_sum(tf.cast(code >= [0x80, 0x800, 0x10000], tf.int32), 1)  # (C,)
    valid = tf.cumsum(lengths, exclusive=True)  # (C,) first valid byte of each character
    given_offsets = tf.cast(offsets.flat_values, tf.int32)
    rows = starts.value_rowids()
    base = tf.gather(tf.concat([valid, [0]], 0), tf.gather(codes.row_starts(), rows))  # (P,)

    def at(byte: tf.Tensor) -> tf.Tensor:
        character = tf.searchsorted(valid, byte + base, side="right") - 1
        return tf.gather(given_offsets, character) + byte + base - tf.gather(valid, character)

    start = at(starts.flat_values)
    is_empty = starts.flat_values == ends.flat_values
    end = tf.where(is_empty, start, at(tf.maximum(ends.flat_values, 1) - 1) + 1)
    return starts.with_flat_values(start), ends.with_flat_values(end)


def word_numbers(ids: tf.RaggedTensor, is_first: tf.Tensor) -> tf.RaggedTensor:
    """Returns the index of each token's word in its text, from 0: (B, None) int32.

    Args:
        ids: (B, None) token ids.
        is_first: (P,) bool, whether a token begins a word; true for the first token of each text.
    """
    words = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    words_before = tf.gather(words, tf.gather(ids.row_starts(), ids.value_rowids()))
    return ids.with_flat_values(words - words_before)
