"""MASS: the encoder reads text without a fragment, and the decoder predicts the fragment.

Source: Song et al. 2019, sections 3.2 and 4.1 (arXiv:1905.02450); `restricted_mask_sent` in
MASS-unsupNMT/src/trainer.py and MASS-summarization/mass/masked_dataset.py of microsoft/MASS.

Shapes: N rows, L text tokens of a row, T maximum number of tokens of a fragment.
"""

from __future__ import annotations

from typing import ClassVar

from kbert.core.late import tf
from kbert.core.options import option
from kbert.data.denoising.noise import Noise, Sides, Text, frame, gather_rows
from kbert.data.masking.hashing import below, chance, fold
from kbert.tokenizers.base import Tokenizer

_START, _ACTION, _TOKEN = range(3)  # streams of draws under a row's key


class Mass(Noise):
    """MASS: masks a contiguous fragment, which begins anywhere with equal probability.

    The decoder's input is the token before the fragment, and the fragment without its last token.
    Positions are those that these tokens have in the source. So the model must accept
    `decoder_position_ids`.

    Args:
        {options}
    """

    kind = "mass"
    segments: ClassVar[str] = "doc_sentences"
    decoder_start: ClassVar[str | None] = None
    roles: ClassVar[tuple[str, ...]] = ("pad", "cls", "sep", "mask")

    masked_share: float = option(
        0.5, help="Share of the tokens in the fragment.", above=0, at_most=1
    )
    random_share: float = option(
        0.1,
        help="Share of the fragment's tokens that are a random token in the source.",
        at_least=0,
        at_most=1,
    )
    kept_share: float = option(
        0.1,
        help="Share of the fragment's tokens that stay in the source. The others become the mask "
        "token.",
        at_least=0,
        at_most=1,
    )

    def check(self) -> None:
        if self.random_share + self.kept_share > 1 + 1e-9:
            raise ValueError(
                "`random_share` and `kept_share` must have a sum of at most 1. Received: "
                f"random_share={self.random_share}, kept_share={self.kept_share}"
            )

    def text_length(self, sequence_length: int) -> int:
        return sequence_length - 2

    def target_length(self, sequence_length: int) -> int:
        return max(1, round(self.text_length(sequence_length) * self.masked_share))

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        length = text.length
        # Rounded half to even in 64 bits, like Python's `round` in the original.
        size = tf.cast(tf.round(tf.cast(length, tf.float64) * self.masked_share), tf.int32)
        size = tf.minimum(tf.maximum(size, 1), length)
        start = below(fold(keys, _START), length - size + 1)
        number = tf.range(self.target_length(sequence_length))[None]  # (1, T)
        fragment = gather_rows(text.ids, start[:, None] + number)
        action = fold(fold(keys, _ACTION)[:, None], number)
        random_ids = below(fold(fold(keys, _TOKEN)[:, None], number), tokenizer.vocabulary_size)
        is_random = chance(action, self.random_share)
        is_changed = is_random | ~chance(action, self.random_share + self.kept_share)
        hidden = tf.where(is_random, random_ids, tokenizer.mask_id)
        hidden = tf.where(is_changed, hidden, fragment)
        offset = tf.range(text.width) - start[:, None]
        inside = (offset >= 0) & (offset < size[:, None])
        ids = tf.where(inside, gather_rows(hidden, offset), text.ids)
        source = frame(
            *(ids, length, sequence_length),
            pad_id=tokenizer.pad_id,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
        )
        previous = gather_rows(text.ids, start[:, None] - 1)[:, 0]
        return Sides(
            *source,
            target=tf.where(number < size[:, None], fragment, tokenizer.pad_id),
            target_length=size,
            start=tf.where(start > 0, previous, tokenizer.cls_id),
            first_position=start,  # in the source "cls" moves the text by one
        )
