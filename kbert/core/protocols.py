"""What tasks, data and features need of a tokenizer, whichever class it is of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tensorflow as tf


class TokenizerLike(Protocol):
    """A tokenizer with a vocabulary (`Tokenizer`), or one of characters (`CharacterTokenizer`).

    Code that takes one only frames rows with special ids, saves it, or exports its graph. Code that
    looks pieces up in a vocabulary takes a `Tokenizer`.

    Attributes:
        kind: the name of its kind, such as "wordpiece".
        pair_separators: separators between two segments.
        pad_id, unk_id, cls_id, sep_id: ids of the special tokens, None for a role without one; C
            ids each in a tokenizer of characters.
    """

    kind: str
    pair_separators: int
    pad_id: Any
    unk_id: Any
    cls_id: Any
    sep_id: Any

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments without the vocabulary and other data."""
        ...

    @property
    def resources(self) -> list[Any]:
        """What a SavedModel of this tokenizer's graphs must track, such as lookup tables."""
        ...

    @property
    def checksum(self) -> str:
        """SHA-256 of what decides the ids, in hexadecimal."""
        ...

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        ...

    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Ids of texts, without special tokens: ragged rows, or the row of one string."""
        ...

    def encode_words(self, words: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Ids of words that are split already, a row a word."""
        ...

    def save(self, folder: str | os.PathLike) -> None:
        """Writes what `kbert.load_tokenizer` reads."""
        ...
