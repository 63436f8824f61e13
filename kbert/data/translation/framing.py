"""Special tokens around the texts of an encoder-decoder."""

from __future__ import annotations

import dataclasses

from kbert.core.late import tf
from kbert.tokenizers.base import Tokenizer


@dataclasses.dataclass(frozen=True)
class Ends:
    """Token ids before and after a text.

    Attributes:
        begin: ids before the text.
        end: ids after it.
    """

    begin: tuple[int, ...]
    end: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.begin) + len(self.end)


@dataclasses.dataclass(frozen=True)
class Framing:
    """Special tokens of sources and targets.

    Attributes:
        start_id: id of the decoder's first input token.
        source: tokens around a source.
        target: tokens around a target, which the decoder predicts.
        source_pad: id of the sources' padding.
        target_pad: id of the targets' padding.
    """

    start_id: int
    source: Ends
    target: Ends
    source_pad: int
    target_pad: int

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, start_id: int | None = None, special_tokens: str = "end"
    ) -> Framing:
        """Returns the framing of a tokenizer's texts.

        Args:
            tokenizer: tokenizer of the sources; its `target` is that of the targets.
            start_id: id of the decoder's first input token. None = "cls", or "pad" without one. If
                a language's code ends the targets, as in mBART, that code begins them.
            special_tokens: "end": only "sep" ends a text; "all": the tokenizer's `prefix_ids` and
                `suffix_ids` are around it.

        Raises:
            ValueError: the tokenizer lacks a token.

        Example:
            >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
            >>> Framing.of(WordPieceTokenizer(SPECIAL_TOKENS)).target
            Ends(begin=(), end=(3,))
        """
        targets = tokenizer.target
        if start_id is None:
            start_id = targets.pad_id if targets.cls_id is None else targets.cls_id
        if None in (tokenizer.sep_id, targets.sep_id, start_id):
            raise ValueError(
                'The tokenizer must have a "cls" or "pad" token, which begins a target, and a '
                '"sep" token, which ends a text: name them with special_tokens=. Received: a '
                f"{type(tokenizer).__name__} with cls={targets.cls_id}, pad={targets.pad_id}, "
                f"sep={targets.sep_id}"
            )
        if special_tokens == "all":
            sides = [Ends(x.prefix_ids, x.suffix_ids) for x in (tokenizer, targets)]
            if len(targets.suffix_ids) > 1:
                start_id = targets.suffix_ids[-1]
        else:
            sides = [Ends((), (x.sep_id,)) for x in (tokenizer, targets)]
        pads = [x.sep_id if x.pad_id is None else x.pad_id for x in (tokenizer, targets)]
        return cls(start_id, sides[0], sides[1], pads[0], pads[1])

    @classmethod
    def one_row(cls, tokenizer: Tokenizer) -> Framing:
        """Returns the framing of a source and a target in one row of an encoder, as in UniLM.

        The row is "cls", source, "sep", target, "sep". Raises ValueError if the tokenizer lacks one
        of these tokens, or "mask", which hides tokens of the target.

        Example:
            >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
            >>> Framing.one_row(WordPieceTokenizer(SPECIAL_TOKENS)).source
            Ends(begin=(2,), end=(3,))
        """
        if None in (tokenizer.cls_id, tokenizer.mask_id):
            raise ValueError(
                'The tokenizer must have a "cls" token, which begins a source, and a "mask" token, '
                "which hides tokens of the target: name them with special_tokens=. Received: a "
                f"{type(tokenizer).__name__} with cls={tokenizer.cls_id}, mask={tokenizer.mask_id}"
            )
        framing = cls.of(tokenizer)
        source = Ends((tokenizer.cls_id,), framing.source.end)
        return dataclasses.replace(framing, source=source)

    def longest_text(self, max_length: int) -> int:
        """Returns `max_length` of `encode_pairs`, whose texts have only an end token."""
        return max_length - max(len(self.source), len(self.target)) + 1

    def features(
        self,
        source: tuple[tf.Tensor, tf.Tensor],
        target: tuple[tf.Tensor, tf.Tensor],
    ) -> dict[str, tf.Tensor]:
        """Returns the inputs and targets of an encoder-decoder.

        Args:
            source: ids (R, S) and padding mask (R, S) int32 of the sources, with their special
                tokens; see `framed`.
            target: the same of the targets, (R, T).

        Returns:
            `encoder_token_ids` and `encoder_padding_mask` (R, S) int32; `decoder_token_ids` and
            `decoder_padding_mask` (R, T) int32, the start token and the targets except the last;
            `targets` (R, T) int32; `weights` (R, T) float32, 1 for a token.
        """
        targets, mask = target
        shifted = tf.pad(targets, [[0, 0], [1, 0]], constant_values=self.start_id)[:, :-1]
        return {
            "encoder_token_ids": source[0],
            "encoder_padding_mask": source[1],
            "decoder_token_ids": tf.where(mask > 0, shifted, self.target_pad),
            "decoder_padding_mask": mask,
            "targets": targets,
            "weights": tf.cast(mask, tf.float32),
        }


def framed(
    ids: tf.Tensor, length: tf.Tensor, ends: Ends, pad_id: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds special tokens around texts.

    Args:
        ids: (R, W) int32; any id after the end of a text.
        length: (R, 1) int32, tokens of each text; W has space for `ends`.
        ends: tokens before and after a text.
        pad_id: id of padding.

    Returns:
        Ids (R, W) int32 and their padding mask (R, W) int32, 1 for a token.

    Example:
        >>> ids, mask = framed(tf.constant([[7, 8, 0, 0, 0]]), tf.constant([[2]]),
        ...                    Ends((2,), (3,)), 1)
        >>> ids.numpy().tolist(), mask.numpy().tolist()
        ([[2, 7, 8, 3, 1]], [[1, 1, 1, 1, 0]])
    """
    first = len(ends.begin)
    column, end = tf.range(tf.shape(ids)[1]), length + first
    if first:
        ids = tf.pad(ids, [[0, 0], [first, 0]])[:, :-first]
    ids = tf.where(column < end, ids, pad_id)
    for place, token_id in enumerate(ends.begin):
        ids = tf.where(column == place, token_id, ids)
    for place, token_id in enumerate(ends.end):
        ids = tf.where(column == end + place, token_id, ids)
    return ids, tf.cast(column < end + len(ends.end), tf.int32)
