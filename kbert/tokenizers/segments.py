"""Texts cut at the special tokens that are written in them.

Shapes: B texts, S segments of all texts together.
"""

import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kbert.tokenizers.bpe_words import WHITE_SPACE


class SpecialSegments:
    """Finds special tokens in texts.

    Args:
        tokens: special token -> id. Where one begins another, the longer one is found.
        takes_space: the token that takes the white space before it, None for none.
    """

    def __init__(self, tokens: Mapping[str, int], takes_space: str | None):
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
        segments, starts, _ = tf_text.regex_split_with_offsets(
            texts, self._pattern, keep_delim_regex_pattern=self._pattern
        )
        flat = segments.flat_values
        is_special = tf.strings.regex_full_match(flat, self._pattern)
        bare = tf.strings.regex_replace(
            tf.boolean_mask(flat, is_special), f"^[{WHITE_SPACE}]+", "", replace_global=False
        )
        index = tf.argmax(tf.cast(bare[:, None] == tf.constant(self._tokens), tf.int32), 1)
        ids = tf.RaggedTensor.from_row_lengths(
            tf.gather(self._ids, index), tf.cast(is_special, tf.int64), validate=False
        )
        return segments, tf.cast(starts.flat_values, tf.int32), ids
