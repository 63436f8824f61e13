"""All uses of tensorflow-text's private names in kbert.

The public classes compute the same with the same operators, but

- `SentencepieceTokenizer` keeps its model in a resource outside of the graph, which a SavedModel
  would have to track. Here the operator that creates the resource is in the graph, with the model.
- `FastSentencepieceTokenizer` converts a model twice, for splitting and for joining, and copies
  both through lists of numbers: 0.9 instead of 0.45 seconds for the 250,000 pieces of XLM-R.
- Importing tensorflow-text imports Keras for its layers.

`tests/tokenizers/test_text_ops.py` compares the operators with the public classes. If a version of
tensorflow-text moves an operator, update the names here; the modules of the public classes show
the new place.

Shapes: B texts, P subwords of all texts together.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from kbert.core.late import LazyModule, tf, tf_text

_SENTENCEPIECE = LazyModule("tensorflow_text.python.ops.sentencepiece_tokenizer")
_FAST = LazyModule("tensorflow_text.python.ops.fast_sentencepiece_tokenizer")
_CONVERTER = LazyModule("tensorflow_text.core.pybinds.pywrap_model_converter")
_PLAIN = {"add_bos": False, "add_eos": False, "reverse": False}
_BEST = {"nbest_size": 0, "alpha": 1.0, **_PLAIN}
_LAYERS = "tensorflow_text.python.keras"


def import_without_keras() -> None:
    """Imports TensorFlow and tensorflow-text without Keras, in a process that only splits texts.

    This takes half the time. TensorFlow imports Keras only if it is installed; tensorflow-text
    imports it for its layers. Keras can be imported afterwards. Does nothing if one of the three is
    already imported.
    """
    if {"tensorflow", "tensorflow_text", "keras"} & set(sys.modules):
        return
    hidden: dict[str, Any] = {"keras": None, _LAYERS: ModuleType(_LAYERS)}
    sys.modules.update(hidden)
    try:
        for module in (tf, tf_text):
            module.__version__  # noqa: B018  # imports it
    finally:
        for name in hidden:
            del sys.modules[name]


def sentencepiece(model: bytes, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits texts by SentencePiece.

    Args:
        model: serialised SentencePiece model of any kind.
        texts: (B,) UTF-8.

    Returns:
        Ids (P,) int32, and row splits (B + 1,) int64 of the texts.
    """
    ops = _SENTENCEPIECE.gen_sentencepiece_tokenizer
    return ops.sentencepiece_tokenize_op(ops.sentencepiece_op(model=model), texts, **_BEST)


def sentencepiece_with_offsets(model: bytes, texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Like `sentencepiece`; also returns the first byte of each subword (P,) and its end (P,)."""
    ops = _SENTENCEPIECE.gen_sentencepiece_tokenizer
    handle = ops.sentencepiece_op(model=model)
    return ops.sentencepiece_tokenize_with_offsets_op(handle, texts, **_BEST)


def fast_model(model: bytes) -> np.ndarray:
    """Converts a serialised unigram model to the uint8 array that `fast_sentencepiece` reads."""
    return np.frombuffer(_CONVERTER.convert_sentencepiece_model(model), np.uint8)


def fast_sentencepiece(model: tf.Tensor, texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts by a unigram model into ids (B, None) int32.

    Args:
        model: result of `fast_model`, as a constant.
        texts: (B,) UTF-8.
    """
    ops = _FAST.gen_fast_sentencepiece_tokenizer
    ids, row_splits = ops.tf_text_fast_sentencepiece_tokenize(model, texts, 0, 0, **_PLAIN)
    return tf.RaggedTensor.from_row_splits(ids, tf.cast(row_splits, tf.int64), validate=False)
