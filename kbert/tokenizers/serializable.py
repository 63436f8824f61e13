"""The base class of all tokenizers, with or without a vocabulary: rebuilding from settings."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path

# Arguments of the constructors that are saved in separate files.
_MODEL_ARGUMENTS = ("vocabulary", "merges", "model")


class Serializable(abc.ABC):
    """A tokenizer that can be rebuilt from its constructor's arguments, e.g. from a folder.

    A subclass sets `kind` and defines `encode`, `get_config` and `_config_file`.
    """

    kind: str

    @abc.abstractmethod
    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns the ids of one text or several; the subclass defines their shape."""

    def __call__(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Calls `encode`: eagerly, in `tf.data`, and in the `call` of a Keras layer.

        Args:
            texts: a list or 1-D tensor of strings, or one string.

        Returns:
            An int32 RaggedTensor with a row for each text; for one string its row, a tensor.

        Example:
            >>> from kbert.tokenizers import WordPieceTokenizer
            >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
            >>> tokenizer(["a a", "b"]).to_list(), tokenizer("a").numpy().tolist()
            ([[5, 5], [1]], [5])
        """
        return self.encode(texts)

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments without the vocabulary and other data."""
        config = self.get_config()
        return {name: value for name, value in config.items() if name not in _MODEL_ARGUMENTS}

    @property
    def resources(self) -> list[Any]:
        """Objects that a SavedModel of the tokenizer's graphs must track, such as lookup tables."""
        return []

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the constructor's arguments, in hexadecimal."""
        return fingerprints.sha256_of_json(self.get_config())

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Creates a tokenizer from the result of `get_config`."""
        return cls(**config)

    def __reduce__(self) -> tuple:
        return _revive, (type(self), self.get_config())

    def save(self, folder: PathLike) -> None:
        """Writes tokenizer_config.json, which `kbert.load_tokenizer` loads.

        Args:
            folder: target folder; created if it does not exist.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        atomic.write(
            folder / "tokenizer_config.json",
            (json.dumps(self._config_file(), indent=2) + "\n").encode(),
        )

    @abc.abstractmethod
    def _config_file(self) -> dict[str, Any]:
        """Returns the content of tokenizer_config.json, under Hugging Face's names if any."""


def _revive(kind: type[Serializable], config: dict[str, Any]) -> Serializable:
    return kind.from_config(config)
