"""A Keras layer that turns texts into the input of an encoder."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Self

import keras
import numpy as np

from kbert.core import registry
from kbert.core.late import has_tensorflow, tf
from kbert.core.protocols import TokenizerLike
from kbert.tokenizers.packing import padded_batch


@keras.saving.register_keras_serializable("kbert")
class TextPreprocessor(keras.layers.Layer):
    """Turns texts, or pairs of texts, into the input of an encoder of a fixed width.

    It works in a functional or subclassed Keras model whose input is text (TensorFlow backend; such
    a model saves to `.keras` and exports to a SavedModel that takes text), in `tf.data` and eagerly
    (every backend). The rows are those of `tokenizer(texts, padding="max_length")`.

    Args:
        tokenizer: the tokenizer, as `kbert.load_tokenizer` returns it.
        max_length: tokens in a row, T, special tokens included. Longer texts are truncated.

    Returns:
        When called with B texts, and B second texts for pairs, a dict of `token_ids`,
        `segment_ids` and `padding_mask`, int32 (B, T) each. Texts may also have the shape (B, 1).

    Raises:
        TypeError: a call with values that are not strings, such as labels.
        ValueError: the tokenizer lacks a special token of the input, or `max_length` is too small
            for the special tokens.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fox"]
        ... )
        >>> preprocess = TextPreprocessor(tokenizer, max_length=6)
        >>> keras.ops.convert_to_numpy(preprocess(["a fox"])["token_ids"]).tolist()
        [[2, 5, 6, 3, 0, 0]]
        >>> keras.ops.convert_to_numpy(preprocess(["a"], ["fox"])["segment_ids"]).tolist()
        [[0, 0, 0, 1, 1, 0]]
    """

    def __init__(self, tokenizer: TokenizerLike, max_length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Keras' private hooks for layers on strings, as in its TextVectorization. Without them
        # lists of strings are refused, or converted to tensors of the backend.
        self._allow_non_tensor_positional_args = True
        self._convert_input_args = False
        self.tokenizer = tokenizer
        self.max_length = max_length
        padded_batch(tokenizer, [""], [""], padding="max_length", max_length=max_length)  # checks
        # Keras finds lookup tables among a layer's attributes when it exports a model.
        self._resources = tokenizer.resources if has_tensorflow() else []

    def call(self, texts: Any, second: Any = None) -> dict[str, Any]:
        """Returns the encoder's input; see the class."""
        sides = [None if side is None else _flat(side) for side in (texts, second)]
        _check_texts(*sides)
        features = padded_batch(
            self.tokenizer, *sides, padding="max_length", max_length=self.max_length
        )
        if keras.backend.backend() == "tensorflow" or not _is_eager():
            return features
        return {name: keras.ops.convert_to_tensor(np.asarray(x)) for name, x in features.items()}

    def compute_output_spec(self, texts: Any, second: Any = None) -> dict[str, keras.KerasTensor]:
        """Returns the shapes of the encoder's input."""
        _check_texts(texts, second)
        shape = (texts.shape[0], self.max_length)
        names = ("token_ids", "segment_ids", "padding_mask")
        return {name: keras.KerasTensor(shape, dtype="int32") for name in names}

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; the tokenizer as its class and its arguments."""
        arguments = {
            name: {"base64": base64.b64encode(x).decode()} if isinstance(x, bytes) else x
            for name, x in self.tokenizer.get_config().items()
        }
        tokenizer = {"kind": self.tokenizer.kind, "config": arguments}
        return {**super().get_config(), "tokenizer": tokenizer, "max_length": self.max_length}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Creates a layer from the result of `get_config`."""
        tokenizer: Any = registry.get("tokenizer class", config["tokenizer"]["kind"])
        arguments = {
            name: base64.b64decode(x["base64"]) if isinstance(x, dict) and "base64" in x else x
            for name, x in config["tokenizer"]["config"].items()
        }
        return cls(**{**config, "tokenizer": tokenizer.from_config(arguments)})


def _check_texts(*sides: Any) -> None:
    """Raises TypeError for arrays and tensors without strings, such as labels."""
    for side in sides:
        dtype = getattr(side, "dtype", "string")  # of NumPy, TensorFlow, or a name in Keras
        if getattr(dtype, "kind", None) not in ("U", "S", "O") and "string" not in str(dtype):
            raise TypeError(
                "A TextPreprocessor reads strings; for a dataset with labels use "
                "dataset.map(lambda x, y: (preprocess(x), y)). "
                f"Received: values of the type {dtype}"
            )


def _flat(texts: Any) -> Any:
    """Returns texts of the shape (B, 1) as (B,); `keras.Input((1,), dtype="string")` has it."""
    shape = getattr(texts, "shape", None)
    return texts[:, 0] if shape is not None and len(shape) == 2 and shape[1] == 1 else texts


def _is_eager() -> bool:
    """Whether values are computed, not a graph of `tf.data`."""
    return not has_tensorflow() or tf.executing_eagerly()
