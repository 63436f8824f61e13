"""Decoding of WordPiece tokens to text, in the graph."""

from __future__ import annotations

from kbert.core.late import tf

# Removes spaces that come from splitting off punctuation, as (pattern, rewrite): the rules of
# Hugging Face's `clean_up_tokenization_spaces`.
_TIDY = (
    (r" ([.?!,])", r"\1"),
    (r" ' ", r"'"),
    (r" (n't|'m|'s|'ve|'re)\b", r"\1"),
)


def join_pieces(pieces: tf.RaggedTensor) -> tf.Tensor:
    """Joins tokens (B, None) into texts (B,): removes "##" and spaces before punctuation.

    Example:
        >>> import tensorflow as tf
        >>> join_pieces(tf.ragged.constant([["flight", "##less", "birds", "."]])).numpy()[0]
        b'flightless birds.'
    """
    texts = tf.strings.reduce_join(pieces, axis=-1, separator=" ")
    texts = tf.strings.regex_replace(texts, " ##", "")
    for pattern, rewrite in _TIDY:
        texts = tf.strings.regex_replace(texts, pattern, rewrite)
    return texts
