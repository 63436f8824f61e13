"""Texts cut at the special tokens that are written in them.

Shapes: B texts, S segments of all texts together.
"""

import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from kbert.tokenizers.bpe.pre_split import WHITE_SPACE, split_at


class SpecialSegments:
    """Finds special tokens in texts.

    Args:
        tokens: special token -> id. Where one is a prefix of another, the longer one is found.
        takes_space: the token that takes the white space before it, None for none.
    """

    def __init__(self, tokens: Mapping[str, int], takes_space: str | None) -> None:
        self._tokens = sorted(tokens)
        self._ids = np.array([tokens[token] for token in self._tokens], np.int32)
        longest_first = sorted(tokens, key=lambda token: (-len(token), token))
        self._pattern = "|".join(
            (f"[{WHITE_SPACE}]*" if token == takes_space else "") + re.escape(token)
            for token in longest_first
        )

    def found(self, texts: tf.Tensor) -> tf.Tensor:
        """Whether any of the (B,) texts holds a special token."""
        return tf.reduce_any(tf.strings.regex_full_match(texts, rf"(?s).*?({self._pattern}).*"))

    def cut(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor, tf.RaggedTensor]:
        """Cuts texts before and after special tokens.

        Args:
            texts: (B,) valid UTF-8.

        Returns:
            Segments (B, None), together the text; the first byte of each (S,) int32; their special
            tokens' ids (S, 0 or 1) int32.
        """
        segments = split_at(texts, self._pattern)
        flat = segments.flat_values
        before = tf.cumsum(tf.strings.length(flat), exclusive=True)
        text_starts = tf.cumsum(tf.strings.length(texts), exclusive=True)
        starts = before - tf.gather(text_starts, segments.value_rowids())
        is_special = tf.strings.regex_full_match(flat, self._pattern)
        bare = tf.strings.regex_replace(
            tf.boolean_mask(flat, is_special), f"^[{WHITE_SPACE}]+", "", replace_global=False
        )
        index = tf.argmax(tf.cast(bare[:, None] == tf.constant(self._tokens), tf.int32), 1)
        ids = tf.RaggedTensor.from_row_lengths(
            tf.gather(self._ids, index), tf.cast(is_special, tf.int64), validate=False
        )
        return segments, starts, ids
