"""Byte-level byte-pair encoding of GPT-2 and RoBERTa, in the graph and eager."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io import fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.arrays import ArrayEncoder, array_encoder, as_text, refuse
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS, is_spelled, piece_bytes
from kbert.tokenizers.bpe.files import (
    as_merges,
    as_vocabulary,
    check_model,
    save_model,
)
from kbert.tokenizers.bpe.kernel import BytePairKernel
from kbert.tokenizers.bpe.nfc import nfc, ranges_before_nfc
from kbert.tokenizers.bpe.pre_split import PATTERNS, prefix_space
from kbert.tokenizers.bpe.tokenizer_json import save_tokenizer_json
from kbert.tokenizers.normalization import drop_invalid
from kbert.tokenizers.offsets import given_ranges
from kbert.tokenizers.token_segments import WHITE_SPACE, TokenSegments, check_added_tokens

_SPACE = CHARACTERS[ord(" ")]
_ROBERTA = "RobertaTokenizer"
# GPT-2's and RoBERTa's vocabularies are recognised by these tokens.
ROBERTA_TOKENS = {
    "pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>",
    "bos": "<s>", "eos": "</s>",
}  # fmt: skip
GPT2_TOKENS = dict.fromkeys(("unk", "cls", "sep", "bos", "eos"), "<|endoftext|>")
# Arguments newer than the first corpora -> their defaults, which the checksum omits.
_YOUNGER: dict[str, Any] = {
    "normalization": None,
    "added_tokens": [],
    "normalized_tokens": None,
    "words": "gpt2",
    "ignore_merges": False,
}


class BytePairTokenizer(Tokenizer):
    """Splits text into GPT-2's byte-level BPE tokens and back.

    It gives the ids of openai/gpt-2's `Encoder` (Radford et al. 2019; encoder.py) and of Hugging
    Face's `tokenizers`, eagerly, in `tf.data` and in a SavedModel, and has no resource that an
    export would have to track. No text is unknown to it: `decode` returns the encoded text (after
    the normalization, if any).

    A token and its range include the space before a word. Bytes that are not valid UTF-8 are
    dropped. If tokens end inside a character, their ranges in characters include the whole
    character. If they end inside a group that NFC composed, ranges in bytes and in characters
    include the whole group: a letter with its accents or a syllable with its letters. For ids that
    spell invalid UTF-8, `decode` inserts U+FFFD as Python does.

    Args:
        vocabulary: token -> id, or tokens in the order of their ids, or the path of a vocab.json.
            It must contain the 243 bytes that UTF-8 uses (it never uses C0, C1 and F5 to FF) and
            the results of all merges.
        merges: pairs of tokens ("Ġ t" or ("Ġ", "t")) in the order of merging, or the path of a
            merges.txt.
        special_tokens: role ("pad", "unk", "cls", "sep", "mask", "bos", "eos") -> special token.
            None = RoBERTa's (<s> and </s> for "cls" and "sep", <pad>, <unk>, <mask>) or else
            GPT-2's (<|endoftext|> for all but "pad" and "mask"), as far as they are in the
            vocabulary.
        additional_special_tokens: special tokens without a role.
        add_prefix_space: whether to encode a text as if it began with a space. Use it for a corpus
            that is encoded sentence by sentence, so that words of neighbouring sentences stay
            separate.
        special_tokens_in_text: whether "<mask>" in a text becomes the mask id (and so for the
            others). Hugging Face always does this; leave it off for untrusted texts.
        mask_takes_space: whether white space before the mask token belongs to it, as in RoBERTa.
        normalization: "nfc" for Unicode's canonical composition, as in ModernBERT; None = no
            normalisation.
        added_tokens: tokens without a special meaning that are recognised in every text, such as
            ModernBERT's runs of spaces and "[unused0]". The longest match at a position wins.
        normalized_tokens: added and special tokens that are matched in the normalised text, after
            the others. None = the added tokens. (Hugging Face's `AddedToken(normalized=True)`.)
        words: kind of word splitting; merges do not cross words. "gpt2", or "llama3" (also
            EuroBERT's), where a word includes any one character before its letters, numbers are
            split into parts of up to three digits, and lines include the white space at their end.
        ignore_merges: whether a word that is in the vocabulary is one token, even if merges do not
            make it.

    Differences from Hugging Face: letters, numbers and compositions that are missing from one
    side's Unicode tables (ours go up to Unicode 16), ranges of characters that NFC composed (there
    they omit some characters), and special tokens in the text, see above.

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
        normalization: str | None = None,
        added_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] | None = None,
        words: str = "gpt2",
        ignore_merges: bool = False,
    ) -> None:
        if words not in tuple(PATTERNS):  # a file may hold anything, a list too
            raise ValueError(f"`words` must be one of {', '.join(PATTERNS)}. Received: {words!r}")
        if words != "gpt2" and add_prefix_space:
            raise ValueError(
                f"`add_prefix_space` is supported for GPT-2's words only. Received: words={words!r}"
            )
        if normalization not in (None, "nfc"):
            raise ValueError(f'normalization must be "nfc" or None. Received: {normalization!r}')
        vocabulary = as_vocabulary(vocabulary)
        self.merges: list[tuple[str, str]] = as_merges(merges)
        if special_tokens is None:
            special_tokens = known_tokens(vocabulary)
        all_specials = [*special_tokens.values(), *additional_special_tokens]
        check_model(vocabulary, self.merges, all_specials)
        check_added_tokens(vocabulary, all_specials, added_tokens, normalized_tokens, normalization)
        super().__init__(vocabulary, special_tokens, additional_special_tokens)
        self.normalization = normalization
        self.added_tokens = sorted(set(added_tokens), key=self._id_of.__getitem__)
        self.normalized_tokens = None
        if normalized_tokens is not None and set(normalized_tokens) != set(added_tokens):
            self.normalized_tokens = sorted(set(normalized_tokens), key=self._id_of.__getitem__)
        self.words = words
        self.ignore_merges = ignore_merges
        self.add_prefix_space = add_prefix_space
        self.special_tokens_in_text = special_tokens_in_text
        self.mask_takes_space = mask_takes_space
        if self.cls_token == "<s>":  # RoBERTa: <s> A </s></s> B </s>
            self.pair_separators = 2
        specials = {vocabulary[i] for i in self.special_ids}
        whole_tokens = specials.union(added_tokens)
        self.continuation = np.array(
            [not piece.startswith(_SPACE) and piece not in whole_tokens for piece in vocabulary]
        )
        text_tokens = whole_tokens if special_tokens_in_text else set(added_tokens)
        late = set(added_tokens if self.normalized_tokens is None else self.normalized_tokens)
        self._in_given = self._segments(text_tokens - late, lambda token: token)
        self._in_normal = self._segments(text_tokens & late, self._normal_token)
        # A token that merges also make stands for the bytes of the merged text.
        verbatim = whole_tokens - {*CHARACTERS, *(first + second for first, second in self.merges)}
        self._bytes = [p.encode() if p in verbatim else piece_bytes(p) for p in vocabulary]
        self._num_bytes = np.array([len(data) for data in self._bytes], np.int32)

    def _array_encoder(self) -> ArrayEncoder:
        """Creates `array_encoder`; raises NeedsTensorFlow for words other than GPT-2's."""
        if self.words != "gpt2":
            raise refuse(self, "Llama's words")
        import tokenizers  # a slow import

        model = tokenizers.models.BPE(self._id_of, self.merges, ignore_merges=self.ignore_merges)
        words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=self.add_prefix_space)
        encode = array_encoder(model, words, None)
        if self._in_normal is not None:
            encode = self._in_normal.around(encode)
        if self.normalization is not None:
            encode = _normalized(encode)
        return encode if self._in_given is None else self._in_given.around(encode)

    def _normal_token(self, token: str) -> str:
        return token if self.normalization is None else unicodedata.normalize("NFC", token)

    def _segments(
        self, tokens: Collection[str], written: Callable[[str], str]
    ) -> TokenSegments | None:
        """Returns an object that finds `tokens` in texts; None if there are none.

        `written` maps a token to its form in those texts.
        """
        if not tokens:
            return None
        mask = self.mask_token if self.mask_takes_space and self.mask_token in tokens else None
        ids = {written(token): self._id_of[token] for token in tokens}
        return TokenSegments(ids, None if mask is None else written(mask))

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the vocabulary, the merges and the settings, in hexadecimal."""
        config = self.get_config()
        content = {
            name: value
            for name, value in config.items()
            if name not in _YOUNGER or value != _YOUNGER[name]
        }
        return fingerprints.sha256_of_json(content)

    def get_config(self) -> dict[str, Any]:
        return {
            "vocabulary": list(self.vocabulary),
            "merges": [" ".join(pair) for pair in self.merges],
            "special_tokens": dict(self.special_tokens),
            "additional_special_tokens": list(self.additional_special_tokens),
            "add_prefix_space": self.add_prefix_space,
            "special_tokens_in_text": self.special_tokens_in_text,
            "mask_takes_space": self.mask_takes_space,
            "normalization": self.normalization,
            "added_tokens": list(self.added_tokens),
            "normalized_tokens": self.normalized_tokens and list(self.normalized_tokens),
            "words": self.words,
            "ignore_merges": self.ignore_merges,
        }

    def cut_at_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Like the base class; drops white space before a mask if `mask_takes_space`."""
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
        """Returns entries of tokenizer_config.json, with the class that computes the same."""
        options: dict[str, Any] = {
            "tokenizer_class": _ROBERTA if self.pair_separators == 2 else "GPT2Tokenizer",
            "add_prefix_space": self.add_prefix_space,
            "special_tokens_in_text": self.special_tokens_in_text,
        }
        if self._needs_pipeline:
            options["tokenizer_class"] = "PreTrainedTokenizerFast"
            # The same inputs as for those two classes: such models have no segment ids.
            options["model_input_names"] = ["input_ids", "attention_mask"]
        if self.mask_token is not None:
            entry = self._entry(self.mask_token)
            del entry["id"]
            options["mask_token"] = {"__type": "AddedToken", **entry}
        return options

    @property
    def _needs_pipeline(self) -> bool:
        """Whether vocab.json and merges.txt cannot describe this tokenizer completely."""
        plain = self.words == "gpt2" and not self.ignore_merges
        return bool(self.normalization or self.added_tokens or not plain)

    def _entry(self, token: str) -> dict[str, Any]:
        """Returns the tokenizer.json entry of an added or special token, with its id and flags."""
        late = self.added_tokens if self.normalized_tokens is None else self.normalized_tokens
        return {
            "id": self._id_of[token],
            "content": token,
            "lstrip": token == self.mask_token and self.mask_takes_space,
            "normalized": token in late,
            "rstrip": False,
            "single_word": False,
            "special": token not in self.added_tokens,
        }

    @property
    def _file_names(self) -> tuple[str, ...]:
        return ("tokenizer.json",) if self._needs_pipeline else ("vocab.json", "merges.txt")

    def _save_model(self, folder: Path) -> None:
        """Writes vocab.json and merges.txt, or, if they cannot describe all, tokenizer.json."""
        if not self._needs_pipeline:
            save_model(folder, self.vocabulary, self.merges)
            return
        added_ids = sorted(
            {*self.special_ids, *(self._id_of[token] for token in self.added_tokens)}
        )
        save_tokenizer_json(
            folder / "tokenizer.json",
            self.vocabulary,
            self.merges,
            added_tokens=[self._entry(self.vocabulary[i]) for i in added_ids],
            normalization=self.normalization,
            add_prefix_space=self.add_prefix_space,
            words=self.words,
            ignore_merges=self.ignore_merges,
            ends=(self.cls_token, self.sep_token),
            pair_separators=self.pair_separators,
        )

    @cached_property
    def _kernel(self) -> BytePairKernel:
        """The kernel, created when a text is first encoded: it takes half a second."""
        whole_tokens: Iterable[str] = ()
        if self.ignore_merges:
            tokens = {*self.added_tokens, *(self.vocabulary[i] for i in self.special_ids)}
            whole_tokens = (p for p in self.vocabulary if p not in tokens and is_spelled(p))
        return BytePairKernel(self._id_of, self.merges, words=self.words, whole=whole_tokens)

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
        """Returns ids, byte ranges and word starts of texts (B,), which are valid UTF-8."""
        if self._in_given is None:
            return self._normalized_pieces(texts)
        return self._in_given.encode(texts, self._normalized_pieces)

    def _normalized_pieces(self, texts: tf.Tensor) -> Pieces:
        """Like `_pieces`, for texts between the tokens that are matched before normalisation."""
        normal = texts if self.normalization is None else nfc(texts)
        if self._in_normal is None:
            pieces = self._plain_pieces(normal)
        else:
            pieces = self._in_normal.encode(normal, self._plain_pieces)
        if self.normalization is None:
            return pieces
        ids, starts, ends, is_first = pieces
        return ids, *ranges_before_nfc(texts, normal, starts, ends), is_first

    def _plain_pieces(self, texts: tf.Tensor) -> Pieces:
        """Like `_pieces`, for normalised texts; finds no added and no special tokens."""
        added = tf.zeros_like(texts, tf.int32)
        if self.add_prefix_space:
            texts, added = prefix_space(texts)
        ids, is_first = self._kernel(texts)
        # The words together are the text, so ranges are cumulative sums over the whole batch, minus
        # the bytes before the text.
        num_bytes = tf.gather(self._num_bytes, ids.flat_values)
        ends = tf.cumsum(num_bytes)
        bytes_before = tf.cumsum(tf.strings.length(texts), exclusive=True) + added
        bytes_before = tf.gather(bytes_before, ids.value_rowids())
        # The added space is not in the text.
        starts = tf.maximum(ends - num_bytes - bytes_before, 0)
        return (
            ids,
            ids.with_flat_values(starts),
            ids.with_flat_values(ends - bytes_before),
            is_first,
        )

    @property
    def _skipped_ids(self) -> list[int]:
        return self.special_ids  # with the unknown token: it never stands for text

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        parts = ids.with_flat_values(tf.gather(self._bytes, ids.flat_values))
        texts = tf.strings.reduce_join(parts, axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def _normalized(encode: ArrayEncoder) -> ArrayEncoder:
    return lambda texts: encode([unicodedata.normalize("NFC", as_text(x)) for x in texts])


def known_tokens(vocabulary: Collection[str]) -> dict[str, str]:
    """Returns role -> special token: RoBERTa's if <s> and </s> are in the vocabulary, else GPT-2's.

    Tokens that are not in the vocabulary are omitted.

    Example:
        >>> known_tokens(["<|endoftext|>", "a"])["unk"]
        '<|endoftext|>'
    """
    role_tokens = ROBERTA_TOKENS if {"<s>", "</s>"} <= set(vocabulary) else GPT2_TOKENS
    return {role: token for role, token in role_tokens.items() if token in vocabulary}
