"""Prefix language model: the encoder reads the beginning of a text, the decoder predicts the rest.

Source: Raffel et al. 2020, section 3.3.1 (arXiv:1910.10683); `random_prefix_noise_mask` in
t5/data/preprocessors.py of google-research/text-to-text-transfer-transformer.

Shapes: N rows, L text tokens of a row.
"""

from __future__ import annotations

from typing import ClassVar

from kbert.core.late import tf
from kbert.data.denoising.noise import Noise, Sides, Text, frame, gather_rows
from kbert.data.masking.hashing import below
from kbert.tokenizers.base import Tokenizer


class PrefixLM(Noise):
    """Prefix language model: splits text in two parts with at least one token each.

    All splits are equally likely. Both sides end with the "sep" token.
    """

    kind = "prefix_lm"
    segments: ClassVar[str] = "joined"

    def text_length(self, sequence_length: int) -> int:
        return sequence_length

    def target_length(self, sequence_length: int) -> int:
        return sequence_length

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        size = tf.minimum(1 + below(keys, tf.maximum(text.length - 1, 0)), text.length)
        rest = gather_rows(text.ids, tf.range(text.width) + size[:, None])
        specials = {"pad_id": tokenizer.pad_id, "sep_id": tokenizer.sep_id}
        return Sides(
            *frame(text.ids, size, sequence_length, **specials),
            *frame(rest, text.length - size, sequence_length, **specials),
        )
