"""From ranges in the normalised text to ranges in the text as given.

Shapes: B texts, C characters of all texts together, P pieces of all texts together.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers.normalization import INVALID, IS_MARK


def original_ranges(
    texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor, table: tf.Tensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Byte ranges in the original texts.

    The text is laid out as characters; how many normalised bytes each became is known from its
    code point alone (`byte_table`), so a running sum leads from a normalised byte to its character.

    Args:
        texts: (B,) texts before normalisation.
        starts: (B, None) first byte of each piece in the normalised text.
        ends: (B, None) the byte after its last.
        table: `byte_table` of the normalisation that was used.

    Returns:
        Starts and ends of the same shapes, in bytes of `texts`. A piece takes the stripped accents
        that follow its last character.
    """
    codes, offsets = tf.strings.unicode_decode_with_offsets(
        texts, "UTF-8", replacement_char=INVALID
    )
    entry = tf.gather(table, tf.minimum(codes.flat_values, tf.size(table) - 1))  # (C,)
    is_mark = entry >= IS_MARK
    lengths = tf.cast(tf.where(is_mark, tf.zeros_like(entry), entry), tf.int32)
    normal = tf.cumsum(lengths, exclusive=True)  # (C,) first normalised byte of each character

    # Everything counts from the start of the batch, so that texts need no loop.
    text_bytes = tf.strings.length(texts)
    text_ends = tf.cumsum(text_bytes)  # (B,)
    text_starts = text_ends - text_bytes
    rows = offsets.value_rowids()
    original = tf.cast(offsets.flat_values, tf.int32) + tf.gather(text_starts, rows)  # (C,)
    # A character ends where the next one begins that is not a mark of it.
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
    """Ranges in bytes of `texts` as ranges in code points.

    Args:
        texts: (B,) texts.
        starts: (B, None) byte offsets.
        ends: (B, None) byte offsets.

    Returns:
        Starts and ends of the same shapes, as indices of a Python str. A range that begins or ends
        inside a character takes the whole of it.
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
    """Ranges in texts without their invalid bytes as ranges in the texts as given.

    Args:
        texts: (B,) texts, perhaps with bytes that are not UTF-8.
        valid: (B,) what is left of them, see `normalization.drop_invalid`.
        starts: (B, None) byte offsets in that.
        ends: (B, None) likewise.

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
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
    code = codes.flat_values[:, None]
    lengths = 1 + tf.reduce_sum(tf.cast(code >= [0x80, 0x800, 0x10000], tf.int32), 1)  # (C,)
    valid = tf.cumsum(lengths, exclusive=True)  # (C,) first valid byte of each character
    given = tf.cast(offsets.flat_values, tf.int32)
    rows = starts.value_rowids()
    base = tf.gather(tf.concat([valid, [0]], 0), tf.gather(codes.row_starts(), rows))  # (P,)

    def at(byte: tf.Tensor) -> tf.Tensor:
        character = tf.searchsorted(valid, byte + base, side="right") - 1
        return tf.gather(given, character) + byte + base - tf.gather(valid, character)

    start = at(starts.flat_values)
    is_empty = starts.flat_values == ends.flat_values
    end = tf.where(is_empty, start, at(tf.maximum(ends.flat_values, 1) - 1) + 1)
    return starts.with_flat_values(start), ends.with_flat_values(end)


def word_numbers(ids: tf.RaggedTensor, is_first: tf.Tensor) -> tf.RaggedTensor:
    """(B, None) int32: which word of its text each piece belongs to, counted from 0.

    Args:
        ids: (B, None) pieces.
        is_first: (P,) bool, the piece is the first of a word; true for the first of each text.
    """
    words = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    before = tf.gather(words, tf.gather(ids.row_starts(), ids.value_rowids()))
    return ids.with_flat_values(words - before)
