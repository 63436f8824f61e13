"""Byte-level byte-pair encoding, GPT-2's and RoBERTa's, in the graph and eager."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from kbert.files import Path
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS, piece_bytes
from kbert.tokenizers.bpe.files import as_merges, as_vocabulary, check_model, save_model
from kbert.tokenizers.bpe.kernel import BytePairKernel
from kbert.tokenizers.bpe.pre_split import WHITE_SPACE, prefix_space
from kbert.tokenizers.bpe.special_segments import SpecialSegments
from kbert.tokenizers.normalization import drop_invalid
from kbert.tokenizers.offsets import given_ranges
from kbert.types import MaybeNone

_SPACE = CHARACTERS[ord(" ")]
_ROBERTA = "RobertaTokenizer"
# GPT-2's and RoBERTa's vocabularies are recognised by these tokens.
ROBERTA_TOKENS = {
    "pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>",
    "bos": "<s>", "eos": "</s>",
}  # fmt: skip
GPT2_TOKENS = dict.fromkeys(("unk", "cls", "sep", "bos", "eos"), "<|endoftext|>")


class BytePairTokenizer(Tokenizer):
    """Splits text into GPT-2's byte-level pieces and back.

    It gives the ids of openai/gpt-2's `Encoder` (Radford et al. 2019; encoder.py) and of Hugging
    Face's `tokenizers`, eagerly, inside `tf.data` and inside a SavedModel, and holds no resource
    that an export would have to track. No text is unknown to it: `decode` gives back what was
    encoded.

    A piece covers the space before its word, and its range does so too. Bytes that are not valid
    UTF-8 are dropped. Where pieces end inside a character, their ranges in characters take the
    whole of it; where ids spell bytes that are no UTF-8, `decode` puts U+FFFD as Python does.

    Args:
        vocabulary: piece -> id, or the pieces in the order of their ids, or the path of a
            vocab.json. It must hold all 256 bytes and what the merges make.
        merges: pairs of pieces ("Ġ t" or ("Ġ", "t")), the first to be merged first, or the path of
            a merges.txt.
        special_tokens: role -> special token: "pad", "unk", "cls", "sep",
            "mask", "bos", "eos". None: RoBERTa's (<s> and </s> for "cls" and "sep", <pad>, <unk>,
            <mask>) or else GPT-2's (<|endoftext|> for all but "pad" and "mask"), as the vocabulary
            holds them.
        additional_special_tokens: special tokens without a role.
        add_prefix_space: encode a text as if it began with a space. For a corpus that is
            encoded sentence by sentence, whose words would run together at the joints.
        special_tokens_in_text: "<mask>" in a text becomes the mask id (and so do the others).
            Hugging Face always does so; leave it off where texts come from strangers.
        mask_takes_space: white space before the mask token belongs to it, as in RoBERTa.

    Where it differs from Hugging Face: letters and numbers that one side's Unicode tables do not
    know yet (ours go up to Unicode 16), and special tokens in the text, see above.

    Example:
        >>> from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
        >>> vocabulary = [*CHARACTERS, "lo", "low", "Ġlow"]
        >>> tokenizer = BytePairTokenizer(vocabulary, ["l o", "lo w", "Ġ low"])
        >>> [vocabulary[i] for i in tokenizer.encode("low, lower")]
        ['low', ',', 'Ġlow', 'e', 'r']
        >>> tokenizer.decode(tokenizer.encode("low 💡").numpy())
        'low 💡'
    """

    kind = "bpe"

    def __init__(
        self,
        vocabulary: Mapping[str, int] | Sequence[str] | str | os.PathLike,
        merges: Iterable[str | tuple[str, str]] | str | os.PathLike,
        *,
        special_tokens: Mapping[str, str] | None = None,
        additional_special_tokens: Sequence[str] = (),
        add_prefix_space: bool = False,
        special_tokens_in_text: bool = False,
        mask_takes_space: bool = True,
    ) -> None:
        vocabulary = as_vocabulary(vocabulary)
        self.merges: list[tuple[str, str]] = as_merges(merges)
        if special_tokens is None:
            special_tokens = known_tokens(vocabulary)
        check_model(vocabulary, self.merges, [*special_tokens.values(), *additional_special_tokens])
        super().__init__(vocabulary, special_tokens, additional_special_tokens)
        self.add_prefix_space = add_prefix_space
        self.special_tokens_in_text = special_tokens_in_text
        self.mask_takes_space = mask_takes_space
        if self.cls_token == "<s>":  # RoBERTa: <s> A </s></s> B </s>
            self.pair_separators = 2
        specials = {vocabulary[i]: i for i in self.special_ids}
        self.continuation = np.array(
            [not piece.startswith(_SPACE) and piece not in specials for piece in vocabulary]
        )
        self._segments: SpecialSegments | MaybeNone = (
            SpecialSegments(specials, self.mask_token if mask_takes_space else None)
            if special_tokens_in_text and specials
            else None
        )
        self._bytes = [p.encode() if p in specials else piece_bytes(p) for p in vocabulary]
        self._num_bytes = np.array([len(data) for data in self._bytes], np.int32)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the vocabulary, the merges and the settings, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.get_config(), sort_keys=True).encode()).hexdigest()

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocabulary": list(self.vocabulary),
            "merges": [" ".join(pair) for pair in self.merges],
            "special_tokens": dict(self.special_tokens),
            "additional_special_tokens": list(self.additional_special_tokens),
            "add_prefix_space": self.add_prefix_space,
            "special_tokens_in_text": self.special_tokens_in_text,
            "mask_takes_space": self.mask_takes_space,
        }

    def cut_at_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """As the base class; white space before a mask is dropped where the mask takes it."""
        pieces = super().cut_at_masks(texts)
        if not self.mask_takes_space:
            return pieces
        bare = tf.strings.regex_replace(pieces.flat_values, f"[{WHITE_SPACE}]+$", "")
        is_last = tf.scatter_nd(
            pieces.row_limits()[:, None] - 1,
            tf.ones([pieces.nrows()], tf.bool),
            tf.size(pieces.flat_values, tf.int64)[None],
        )
        return pieces.with_flat_values(tf.where(is_last, pieces.flat_values, bare))

    def _options(self) -> dict[str, Any]:
        options = {
            "tokenizer_class": _ROBERTA if self.pair_separators == 2 else "GPT2Tokenizer",
            "add_prefix_space": self.add_prefix_space,
            "special_tokens_in_text": self.special_tokens_in_text,
        }
        if self.mask_token is not None:
            options["mask_token"] = {
                "__type": "AddedToken",
                "content": self.mask_token,
                "lstrip": self.mask_takes_space,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
        return options

    def _save_model(self, folder: Path) -> None:
        save_model(folder, self.vocabulary, self.merges)

    @cached_property
    def _kernel(self) -> BytePairKernel:
        """Made when a text is first encoded: it takes half a second."""
        return BytePairKernel(self._id_of, self.merges)

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._pieces(drop_invalid(texts))[0]

    def _within_text(self, words: tf.Tensor) -> tf.Tensor:
        return prefix_space(drop_invalid(words))[0]

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        valid = drop_invalid(texts)
        ids, starts, ends, is_first = self._pieces(valid)
        starts, ends = given_ranges(texts, valid, starts, ends)
        return ids, starts, ends, is_first

    def _pieces(self, texts: tf.Tensor) -> Pieces:
        """Pieces of valid texts."""
        if self._segments is None:
            return self._plain_pieces(texts)
        return tf.cond(
            self._segments.found(texts),
            lambda: self._pieces_and_specials(texts),
            lambda: self._plain_pieces(texts),
        )

    def _plain_pieces(self, texts: tf.Tensor) -> Pieces:
        """Pieces of valid texts in which special tokens are text."""
        added = tf.zeros_like(texts, tf.int32)
        if self.add_prefix_space:
            texts, added = prefix_space(texts)
        ids, is_first = self._kernel(texts)
        # The words together are the text, so ranges are running sums: over the whole batch, minus
        # what precedes the text.
        num_bytes = tf.gather(self._num_bytes, ids.flat_values)
        ends = tf.cumsum(num_bytes)
        before = tf.cumsum(tf.strings.length(texts), exclusive=True) + added
        before = tf.gather(before, ids.value_rowids())
        starts = tf.maximum(ends - num_bytes - before, 0)  # the added space is not in the text
        return ids, ids.with_flat_values(starts), ids.with_flat_values(ends - before), is_first

    def _pieces_and_specials(self, texts: tf.Tensor) -> Pieces:
        """Pieces of valid texts, special tokens among them."""
        segments, begins, special_ids = self._segments.cut(texts)
        is_special = special_ids.row_lengths() > 0
        lengths = tf.strings.length(segments.flat_values)
        ids, starts, ends, is_first = self._plain_pieces(
            tf.where(is_special, "", segments.flat_values)
        )

        def joined(of_text: tf.RaggedTensor, of_specials: tf.Tensor) -> tf.RaggedTensor:
            of_specials = special_ids.with_flat_values(of_specials)
            return segments.with_values(tf.concat([of_text, of_specials], 1)).merge_dims(1, 2)

        shift = tf.gather(begins, ids.value_rowids())
        special_begins = tf.boolean_mask(begins, is_special)
        return (
            joined(ids, special_ids.flat_values),
            joined(starts.with_flat_values(starts.flat_values + shift), special_begins),
            joined(
                ends.with_flat_values(ends.flat_values + shift),
                special_begins + tf.boolean_mask(lengths, is_special),
            ),
            joined(
                ids.with_flat_values(is_first), tf.ones_like(special_begins, tf.bool)
            ).flat_values,
        )

    @property
    def _skipped_ids(self) -> list[int]:
        return self.special_ids  # no text needs the unknown token

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        parts = ids.with_flat_values(tf.gather(self._bytes, ids.flat_values))
        texts = tf.strings.reduce_join(parts, axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def known_tokens(vocabulary: Collection[str]) -> dict[str, str]:
    """RoBERTa's special tokens or else GPT-2's, as far as the vocabulary holds them.

    Example:
        >>> known_tokens(["<|endoftext|>", "a"])["unk"]
        '<|endoftext|>'
    """
    known = ROBERTA_TOKENS if {"<s>", "</s>"} <= set(vocabulary) else GPT2_TOKENS
    return {role: token for role, token in known.items() if token in vocabulary}
