"""The base class of all tokenizers, with or without a vocabulary: rebuilding from settings."""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

from kbert.core.late import tf
from kbert.core.registry import Registered
from kbert.core.types import PathLike
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.packing import padded_batch

# Arguments of the constructors that are saved in separate files.
_MODEL_ARGUMENTS = ("vocabulary", "merges", "model", "target_vocabulary", "target_model")


class Serializable(Registered, abc.ABC, sort="tokenizer class"):
    """A tokenizer that can be rebuilt from its constructor's arguments, e.g. from a folder.

    A subclass sets `kind` and the ids of special tokens, and defines `encode`, `get_config` and
    `_config_file`.
    """

    kind: ClassVar[str]
    # Whether [CLS] ends a row instead of beginning it: A [SEP] [CLS], as in XLNet.
    cls_last: bool = False
    cls_id: Any
    sep_id: Any

    @property
    def prefix_ids(self) -> tuple[Any, ...]:
        """The ids before a text in a row of the model's input, such as that of [CLS]."""
        return () if self.cls_last else (self.cls_id,)

    @property
    def suffix_ids(self) -> tuple[Any, ...]:
        """The ids after a text in a row of the model's input, such as that of [SEP]."""
        return (self.sep_id, self.cls_id) if self.cls_last else (self.sep_id,)

    @abc.abstractmethod
    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns the ids of one text or several; the subclass defines their shape."""

    def __call__(
        self,
        texts: str | Sequence[str] | tf.Tensor,
        second: str | Sequence[str] | tf.Tensor | None = None,
        *,
        padding: bool | str = False,
        max_length: int | None = None,
    ) -> Any:
        """Returns token ids, or with `padding` the input of an encoder.

        Works eagerly, in `tf.data`, and in the `call` of a Keras layer (TensorFlow backend).
        `kbert.TextPreprocessor` is the same as a layer.

        Args:
            texts: a list or 1-D tensor of B strings, or one string.
            second: second texts of B pairs; needs `padding`.
            padding: False = ragged ids without special tokens. True or "longest" = a dense batch as
                wide as its longest row. "max_length" = a dense batch of that width.
            max_length: maximum number of tokens in a row, special tokens included; needs `padding`.
                Longer texts are truncated, in a pair the longer one first. None = no limit; then a
                text must not be longer than the model's `max_positions`.

        Returns:
            Without padding an int32 RaggedTensor with a row for each text; for one string its row,
            a tensor. With padding a dict of `token_ids`, `segment_ids` and `padding_mask`
            (1 = a token), int32 (B, T) each, with the special tokens of the model: [CLS] A [SEP],
            or [CLS] A [SEP] B [SEP]. One string is a batch of one row. The rows are those of BERT,
            RoBERTa and XLNet, and the sources of encoder-decoders (T5: A </s>, mBART: A </s> and
            its language); a decoder's tokens belong to its model, so use a task for these.

        Raises:
            ValueError: the tokenizer lacks a special token of the input, `max_length` is too small
                for the special tokens, or `second` or `max_length` is given without `padding`.

        Example:
            >>> from kbert.tokenizers import WordPieceTokenizer
            >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
            >>> tokenizer(["a a", "b"]).to_list(), tokenizer("a").numpy().tolist()
            ([[5, 5], [1]], [5])
            >>> tokenizer(["a a", "b"], padding=True)["token_ids"].numpy().tolist()
            [[2, 5, 5, 3], [2, 1, 3, 0]]
        """
        if padding is not False:
            tokenizer: Any = self  # subclasses have the ids of special tokens
            return padded_batch(tokenizer, texts, second, padding=padding, max_length=max_length)
        if second is not None or max_length is not None:
            raise ValueError(
                "second and max_length make padded batches: pass padding=True. Received: "
                f"second={second!r:.50}, max_length={max_length}, padding=False"
            )
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
