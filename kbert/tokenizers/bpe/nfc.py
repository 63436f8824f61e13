"""Canonical composition (NFC) in the graph, and conversion of ranges to the original text.

Shapes: B texts, S parts of all texts together.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers import text_ops
from kbert.tokenizers.token_segments import split_at

# Characters that may compose with, or be reordered among, the characters before them: marks, the
# vowels and final consonants of Hangul, and additions of Unicode 15 and 16 that RE2 lacks.
_JOINING = (
    r"\p{M}\x{1160}-\x{11FF}\x{897}\x{10D69}-\x{10D6D}\x{113B8}-\x{113C9}\x{113CE}-\x{113D0}"
    r"\x{1611E}-\x{1612F}\x{16D67}\x{16D68}\x{1E5EE}\x{1E5EF}"
)
# Common characters that NFC does not change: Latin, Cyrillic, Chinese, Hangul.
_PLAIN = (
    r"\x{0}-\x{2FF}\x{400}-\x{482}\x{48A}-\x{52F}\x{1E00}-\x{1EFF}\x{3400}-\x{4DBF}"
    r"\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}"
)
# A group of characters that composes independently of the characters around it.
_GROUP = rf"[^{_JOINING}]?[{_JOINING}]+|[^{_PLAIN}]"


def nfc(texts: tf.Tensor) -> tf.Tensor:
    """Converts texts (B,), valid UTF-8, to Unicode's composed form.

    Example:
        >>> import tensorflow as tf
        >>> nfc(tf.constant(["cafe\\u0301"])).numpy()[0].decode()
        'café'
    """
    return text_ops.normalized(texts, "NFC")


def ranges_before_nfc(
    texts: tf.Tensor, composed: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Converts ranges in composed texts to ranges in the original texts.

    Args:
        texts: (B,) valid UTF-8.
        composed: (B,) `nfc` of `texts`.
        starts: (B, None) byte offsets in `composed`.
        ends: (B, None) byte offsets in `composed`.

    Returns:
        Starts and ends of the same shapes, in bytes of `texts`. A range that begins or ends inside
        a composed group includes the whole group: a letter with its accents, a syllable with its
        letters.
    """
    return tf.cond(
        tf.reduce_all(texts == composed),
        lambda: (starts, ends),
        lambda: _ranges_before(texts, composed, starts, ends),
    )


def _ranges_before(
    texts: tf.Tensor, composed: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Like `ranges_before_nfc`, for texts of which some are not composed."""
    parts = split_at(texts, _GROUP).flat_values  # (S,)
    composed_parts = nfc(parts)
    changed = composed_parts != parts
    # All offsets count from the start of the batch, so that no loop over texts is needed.
    part_bytes = tf.strings.length(parts)
    begins = tf.cumsum(part_bytes, exclusive=True)
    begins_after = tf.cumsum(tf.strings.length(composed_parts), exclusive=True)
    rows = starts.value_rowids()
    text_start = tf.gather(tf.cumsum(tf.strings.length(texts), exclusive=True), rows)
    base = tf.gather(tf.cumsum(tf.strings.length(composed), exclusive=True), rows)

    def part_of(byte: tf.Tensor) -> tf.Tensor:
        return tf.searchsorted(begins_after, byte, side="right") - 1

    def byte_before(byte: tf.Tensor, part: tf.Tensor, in_changed: tf.Tensor) -> tf.Tensor:
        in_part = tf.where(
            tf.gather(changed, part), in_changed, byte - tf.gather(begins_after, part)
        )
        return tf.gather(begins, part) + in_part - text_start

    first = starts.flat_values + base
    part = part_of(first)
    start = byte_before(first, part, tf.zeros_like(part))
    end = ends.flat_values + base
    part = part_of(tf.maximum(end, 1) - 1)
    is_empty = starts.flat_values == ends.flat_values
    end = tf.where(is_empty, start, byte_before(end, part, tf.gather(part_bytes, part)))
    return starts.with_flat_values(start), ends.with_flat_values(end)
