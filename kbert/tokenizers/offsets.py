"""From ranges in the normalised text to ranges in the text as given.

Shapes: B texts, C characters of all texts together, P pieces of all texts together.
"""

import tensorflow as tf

from kbert.tokenizers.normalization import IS_MARK


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
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
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
        starts: (B, None) byte offsets of the beginnings of characters.
        ends: (B, None) byte offsets of the ends of characters.

    Returns:
        Starts and ends of the same shapes, as indices of a Python str.
    """
    _, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    text_starts = tf.cumsum(tf.strings.length(texts), exclusive=True)
    original = tf.cast(offsets.flat_values, tf.int32) + tf.gather(
        text_starts, offsets.value_rowids()
    )
    rows = starts.value_rowids()
    base = tf.gather(text_starts, rows)
    first_character = tf.cast(tf.gather(offsets.row_starts(), rows), tf.int32)

    def count(ranges: tf.RaggedTensor) -> tf.RaggedTensor:
        index = tf.searchsorted(original, ranges.flat_values + base)
        return ranges.with_flat_values(index - first_character)

    return count(starts), count(ends)


def word_numbers(ids: tf.RaggedTensor, is_first: tf.Tensor) -> tf.RaggedTensor:
    """(B, None) int32: which word of its text each piece belongs to, counted from 0.

    Args:
        ids: (B, None) pieces.
        is_first: (P,) bool, the piece is the first of a word; true for the first of each text.
    """
    words = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
    before = tf.gather(words, tf.gather(ids.row_starts(), ids.value_rowids()))
    return ids.with_flat_values(words - before)
