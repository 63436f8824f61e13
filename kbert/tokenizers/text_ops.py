"""All uses of tensorflow-text in kbert: its operators, without its Python.

`import tensorflow_text` loads the libraries of all its operators, 110 MB, and imports Keras for its
layers. Here each library is loaded with the first text that needs it. A later `import
tensorflow_text` finds them loaded. The public classes compute the same with the same operators, but

- `SentencepieceTokenizer` keeps its model in a resource outside of the graph, which a SavedModel
  would have to track. Here the operator that creates the resource is in the graph, with the model.
- `FastSentencepieceTokenizer` converts a model twice, for splitting and for joining, and copies
  both through lists of numbers: 0.9 instead of 0.45 seconds for the 250,000 pieces of XLM-R.
  `FastWordpieceTokenizer` copies through such a list too.

`tests/tokenizers/test_text_ops.py` compares the operators with the public classes. If a version of
tensorflow-text moves an operator, update the names here; the modules of the public classes show
the new place.

Shapes: B texts, P subwords of all texts together.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from kbert.core.late import tf

_PLAIN = {"add_bos": False, "add_eos": False, "reverse": False}
_BEST = {"nbest_size": 0, "alpha": 1.0, **_PLAIN}
_Ragged = tuple["tf.RaggedTensor", "tf.RaggedTensor", "tf.RaggedTensor"]


def import_without_keras() -> None:
    """Imports TensorFlow without Keras, in a process that only splits texts.

    This takes half the time: TensorFlow imports Keras only if it is installed. Keras can be
    imported afterwards. Does nothing if one of the two is already imported.
    """
    if {"tensorflow", "keras"} & set(sys.modules):
        return
    sys.modules["keras"] = None  # type: ignore[assignment]
    try:
        tf.__version__  # noqa: B018  # imports it
    finally:
        del sys.modules["keras"]


def normalized(texts: tf.Tensor, form: str) -> tf.Tensor:
    """Converts texts (B,), valid UTF-8, to a Unicode form: "NFC", "NFD", "NFKC" or "NFKD"."""
    return _operators("normalize_ops").normalize_utf8(texts, form)


def split_at(texts: tf.Tensor, delimiters: str, kept: str) -> _Ragged:
    """Splits texts at delimiters.

    Args:
        texts: (B,) UTF-8.
        delimiters: regular expression of what is between words.
        kept: regular expression of the delimiters that are words too.

    Returns:
        Words, and the bytes where they start and end (int64), each (B, None).
    """
    *columns, row_splits = _operators("regex_split_ops").regex_split_with_offsets(
        texts, f"({delimiters})", f"({kept})"
    )
    return _rows(columns, row_splits)


def split_at_spaces(texts: tf.Tensor) -> _Ragged:
    """Splits texts (B,) at white space.

    Returns:
        Words, and the bytes where they start and end (int32), each (B, None).
    """
    config = _builder("whitespace_tokenizer_config_builder").build_whitespace_tokenizer_config()
    operators = _operators("whitespace_tokenizer_v2")
    words, row_splits, *offsets = operators.tf_text_whitespace_tokenize_with_offsets_v2(
        texts, config
    )
    return _rows([words, *offsets], row_splits)


def wordpiece_model(
    vocabulary: list[str], unknown: str, *, longest: int, splits_words: bool
) -> np.ndarray:
    """Compiles a vocabulary to the uint8 array that `wordpiece` reads.

    Args:
        vocabulary: tokens in the order of their ids.
        unknown: token of words that the vocabulary cannot spell.
        longest: maximum length of a word in bytes; longer words are unknown.
        splits_words: whether texts are split at white space and punctuation before.

    Raises:
        RuntimeError: the vocabulary is not supported.
    """
    build = _builder("fast_wordpiece_tokenizer_model_builder").build_fast_wordpiece_model
    model = build(vocabulary, longest, "##", unknown, not splits_words, False)
    return np.frombuffer(model, np.uint8)


def wordpiece(model: tf.Tensor, texts: tf.Tensor) -> _Ragged:
    """Splits texts (B,), or words, greedily into the longest pieces.

    Args:
        model: result of `wordpiece_model`, as a constant.
        texts: (B,) UTF-8.

    Returns:
        Ids, and the bytes where they start and end, int32, each (B, None).
    """
    operators = _operators("fast_wordpiece_tokenizer")
    _, ids, row_splits, *offsets = operators.fast_wordpiece_tokenize_with_offsets(texts, model)
    return _rows([tf.cast(x, tf.int32) for x in (ids, *offsets)], row_splits)


def sentencepiece(model: bytes, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits texts by SentencePiece.

    Args:
        model: serialised SentencePiece model of any kind.
        texts: (B,) UTF-8.

    Returns:
        Ids (P,) int32, and row splits (B + 1,) int64 of the texts.
    """
    operators = _operators("sentencepiece_tokenizer")
    handle = operators.sentencepiece_op(model=model)
    return operators.sentencepiece_tokenize_op(handle, texts, **_BEST)


def sentencepiece_with_offsets(model: bytes, texts: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Like `sentencepiece`; also returns the first byte of each subword (P,) and its end (P,)."""
    operators = _operators("sentencepiece_tokenizer")
    handle = operators.sentencepiece_op(model=model)
    return operators.sentencepiece_tokenize_with_offsets_op(handle, texts, **_BEST)


def fast_model(model: bytes) -> np.ndarray:
    """Converts a serialised unigram model to the uint8 array that `fast_sentencepiece` reads."""
    return np.frombuffer(_builder("model_converter").convert_sentencepiece_model(model), np.uint8)


def fast_sentencepiece(model: tf.Tensor, texts: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts by a unigram model into ids (B, None) int32.

    Args:
        model: result of `fast_model`, as a constant.
        texts: (B,) UTF-8.
    """
    split = _operators("fast_sentencepiece_tokenizer").tf_text_fast_sentencepiece_tokenize
    ids, row_splits = split(model, texts, 0, 0, **_PLAIN)
    return tf.RaggedTensor.from_row_splits(ids, tf.cast(row_splits, tf.int64), validate=False)


def _rows(columns: list[tf.Tensor], row_splits: tf.Tensor) -> Any:
    """Returns each column (P,) as rows (B, None)."""
    return tuple(tf.RaggedTensor.from_row_splits(x, row_splits, validate=False) for x in columns)


@functools.cache
def _operators(name: str) -> ModuleType:
    """Loads a library of operators; returns the module of their functions."""
    with _loading():
        return tf.load_op_library(os.path.join(_folder(), "python", "ops", f"_{name}.so"))


@functools.cache
def _builder(name: str) -> Any:
    """Imports an extension module that builds the models which operators read."""
    tf.__version__  # noqa: B018  # it links to TensorFlow's libraries
    path = os.path.join(_folder(), "core", "pybinds", f"pywrap_{name}.so")
    full = f"tensorflow_text.core.pybinds.pywrap_{name}"
    if full not in sys.modules:
        loader = importlib.machinery.ExtensionFileLoader(full, path)
        spec: Any = importlib.util.spec_from_file_location(full, path, loader=loader)
        with _loading():
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        sys.modules[full] = module
    return sys.modules[full]


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    """Converts the errors of a library that is damaged or of another release to ImportErrors."""
    try:
        yield
    except ModuleNotFoundError:
        raise
    except (ImportError, OSError, RuntimeError, tf.errors.OpError) as error:
        raise ImportError(
            "tensorflow-text must be whole and of TensorFlow's release, such as 2.21 with 2.21 "
            f"(`python -m kbert.doctor` shows both). Received: {error}"
        ) from error


def _folder() -> str:
    """Returns the folder of tensorflow-text; ImportError if it is not installed."""
    spec = importlib.util.find_spec("tensorflow_text")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "tensorflow-text is required for tokenizers inside graphs (pip install tensorflow-text)"
        )
    return spec.submodule_search_locations[0]
