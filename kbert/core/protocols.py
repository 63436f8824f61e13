"""The interface that tasks, data and features need from a tokenizer of any class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tensorflow as tf


class TokenizerLike(Protocol):
    """A tokenizer with a vocabulary (`Tokenizer`) or of characters (`CharacterTokenizer`).

    Code with this annotation only adds special ids to sequences, saves the tokenizer, or exports
    its graph. Code that looks up subwords in a vocabulary needs a `Tokenizer`.

    Attributes:
        pair_separators: number of separators between two segments.
        cls_last: whether "cls" ends a row instead of beginning it.
        pad_id, unk_id, cls_id, sep_id: ids of the special tokens, None for a role without one; C
            ids each in a tokenizer of characters.
        prefix_ids, suffix_ids: ids before and after a text in a row of the model's input.
    """

    pair_separators: int
    cls_last: bool
    pad_id: Any
    unk_id: Any
    cls_id: Any
    sep_id: Any

    @property
    def prefix_ids(self) -> tuple[Any, ...]:
        """The ids before a text in a row of the model's input."""
        ...

    @property
    def suffix_ids(self) -> tuple[Any, ...]:
        """The ids after a text in a row of the model's input."""
        ...

    @property
    def kind(self) -> str:
        """Name of the kind of tokenizer, such as "wordpiece"."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor, without the vocabulary and other data."""
        ...

    @property
    def resources(self) -> list[Any]:
        """Resources that a SavedModel of this tokenizer's graphs must track, as lookup tables."""
        ...

    @property
    def checksum(self) -> str:
        """SHA-256 of everything that the ids depend on, in hexadecimal."""
        ...

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        ...

    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns token ids without special tokens: ragged for texts, one sequence for a string."""
        ...

    def encode_words(self, words: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns token ids of words that are already split, one row per word."""
        ...

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the files that `kbert.load_tokenizer` reads."""
        ...
