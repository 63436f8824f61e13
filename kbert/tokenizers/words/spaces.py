"""Splitting at white space in the graph, for word and character models."""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers import text_ops
from kbert.tokenizers.normalization import unless

# Unicode's white space beyond ASCII, by its number of bytes.
_TWO_BYTES = r"\x{85}\x{A0}"
_THREE_BYTES = r"\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"


def split_at_spaces(texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Splits texts at Unicode white space; returns the words unchanged, with their offsets.

    Python's `str.split` also counts U+001C … U+001F as white space; here they are letters.

    Args:
        texts: (B,) strings; bytes that are not UTF-8 count as letters.

    Returns:
        Words, and the bytes where they start and end (int32), each (B, None).

    Example:
        >>> words, starts, _ = split_at_spaces(tf.constant(["Wait ,\\u3000Ann !"]))
        >>> [word.decode() for word in words[0].numpy()], starts.to_list()
        (['Wait', ',', 'Ann', '!'], [[0, 5, 9, 13]])
    """
    texts = unless(f"[^{_TWO_BYTES}{_THREE_BYTES}]*", texts, _with_plain_spaces)
    return text_ops.split_at_spaces(texts)


def _with_plain_spaces(texts: tf.Tensor) -> tf.Tensor:
    """Replaces multi-byte white space by as many spaces as it has bytes.

    tensorflow-text also splits at such white space, but leaves all its bytes but one in the word.
    """
    texts = tf.strings.regex_replace(texts, f"[{_TWO_BYTES}]", 2 * " ")
    return tf.strings.regex_replace(texts, f"[{_THREE_BYTES}]", 3 * " ")
