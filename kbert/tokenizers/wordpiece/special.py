"""Special tokens written inside a text, kept whole: "[MASK]" is one piece, not "[", "mask", "]"."""

import re
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Private use characters of three bytes. In place of a special token the text gets spaces and one of
# these, as many bytes together: offsets do not move.
_PRIVATE_USE = range(0xE000, 0xF900)
_CHARACTER_BYTES = 3


class SpecialTokens:
    """Hides special tokens from normalisation and word splitting, and brings their ids back.

    Args:
        vocabulary: the pieces in the order of their ids.
        tokens: the special tokens. Those of fewer than five bytes, in whose place there is no room
            for a character and two spaces, are left alone.

    Attributes:
        stand_ins: one character for each special token. Append them to the vocabulary that the
            kernel gets.
    """

    def __init__(self, vocabulary: list[str], tokens: Sequence[str]) -> None:
        self._tokens = [token for token in tokens if len(token) >= _CHARACTER_BYTES + 2]
        used = set("".join(vocabulary))
        free = [chr(code) for code in _PRIVATE_USE if chr(code) not in used]
        *self.stand_ins, self._neutral = free[: len(self._tokens) + 1]
        size = len(vocabulary)
        ids = [vocabulary.index(token) for token in self._tokens]
        self._ids = np.array([*range(size), *ids], np.int32)
        # A stand-in has one space after it and the others before it.
        spaces = [len(token) - _CHARACTER_BYTES - 1 for token in self._tokens]
        self._before = np.array([0] * size + spaces, np.int32)
        self._behind = np.array([0] * size + [1] * len(spaces), np.int32)

    def hide(self, texts: tf.Tensor) -> tf.Tensor:
        """Texts with stand-ins for special tokens; every byte offset stays."""

        def hidden() -> tf.Tensor:
            # A text that holds a stand-in itself must not pass for a special token.
            out = tf.strings.regex_replace(texts, f"[{''.join(self.stand_ins)}]", self._neutral)
            for token, stand_in in zip(self._tokens, self.stand_ins, strict=True):
                padded = " " * (len(token) - _CHARACTER_BYTES - 1) + stand_in + " "
                out = tf.strings.regex_replace(out, re.escape(token), padded)
            return out

        # Texts without a special token, the common case, are read once and left alone. That holds
        # for texts with stand-ins too: `hidden` is what makes them neutral.
        pattern = "|".join(map(re.escape, self._tokens)) + f"|[{''.join(self.stand_ins)}]"
        found = tf.reduce_any(tf.strings.regex_full_match(texts, rf"(?s)\C*({pattern})\C*"))
        return tf.cond(found, hidden, lambda: texts)

    def restore(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Ids with the special tokens' own ids in place of their stand-ins'."""
        return ids.with_flat_values(tf.gather(self._ids, ids.flat_values))

    def widen(
        self, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Byte ranges that cover the whole special token. `ids` are those of the kernel."""
        return (
            starts.with_flat_values(starts.flat_values - tf.gather(self._before, ids.flat_values)),
            ends.with_flat_values(ends.flat_values + tf.gather(self._behind, ids.flat_values)),
        )
