"""BERT's WordPiece tokenizer, in the graph and eager, on tensorflow-text's C++ kernels."""

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kbert import atomic
from kbert.tokenizers.decoding import join_pieces
from kbert.tokenizers.normalization import byte_table, normalize
from kbert.tokenizers.offsets import bytes_to_characters, original_ranges
from kbert.tokenizers.pieces import WordPieceKernel
from kbert.tokenizers.special import SpecialTokens
from kbert.tokenizers.vocabulary import (
    SPECIAL_TOKENS,
    check_vocabulary,
    read_vocabulary,
    save_vocabulary,
)

# The names that Hugging Face's tokenizer_config.json gives to our arguments.
CONFIG_KEYS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "split_chinese": "tokenize_chinese_chars",
}


class WordPieceTokenizer:
    """Splits text into BERT's word pieces and back.

    It gives the ids of google-research/bert's `FullTokenizer` (Devlin et al. 2019; tokenization.py)
    and works the same eagerly, inside `tf.data` and inside a SavedModel: it holds no lookup table
    or other resource that an export would have to track.

    Args:
        vocabulary: the pieces in the order of their ids, or the path of a BERT `vocab.txt`. It must
            hold [PAD], [UNK], [CLS], [SEP] and [MASK].
        lowercase: True for uncased models: lower case, and accents stripped.
        strip_accents: None does as `lowercase` says, which is BERT's rule.
        split_chinese: every Chinese character is a word of its own.
        special_tokens_in_text: "[MASK]" in a text becomes the mask id (and so do the other four)
            instead of "[", "mask", "]". Leave it off where texts come from strangers.

    Where it differs from Google's code: characters that one side's Unicode tables do not know yet
    (Google's code goes by those of the Python that runs it).

    Example:
        >>> tokenizer = WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "flight", "##less", "bird"])
        >>> tokenizer.encode("A flightless BIRD").numpy().tolist()
        [1, 5, 6, 7]
        >>> tokenizer.decode([5, 6, 7])
        'flightless bird'
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike,
        lowercase: bool = True,
        *,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens_in_text: bool = False,
    ):
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = read_vocabulary(vocabulary)
        else:
            vocabulary = list(vocabulary)
            check_vocabulary(vocabulary)
        self.vocabulary: list[str] = vocabulary
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        self.special_tokens_in_text = special_tokens_in_text
        self.continuation: np.ndarray = np.array([p.startswith("##") for p in vocabulary])
        self._id_of = {piece: index for index, piece in enumerate(vocabulary)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._id_of[token] for token in SPECIAL_TOKENS
        )
        self._specials = SpecialTokens(vocabulary) if special_tokens_in_text else None
        stand_ins = self._specials.stand_ins if self._specials else []
        self._kernel = WordPieceKernel([*vocabulary, *stand_ins], self.unk_id, split_chinese)
        batch = tf.TensorSpec([None], tf.string)
        self._encode_graph = tf.function(self._encode, input_signature=[batch])
        self._offsets_graphs = {
            unit: tf.function(
                lambda texts, unit=unit: self._encode_with_offsets(texts, unit),
                input_signature=[batch],
            )
            for unit in ("byte", "character")
        }
        self._decode_graphs = {
            skip: tf.function(
                lambda ids, skip=skip: self._decode_rows(ids, skip),
                input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
            )
            for skip in (True, False)
        }

    @property
    def vocabulary_size(self) -> int:
        """The number of pieces, special tokens included."""
        return len(self.vocabulary)

    @property
    def special_ids(self) -> list[int]:
        """The ids of [PAD], [UNK], [CLS], [SEP] and [MASK], sorted."""
        return sorted((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the vocabulary, in hexadecimal: equal vocabularies, equal checksums."""
        return hashlib.sha256("\n".join(self.vocabulary).encode()).hexdigest()

    def token_to_id(self, token: str) -> int:
        """The id of a piece. Raises ValueError where the vocabulary lacks it."""
        if token not in self._id_of:
            raise ValueError(
                f"No such piece among the {self.vocabulary_size} of the vocabulary. "
                f"Received: {token!r}"
            )
        return self._id_of[token]

    def id_to_token(self, token_id: int) -> str:
        """The piece of an id. Raises ValueError for an id outside the vocabulary."""
        self._check_ids(np.asarray(token_id))
        return self.vocabulary[int(token_id)]

    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Ids of the pieces, without [CLS] and [SEP].

        Args:
            texts: a list or 1-D tensor of strings, or one string. UTF-8; bytes that are not are
                dropped, as google-research/bert does.

        Returns:
            An int32 RaggedTensor (B, None); for one string, a 1-D int32 tensor.
        """
        return self._batched(self._encode_graph, texts)

    def encode_with_offsets(
        self, texts: str | Sequence[str] | tf.Tensor, unit: str = "byte"
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Ids and where each piece stands in the text as given, before any normalisation.

        Args:
            texts: as in `encode`.
            unit: "byte" counts UTF-8 bytes, "character" code points (indices of a Python str).

        Returns:
            A dict of int32 RaggedTensors (B, None), 1-D tensors for one string: `token_ids`;
            `starts` and `ends`, so that `text[start:end]` is the piece; `word_index`, which numbers
            the words of a text from 0 (a punctuation mark is a word). Accents that were stripped
            belong to their letter; two pieces of one character (Hangul) have its range both.

        Example:
            >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> tokenizer = WordPieceTokenizer([*specials, "cafe", "!"])
            >>> out = tokenizer.encode_with_offsets("un Café!", unit="character")
            >>> out["starts"].numpy().tolist(), out["ends"].numpy().tolist()
            ([0, 3, 7], [2, 7, 8])
        """
        if unit not in self._offsets_graphs:
            raise ValueError(f'unit must be "byte" or "character". Received: {unit!r}')
        return self._batched(self._offsets_graphs[unit], texts)

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> Any:
        """Text from ids: pieces joined, special tokens left out, no space before punctuation.

        Args:
            ids: ids (B, T) as a RaggedTensor, matrix or list of lists, or one list of ids.
            skip_special_tokens: leave [PAD], [CLS], [SEP] and [MASK] out. [UNK] stays: it stands
                for text.

        Returns:
            A list of str, for one list of ids a str; for tensors a string tensor (B,) or scalar,
            in a graph and eagerly.

        Raises:
            ValueError: an id outside the vocabulary (in a graph: InvalidArgumentError).
        """
        if isinstance(ids, tf.Tensor | tf.RaggedTensor):
            return self._decode(ids, skip_special_tokens)
        texts = self._decode(tf.ragged.constant(ids, dtype=tf.int32), skip_special_tokens).numpy()
        return texts.decode() if isinstance(texts, bytes) else [text.decode() for text in texts]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"vocabulary": list(self.vocabulary), **self._options()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WordPieceTokenizer":
        """A tokenizer from `get_config()`."""
        return cls(**config)

    def __reduce__(self):
        return _revive, (type(self), self.get_config())

    def save(self, folder: str | os.PathLike) -> None:
        """Writes vocab.txt and tokenizer_config.json, which `kbert.load_tokenizer` and Hugging Face
        read.

        Args:
            folder: made where it does not exist.
        """
        folder = Path(folder)
        save_vocabulary(self.vocabulary, folder / "vocab.txt")
        config = {"tokenizer_class": "BertTokenizer"}
        config |= {CONFIG_KEYS.get(name, name): value for name, value in self._options().items()}
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config |= dict(zip(names, SPECIAL_TOKENS, strict=True))
        atomic.write(
            folder / "tokenizer_config.json", (json.dumps(config, indent=2) + "\n").encode()
        )

    def _options(self) -> dict[str, Any]:
        return {
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_chinese": self.split_chinese,
            "special_tokens_in_text": self.special_tokens_in_text,
        }

    def _check_ids(self, ids: np.ndarray) -> None:
        wrong = ids[(ids < 0) | (ids >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(
                f"Ids of this vocabulary lie in 0..{self.vocabulary_size - 1}. "
                f"Received: {wrong.ravel()[0]}"
            )

    def _batched(self, function: Any, texts: Any) -> Any:
        """Calls a function of a batch of strings, also for one string."""
        texts = tf.convert_to_tensor(texts, tf.string)
        rank = texts.shape.rank
        if rank not in (0, 1):
            raise ValueError(
                "Texts are one string or a 1-D list or tensor of strings. "
                f"Received: a tensor of shape {texts.shape}"
            )
        out = function(texts[None] if rank == 0 else texts)
        return tf.nest.map_structure(lambda x: x[0], out) if rank == 0 else out

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        with tf.device("CPU"):
            if self._specials:
                texts = self._specials.hide(texts)
            ids, _, _ = self._kernel(self._normalize(texts))
            return self._specials.restore(ids) if self._specials else ids

    def _encode_with_offsets(self, texts: tf.Tensor, unit: str) -> dict[str, tf.RaggedTensor]:
        with tf.device("CPU"):
            visible = self._specials.hide(texts) if self._specials else texts
            ids, starts, ends = self._kernel(self._normalize(visible))
            starts, ends = original_ranges(visible, starts, ends, self._byte_table)
            is_first = self._kernel.word_starts(ids)
            if self._specials:
                starts, ends = self._specials.widen(ids, starts, ends)
                ids = self._specials.restore(ids)
            if unit == "character":
                starts, ends = bytes_to_characters(texts, starts, ends)
            words = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
            words_before = tf.gather(words, tf.gather(ids.row_starts(), ids.value_rowids()))
            return {
                "token_ids": ids,
                "starts": starts,
                "ends": ends,
                "word_index": ids.with_flat_values(words - words_before),
            }

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        return normalize(texts, lowercase=self.lowercase, strip_accents=self.strip_accents)

    @cached_property
    def _byte_table(self) -> tf.Tensor:
        """Made when offsets are first asked for."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(byte_table(self.lowercase, strip_accents))

    def _decode_rows(self, ids: tf.RaggedTensor, skip_special_tokens: bool) -> tf.Tensor:
        """(B, None) ids -> (B,) strings."""
        with tf.device("CPU"):
            if skip_special_tokens:
                left_out = tf.constant([i for i in self.special_ids if i != self.unk_id])
                equal = tf.equal(ids.flat_values[:, None], left_out)
                ids = tf.ragged.boolean_mask(ids, ids.with_flat_values(~tf.reduce_any(equal, 1)))
            return join_pieces(ids.with_flat_values(tf.gather(self.vocabulary, ids.flat_values)))

    def _decode(self, ids: tf.Tensor | tf.RaggedTensor, skip_special_tokens: bool) -> tf.Tensor:
        """(B, T) ids -> (B,) strings, (T,) ids -> a scalar."""
        if isinstance(ids, tf.Tensor):
            if ids.shape.rank == 1:
                return self._decode(ids[None], skip_special_tokens)[0]
            ids = tf.RaggedTensor.from_tensor(ids)
        if tf.executing_eagerly():
            self._check_ids(ids.flat_values.numpy())
        ids = tf.cast(ids.with_row_splits_dtype(tf.int64), tf.int32)
        return self._decode_graphs[skip_special_tokens](ids)


def _revive(kind: type[WordPieceTokenizer], config: dict[str, Any]) -> WordPieceTokenizer:
    return kind.from_config(config)
