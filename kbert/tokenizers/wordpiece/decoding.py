"""From pieces back to text, in the graph."""

from __future__ import annotations

from kbert.core.late import tf

# Spaces that the splitting of punctuation brought in, as (pattern, rewrite): the rules of Hugging
# Face's `clean_up_tokenization_spaces`.
_TIDY = (
    (r" ([.?!,])", r"\1"),
    (r" ' ", r"'"),
    (r" (n't|'m|'s|'ve|'re)\b", r"\1"),
)


def join_pieces(pieces: tf.RaggedTensor) -> tf.Tensor:
    """(B, None) pieces -> (B,) texts: "##" joins, and the space before punctuation goes.

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
