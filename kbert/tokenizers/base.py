"""The base class of tokenizers with a vocabulary: encoding, decoding, saving."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from kbert.core.graphs import on_cpu
from kbert.core.late import has_tensorflow, tf
from kbert.core.types import MaybeNone
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.arrays import ArrayEncoder, encode_each, refuse
from kbert.tokenizers.batching import call_with_batch
from kbert.tokenizers.offsets import bytes_to_characters, word_numbers
from kbert.tokenizers.serializable import Serializable

# The roles of special tokens in the inputs of BERT and RoBERTa.
ROLES = ("pad", "unk", "cls", "sep", "mask")
# The files of all kinds of tokenizers, except tokenizer_config.json.
_FILES = frozenset(
    "vocab.txt vocab.json merges.txt tokenizer.json special_tokens_map.json added_tokens.json "
    "spiece.model sentencepiece.bpe.model spm.model words.txt source.spm target.spm "
    "target_vocab.json".split()
)


# Ids of tokens, their starts and ends in bytes (B, None), and whether each begins a word (P,).
Pieces: TypeAlias = "tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor, tf.Tensor]"


class Tokenizer(Serializable):
    """Converts text to ids and back: eagerly, in `tf.data` and in a SavedModel, with equal results.

    A subclass sets `kind` and `continuation`, and defines `_encode`, `_encode_with_offsets`,
    `_decode_rows`, `_options`, `get_config`, `_file_names` and `_save_model`.

    Args:
        vocabulary: tokens in the order of their ids.
        special_tokens: role ("pad", "unk", "cls", "sep", "mask", or any other word, such as "bos")
            -> special token. Roles without a token are omitted.
        additional_special_tokens: special tokens without a role.

    Attributes:
        vocabulary: tokens in the order of their ids.
        continuation: (V,) bool, whether the token continues a word that an earlier token began.
        pad_token, unk_token, cls_token, sep_token, mask_token: special tokens; None for a role
            without one.
        pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens; None for a role without
            one.
        languages: codes of languages among the special tokens, such as "de_DE" of mBART; most
            tokenizers have none.
        source_language: code of the language of the texts, or None.
        target_language: code of the language of the targets, or None.
    """

    # Separators between two segments: [CLS] A [SEP] B [SEP], but <s> A </s></s> B </s>.
    pair_separators: int = 1
    continuation: np.ndarray

    pad_token: str | MaybeNone
    unk_token: str | MaybeNone
    cls_token: str | MaybeNone
    sep_token: str | MaybeNone
    mask_token: str | MaybeNone
    pad_id: int | MaybeNone
    unk_id: int | MaybeNone
    cls_id: int | MaybeNone
    sep_id: int | MaybeNone
    mask_id: int | MaybeNone
    languages: tuple[str, ...] = ()
    source_language: str | None = None
    target_language: str | None = None

    def __init__(
        self,
        vocabulary: list[str],
        special_tokens: Mapping[str, str],
        additional_special_tokens: Sequence[str] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self.special_tokens: dict[str, str] = dict(special_tokens)
        self.additional_special_tokens: list[str] = list(additional_special_tokens)
        self._id_of = {piece: index for index, piece in enumerate(vocabulary)}
        for role in ROLES:
            token = self.special_tokens.get(role)
            setattr(self, f"{role}_token", token)
            setattr(self, f"{role}_id", None if token is None else self._id_of[token])
        self._encode_graph = on_cpu(self._encode)
        self._words_graph = on_cpu(self._encode_words)
        self._offsets_graphs = {
            unit: on_cpu(functools.partial(self._described, unit)) for unit in ("byte", "character")
        }

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens, including special tokens."""
        return len(self.vocabulary)

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens, sorted."""
        tokens = [*self.special_tokens.values(), *self.additional_special_tokens]
        return sorted({self._id_of[token] for token in tokens})

    @functools.cached_property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) of what determines the ids; for WordPiece, of the vocabulary."""
        return fingerprints.sha256("\n".join(self.vocabulary))

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token. Raises ValueError if it is not in the vocabulary."""
        if token not in self._id_of:
            raise ValueError(
                f"The token must be one of the {self.vocabulary_size} in the vocabulary. "
                f"Received: {token!r}"
            )
        return self._id_of[token]

    def id_to_token(self, token_id: int) -> str:
        """Returns the token of an id. Raises ValueError for an id outside the vocabulary."""
        self._check_ids(np.asarray(token_id))
        return self.vocabulary[int(token_id)]

    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns token ids, without the special tokens around a model's input.

        Args:
            texts: a list or 1-D tensor of UTF-8 strings, or one string. Invalid bytes are dropped,
                as in google-research/bert.

        Returns:
            An int32 RaggedTensor (B, None); for one string, a 1-D int32 tensor. If TensorFlow is
            not installed, a similar `kbert.core.ragged.Ragged`; for one string, an array.
        """
        if not has_tensorflow():
            return encode_each(self.array_encoder, texts)
        return call_with_batch(self._encode_graph, texts)

    @functools.cached_property
    def array_encoder(self) -> ArrayEncoder:
        """A function from a list of texts to a `Ragged` of their ids, without TensorFlow.

        Raises:
            NeedsTensorFlow: only the TensorFlow graph supports this tokenizer.
        """
        return self._array_encoder()

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of targets: this one, unless they have another language or vocabulary."""
        if self.target_language in (None, self.source_language):
            return self
        return self.with_languages(source=self.target_language)

    def with_languages(self, source: str | None = None, target: str | None = None) -> Self:
        """Returns this tokenizer for texts and targets in other languages.

        Args:
            source: code of the language of the texts, one of `languages`; None = as before.
            target: code of the language of the targets; None = as before.

        Returns:
            A tokenizer that shares the vocabulary of this one. Its `prefix_ids` and `suffix_ids`
            contain the code of the source, those of its `target` the code of the target.

        Raises:
            ValueError: the tokenizer has no such language.
        """
        return self._in_languages(source or self.source_language, target or self.target_language)

    def _in_languages(self, source: str | None, target: str | None) -> Self:
        """Returns a copy with these languages that shares the graphs, which have no language."""
        copy = object.__new__(type(self))
        vars(copy).update({name: x for name, x in vars(self).items() if name != "checksum"})
        copy._set_languages(source, target)
        return copy

    def _set_languages(self, source: str | None, target: str | None) -> None:
        """Sets the two languages. Raises ValueError for a code that is not in `languages`."""
        for name, code in (("source_language", source), ("target_language", target)):
            if code is not None and code not in self.languages:
                raise ValueError(
                    f"{name} must be one of the tokenizer's languages: "
                    f"{', '.join(self.languages) or 'it has none'}. Received: {name}={code!r}"
                )
        self.source_language, self.target_language = source, target

    def encode_words(self, words: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns the token ids of pre-split words, each encoded as in the middle of a text.

        Args:
            words: a list or 1-D tensor of UTF-8 strings, or one string; each string is one word.

        Returns:
            Ids like those of `encode`, with one row per word. No row is empty: a word that
            normalisation empties ("", "\\u00ad") becomes the unknown token.

        Raises:
            ValueError: the tokenizer has no unknown token.

        Example:
            >>> from kbert.tokenizers import WordPieceTokenizer
            >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> tokenizer = WordPieceTokenizer([*specials, "don", "'", "t"])
            >>> tokenizer.encode_words(["don't", ""]).to_list()
            [[5, 6, 7], [1]]
        """
        if self.unk_id is None:
            raise ValueError(
                "Encoding words requires a tokenizer with an unknown token, for words that are "
                f"empty after normalisation. Received: a {type(self).__name__} without one"
            )
        return call_with_batch(self._words_graph, words)

    def encode_with_offsets(
        self, texts: str | Sequence[str] | tf.Tensor, unit: str = "byte"
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Returns ids, and the range of each token in the original text before normalisation.

        Args:
            texts: a list or 1-D tensor of UTF-8 strings, or one string.
            unit: unit of the ranges: "byte" = UTF-8 bytes, "character" = code points (indices of a
                Python str).

        Returns:
            A dict of int32 RaggedTensors (B, None), 1-D tensors for one string: `token_ids`;
            `starts` and `ends`, so that `text[start:end]` is the token; `word_index`, which numbers
            the words of a text from 0 (a punctuation mark is a word). Stripped accents belong to
            their letter. If a character becomes two tokens (Hangul), both have its range.

        Example:
            >>> from kbert.tokenizers import WordPieceTokenizer
            >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            >>> tokenizer = WordPieceTokenizer([*specials, "cafe", "!"])
            >>> out = tokenizer.encode_with_offsets("un Café!", unit="character")
            >>> out["starts"].numpy().tolist(), out["ends"].numpy().tolist()
            ([0, 3, 7], [2, 7, 8])
        """
        if unit not in self._offsets_graphs:
            raise ValueError(f'unit must be "byte" or "character". Received: {unit!r}')
        return call_with_batch(self._offsets_graphs[unit], texts)

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> Any:
        """Converts ids to text: joins tokens and skips special tokens.

        Args:
            ids: ids (B, T) as a RaggedTensor, matrix or list of lists, or one list of ids.
            skip_special_tokens: whether to skip special tokens, except the unknown token, which
                stands for text.

        Returns:
            A list of str, or a str for one list of ids. For tensors a string tensor (B,) or scalar,
            both in a graph and eagerly.

        Raises:
            ValueError: an id outside the vocabulary (in a graph: InvalidArgumentError).
        """
        if isinstance(ids, tf.Tensor | tf.RaggedTensor):
            return self._decode(ids, skip_special_tokens)
        texts = self._decode(tf.ragged.constant(ids, dtype=tf.int64), skip_special_tokens).numpy()
        return texts.decode() if isinstance(texts, bytes) else [text.decode() for text in texts]

    def cut_at_masks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits texts (B,) at mask tokens into parts (B, 1 + masks) to be encoded separately.

        Raises ValueError if the tokenizer has no mask token.
        """
        if self.mask_token is None:
            raise ValueError(
                "Filling masks requires a tokenizer with a mask token. Received: a "
                f"{type(self).__name__} with {', '.join(self.special_tokens) or 'no role'} only"
            )
        return tf.strings.split(texts, self.mask_token)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the vocabulary and tokenizer_config.json.

        `kbert.load_tokenizer` and Hugging Face load these files. Files of a previous tokenizer in
        the folder are removed: with two kinds in a folder the wrong one might be loaded.

        Args:
            folder: target folder; created if it does not exist.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.together():
            for name in _FILES - {*self._file_names}:
                if not self._may_stay(folder / name):
                    atomic.remove(folder / name)
            self._save_model(folder)
            super().save(folder)

    def _may_stay(self, path: Path) -> bool:
        """Whether `save` leaves a file: a tokenizer.json of KerasHub, or of this tokenizer."""
        file = atomic.newest(path)
        if path.name != "tokenizer.json" or not file.is_file():
            return False
        content, make_json = file.read_bytes(), getattr(self, "tokenizer_json", None)
        return b'"model"' not in content or (make_json is not None and content == make_json())

    def _config_file(self) -> dict[str, Any]:
        """Returns the content of tokenizer_config.json: special tokens and `_options`."""
        config: dict[str, Any] = {
            f"{role}_token": token for role, token in self.special_tokens.items()
        }
        if self.additional_special_tokens:
            config["additional_special_tokens"] = self.additional_special_tokens
        return config | self._options()

    @property
    @abc.abstractmethod
    def _file_names(self) -> tuple[str, ...]:
        """Names of the vocabulary files."""

    @abc.abstractmethod
    def _save_model(self, folder: Path) -> None:
        """Writes the vocabulary files."""

    @abc.abstractmethod
    def _options(self) -> dict[str, Any]:
        """Returns further entries of tokenizer_config.json, under Hugging Face's names.

        They override the other entries.
        """

    @abc.abstractmethod
    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Texts (B,) -> ids (B, None) int32."""

    def _array_encoder(self) -> ArrayEncoder:
        """Creates `array_encoder`; raises NeedsTensorFlow for kinds that do not override this."""
        raise refuse(self, "another algorithm")

    def _encode_words(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Words (W,) -> ids (W, None) int32; a word without tokens becomes the unknown token."""
        ids = self._encode(self._within_text(words))
        is_empty = tf.cast(ids.row_lengths() == 0, tf.int64)
        unknown = tf.fill([tf.reduce_sum(is_empty)], tf.constant(self.unk_id, tf.int32))
        return tf.concat([ids, tf.RaggedTensor.from_row_lengths(unknown, is_empty)], 1)

    def _within_text(self, words: tf.Tensor) -> tf.Tensor:
        """Returns the words (W,) as they stand inside a text: for some kinds, after a space."""
        return words

    @abc.abstractmethod
    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        """Texts (B,) -> ids, byte ranges in the texts, and word starts: see `Pieces`."""

    def _described(self, unit: str, texts: tf.Tensor) -> dict[str, tf.RaggedTensor]:
        """Returns the dict of `encode_with_offsets` for texts (B,).

        `unit` is the unit of the ranges, "byte" or "character".
        """
        ids, starts, ends, is_first = self._encode_with_offsets(texts)
        words = word_numbers(ids, is_first)
        if unit == "character":
            starts, ends = bytes_to_characters(texts, starts, ends)
        return {"token_ids": ids, "starts": starts, "ends": ends, "word_index": words}

    @abc.abstractmethod
    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Ids (B, None) -> texts (B,), with all special tokens that are among the ids."""

    @functools.cached_property
    def _decode_graphs(self) -> dict[bool, Callable]:
        rows = tf.RaggedTensorSpec([None, None], tf.int32)
        return {skip: on_cpu(functools.partial(self._texts, skip), rows) for skip in (True, False)}

    def _texts(self, skip_special_tokens: bool, ids: tf.RaggedTensor) -> tf.Tensor:
        """Ids (B, None) -> texts (B,), without special tokens if `skip_special_tokens`."""
        return self._decode_rows(self._without_specials(ids) if skip_special_tokens else ids)

    @property
    def _skipped_ids(self) -> list[int]:
        """Ids that decoding skips; the unknown token is not skipped, because it stands for text."""
        return [i for i in self.special_ids if i != self.unk_id]

    def _without_specials(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        left_out = tf.constant(self._skipped_ids, tf.int32)
        equal = tf.equal(ids.flat_values[:, None], left_out)
        return tf.ragged.boolean_mask(ids, ids.with_flat_values(~tf.reduce_any(equal, 1)))

    def _check_ids(self, ids: np.ndarray) -> None:
        """Raises ValueError if an id is not one of the vocabulary."""
        wrong = ids[(ids < 0) | (ids >= self.vocabulary_size)]
        if wrong.size:
            raise ValueError(
                f"Token ids must be from 0 to {self.vocabulary_size - 1}. Received: "
                f"{wrong.ravel()[0]}"
            )

    def _decode(self, ids: tf.Tensor | tf.RaggedTensor, skip_special_tokens: bool) -> tf.Tensor:
        """Ids (B, T) -> texts (B,), or ids (T,) -> a scalar text.

        Raises ValueError, when called eagerly, for an id outside of the vocabulary.
        """
        if isinstance(ids, tf.Tensor):
            if ids.shape.rank == 1:
                return self._decode(ids[None], skip_special_tokens)[0]
            ids = tf.RaggedTensor.from_tensor(ids)
        if tf.executing_eagerly():
            self._check_ids(ids.flat_values.numpy())
        ids = tf.cast(ids.with_row_splits_dtype(tf.int64), tf.int32)
        return self._decode_graphs[skip_special_tokens](ids)
