"""Going on from a pretrained folder on texts of another domain or language."""

import os
from typing import Any

from absl import logging

from kbert.checkpoints import extend_vocabulary, read_checkpoint
from kbert.config import EncoderConfig
from kbert.models.encoder import Encoder
from kbert.models.weights import set_arrays
from kbert.tasks.pretraining import Pretraining
from kbert.tokenizers import load_tokenizer


def adapt(
    folder: str | os.PathLike,
    tokenizer: Any,
    *,
    next_sentence: bool = True,
    changes: dict[str, Any] | None = None,
    dtype: Any = None,
    seed: int = 0,
) -> Pretraining:
    """A pretraining task with a folder's weights, for a vocabulary that may be longer.

    Entries that the tokenizer has behind the folder's own become new rows of the token table; each
    starts as the mean of the pieces that its word was split into before. A head that the folder
    does not have begins anew, and is logged.

    Args:
        folder: a kbert or Hugging Face folder, with its tokenizer's files.
        tokenizer: the one the new corpus was prepared with.
        next_sentence: whether to predict next sentences too.
        changes: values of the config to replace, such as dropout.
        dtype: a Keras dtype policy or its name.
        seed: of new rows that no piece gives a start to.

    Returns:
        The task, not compiled.

    Raises:
        ValueError: the vocabularies differ before the end of the folder's own.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> short = WordPieceTokenizer([*SPECIAL_TOKENS, "cell", "##s"])
        >>> config = EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> folder = tempfile.mkdtemp()
        >>> Pretraining(Encoder(config), short).save_to_preset(folder)
        >>> longer = WordPieceTokenizer([*short.vocabulary, "cells"])
        >>> adapt(folder, longer).encoder.config.vocabulary_size
        8
    """
    checkpoint = read_checkpoint(folder)
    before = load_tokenizer(folder)
    known = before.vocabulary_size
    if tokenizer.vocabulary[:known] != before.vocabulary:
        raise ValueError(
            "The corpus must be prepared with the preset's vocabulary; more entries may follow at "
            f"its end. Received: a tokenizer of {tokenizer.vocabulary_size} entries, and "
            f"{os.fspath(folder)} with {known}, which differ before the end"
        )
    added = tokenizer.vocabulary[known:]
    pieces = before.encode(added).to_list() if added else []
    config, arrays = extend_vocabulary(
        checkpoint.config,
        checkpoint.arrays,
        max(tokenizer.vocabulary_size, checkpoint.config.vocabulary_size),
        {known + i: ids for i, ids in enumerate(pieces) if ids},
        seed=seed,
    )
    config = EncoderConfig.from_dict({**config.to_dict(), **(changes or {})})
    task = Pretraining(Encoder(config, dtype=dtype), tokenizer, next_sentence=next_sentence)
    for prefix, part in task.parts.items():
        found = {n: a for n, a in arrays.items() if n.startswith(f"{prefix}/")}
        if found:
            set_arrays(part, prefix, found, os.fspath(folder))
        else:
            logging.warning("%s has no %s: it begins anew", os.fspath(folder), prefix)
    return task
