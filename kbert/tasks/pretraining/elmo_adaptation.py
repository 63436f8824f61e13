"""Continued pretraining of a bidirectional language model on texts with other words.

Shapes: V words of the new softmax.
"""

import os
from typing import Any

import numpy as np
from absl import logging

from kbert.core.types import DType, PathLike
from kbert.models import Elmo
from kbert.models.weights import get_arrays, set_arrays
from kbert.tokenizers import WordTokenizer


def adapt_elmo(
    folder: PathLike,
    tokenizer: WordTokenizer,
    *,
    changes: dict[str, Any] | None = None,
    dtype: DType = None,
) -> Elmo:
    """Makes a model with a folder's weights, and a softmax over the words of a tokenizer.

    The input side needs no change: it reads all words by their characters. In the softmax, words
    that the folder has keep their rows and other words are newly initialised. If the folder has no
    softmax, like the published releases, all of it is newly initialised.

    Args:
        folder: a kbert folder, a folder or zip file of a release, or "hf:owner/name@revision", as
            for `Elmo.from_preset`.
        tokenizer: tokenizer with the words to predict, by falling frequency in the new texts.
        changes: values of the config to replace, such as dropout.
        dtype: a Keras dtype policy or its name.

    Returns:
        The model, to be trained with a `BidirectionalLM`.

    Raises:
        ValueError: the changes need weights of other shapes.

    Example:
        >>> import tempfile, kbert
        >>> config = kbert.ElmoConfig(
        ...     filters=((1, 8),), num_highway=1, lstm_size=8, projection_size=4, vocabulary_size=4)
        >>> folder = tempfile.mkdtemp()
        >>> kbert.Elmo(config, tokenizer=WordTokenizer(["</S>", "<S>", "<UNK>", "sun"]),
        ...            ).save_to_preset(folder)
        >>> longer = WordTokenizer(["</S>", "<S>", "<UNK>", "moon", "sun"])
        >>> adapt_elmo(folder, longer).config.vocabulary_size
        5
    """
    pretrained = Elmo.from_preset(folder)
    sizes = {**(changes or {}), "vocabulary_size": tokenizer.vocabulary_size}
    elmo = Elmo(pretrained.config.replace(**sizes), tokenizer=tokenizer, dtype=dtype)
    for name in ("character_cnn", "lstm"):
        arrays = get_arrays(getattr(pretrained, name), name)
        set_arrays(getattr(elmo, name), name, arrays, os.fspath(folder))
    if pretrained.softmax is None or pretrained.tokenizer is None:
        logging.warning("%s has no softmax over words: it is newly initialised", os.fspath(folder))
        return elmo
    ids = {word: i for i, word in enumerate(pretrained.tokenizer.vocabulary)}
    rows = np.array([ids.get(word, -1) for word in tokenizer.vocabulary])  # (V,)
    for name, array in get_arrays(pretrained.softmax, "softmax").items():
        variable = getattr(elmo.softmax, name.removeprefix("softmax/"))
        is_known = (rows >= 0).reshape(-1, *[1] * (array.ndim - 1))
        variable.assign(np.where(is_known, array[rows], variable.numpy()))
    return elmo
