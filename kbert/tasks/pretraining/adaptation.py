"""Continued pretraining from a preset on texts of another domain or language."""

import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from absl import logging

from kbert.checkpoints import extend_vocabulary, read_checkpoint
from kbert.configs.encoder import EncoderConfig
from kbert.core.types import DType, PathLike
from kbert.data.pretraining.attention_kinds import NUM_SEGMENTS, PLACE_IN_PAIR
from kbert.hub import locate
from kbert.models.encoder import Encoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import set_arrays
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.base import Tokenizer


def adapt(
    folder: PathLike,
    tokenizer: Tokenizer,
    *,
    make_task: Callable[[Encoder, Any], EncoderTask] = Pretraining,
    changes: dict[str, Any] | None = None,
    dtype: DType = None,
    seed: int = 0,
) -> EncoderTask:
    """Makes a pretraining task with a folder's weights, for a vocabulary that may be longer.

    The tokenizer's vocabulary begins with the folder's; further entries become new rows of the
    token table. A new row starts as the mean of the subwords that its word was split into before;
    "##ing" starts as the mean of the subwords of "ing" inside a word. Padding rows of the folder's
    table that a new entry uses are initialised the same way. With num_segments=6 in `changes`, for
    `UniLM`, new rows of the segment table start as those of a pair of segments. A head that the
    folder lacks is newly initialised, with a warning.

    Args:
        folder: a kbert or Hugging Face folder with its tokenizer's files, or anything else that
            `kbert.hub.locate` accepts.
        tokenizer: tokenizer that the new corpus was prepared with.
        make_task: function (encoder, tokenizer) -> task, such as
            `functools.partial(Pretraining, next_sentence=False)`.
        changes: values of the config to replace, such as dropout.
        dtype: a Keras dtype policy or its name.
        seed: seed for new rows that have no subwords to start from.

    Returns:
        The task, not compiled.

    Raises:
        ValueError: the tokenizer's vocabulary does not begin with the folder's, or the tokenizers
            read text differently.

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
    folder = locate(folder)
    checkpoint = read_checkpoint(folder).expect(EncoderConfig)
    # The tokenizer is an encoder's, so not one of characters.
    old_tokenizer = cast(Tokenizer, load_tokenizer(folder))
    old_size = old_tokenizer.vocabulary_size
    if tokenizer.vocabulary[:old_size] != old_tokenizer.vocabulary:
        raise ValueError(
            "The corpus must be prepared with the preset's vocabulary; more entries may follow at "
            f"its end. Received: a tokenizer of {tokenizer.vocabulary_size} entries, and "
            f"{os.fspath(folder)} with {old_size}, which differ before the end"
        )
    _check_reads_alike(old_tokenizer, tokenizer, folder)
    config, arrays = extend_vocabulary(
        checkpoint.config,
        checkpoint.arrays,
        tokenizer.vocabulary_size,
        _pieces(old_tokenizer, tokenizer),
        seed=seed,
        known=old_size,
    )
    config = config.replace(**(changes or {}))
    arrays = _with_segments(arrays, config.num_segments)
    with without_drawing():
        encoder = Encoder(config, dtype=dtype)
        if config.padding_id == checkpoint.config.padding_id:
            encoder.weights_from = os.fspath(folder)
        task = make_task(encoder, tokenizer)
        for prefix, part in task.parts.items():
            part_arrays = {n: a for n, a in arrays.items() if n.startswith(f"{prefix}/")}
            if part_arrays:
                set_arrays(part, prefix, part_arrays, os.fspath(folder))
            else:
                logging.warning("%s has no %s: it is newly initialised", os.fspath(folder), prefix)
    return task


def _with_segments(arrays: Mapping[str, Any], num_segments: int) -> Mapping[str, Any]:
    """Returns a preset's arrays with a segment table for UniLM's kinds, if `num_segments` is that.

    A segment that is new starts as the first or second segment of a pair, whichever it is in its
    kind (as in the code of microsoft/unilm).
    """
    name = "encoder/embeddings/segment"
    if name not in arrays or num_segments != NUM_SEGMENTS or len(arrays[name]) >= NUM_SEGMENTS:
        return arrays
    last = len(arrays[name]) - 1
    return {**arrays, name: arrays[name][[min(place, last) for place in PLACE_IN_PAIR]]}


def _check_reads_alike(before: Any, tokenizer: Tokenizer, folder: PathLike) -> None:
    """Raises ValueError if the tokenizers split text differently, apart from new entries.

    The old rows of the token table would lose their meaning then. `before` is the folder's.
    """
    had, has = _reading(before), _reading(tokenizer)
    if had != has:
        raise ValueError(
            "The corpus must be prepared with the settings of the preset's tokenizer. Received: a "
            f"tokenizer with {_show(has, had)}, and {os.fspath(folder)} with {_show(had, has)}"
        )


def _reading(tokenizer: Tokenizer) -> Any:
    """Returns the settings that, with the vocabulary, determine how a tokenizer reads a text."""
    options = {"kind": tokenizer.kind, **tokenizer.settings}
    options.pop("special_tokens_in_text", None)  # not used to prepare a corpus
    if options.get("strip_accents", False) is None:  # unset: accents follow the case
        options["strip_accents"] = options["lowercase"]
    return {name: value for name, value in options.items() if isinstance(value, str | bool)}


def _show(options: Mapping[str, Any], other: Any) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items() if v != other.get(k))


def _pieces(before: Any, tokenizer: Tokenizer) -> Any:
    """Returns the id of each new token -> ids of its subwords under the folder's tokenizer.

    `before` is the folder's tokenizer. New tokens are those that `tokenizer` has after the
    vocabulary of `before`; one without subwords is left out.
    """
    ids = {piece: i for i, piece in enumerate(before.vocabulary)}
    added = tokenizer.vocabulary[len(ids) :]
    is_wordpiece = before.kind == "wordpiece"
    new_ids = range(len(ids), len(ids) + len(added))
    texts = added if is_wordpiece else [tokenizer.decode([[i]])[0] for i in new_ids]
    words = before.encode(texts).to_list() if added else []
    split = {}
    for new_id, entry, word in zip(new_ids, added, words, strict=True):
        inside = is_wordpiece and entry.startswith("##") and entry != "##"
        split[new_id] = _inside_a_word(entry[2:], ids, before.unk_id) if inside else word
    return {new_id: pieces for new_id, pieces in split.items() if pieces}


def _inside_a_word(text: str, ids: Any, unk_id: int) -> list[int]:
    """Returns the ids of a text's subwords, as WordPiece splits it after a word's first subword.

    The longest match comes first. `ids` are entry -> id; [`unk_id`] if a part has no match.
    """
    piece_ids = []
    while text:
        size = next((n for n in range(len(text), 0, -1) if f"##{text[:n]}" in ids), 0)
        if not size:
            return [unk_id]  # WordPiece makes the whole word unknown
        piece_ids.append(ids[f"##{text[:size]}"])
        text = text[size:]
    return piece_ids
