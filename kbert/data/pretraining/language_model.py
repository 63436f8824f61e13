"""Batches for a bidirectional language model: one long text in every row, read both ways.

A sentence <S> w1 … wn </S> is n + 1 *steps* from a word to the next. A window of blocks is divided
into B runs of steps, one for each row of the batch. A batch has the next T steps of every run:

    windows of blocks → steps → places of batches → this host's rows → characters and targets

In the forward direction the input of a step is the word before it, and the target is the word after
it. In the backward direction, from the end of the run to its beginning, it is the other way round.
So every word is read once and predicted once in each direction, in a context as long as the run. As
in `stream.py`, every stage is a function of integers. So a batch is the same for any number of
threads and hosts, and the stream can be resumed at any batch.

Source: `LMDataset` and `BidirectionalLMDataset` of allenai/bilm-tf, bilm/data.py (Peters et al.
2018). There each sentence is reversed, and the sentences stay in order; here the whole text is
reversed.

Shapes: M steps of a window, B rows of a batch of H hosts, T steps of a row, C characters of a word.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.core.options import option, takes
from kbert.data.corpus import records
from kbert.data.corpus.blocks import BlockReader
from kbert.data.pipeline import exact_options, stage
from kbert.data.pretraining.segments import insert_token
from kbert.data.pretraining.settings import StreamSettings
from kbert.data.pretraining.stream import Data, open_stream
from kbert.data.pretraining.walk import sentence_bounds
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.words.characters import MAX_CHARACTERS, character_ids

_TABLE_WORDS = 1 << 16  # words spelled at once: a million at once would need a gigabyte


class LanguageModelSettings(StreamSettings):
    """Settings of `language_model_dataset`, except the location of the data and the start.

    Args:
        {options}
    """

    sequence_length: int = option(
        20,
        help="Words per sequence (T), which is also the number of steps of backpropagation.",
        at_least=1,
        at_most=2**16,
    )
    batch_size: int = StreamSettings.with_default("batch_size", 128)
    target_vocabulary: int | None = option(
        None,
        help="Number of vocabulary entries to predict, the first and most frequent; other "
        "words are unknown as targets but keep their characters as inputs. Default: all.",
    )
    max_characters: int = option(
        MAX_CHARACTERS, help="Character ids per word (C), see `kbert.tokenizers.character_ids`."
    )


@takes(LanguageModelSettings)
def language_model_dataset(
    data: Data,
    tokenizer: Tokenizer,
    *,
    split: str = "train",
    start: ArrayLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    **settings: Any,
) -> tf.data.Dataset:
    """Returns batches for pretraining ELMo, from shards or directly from text.

    Row b of a batch continues where row b of the batch before ended, so that a model can keep its
    state. At the end of a window (4 to 8 million words) rows continue elsewhere in the text, with
    the state kept. If fewer than T steps of a run are left, positions of weight 0 fill its last
    batch.

    Words outside of the shards' vocabulary get the characters of the unknown token. So the
    vocabulary of the shards should contain every word, and `target_vocabulary` should limit the
    predictions.

    Args:
        data: folder written by `prepare_corpus`, several folders, or text, with the same options as
            in `pretraining_dataset`.
        tokenizer: word tokenizer that made the ids in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after, whole or one row of it; None begins with the
            first batch. It must come from the same `batch_size`.
        cache_dir: folder in which text is prepared; None is the user's cache folder.
        **settings: fields of `LanguageModelSettings`:

            {options}

    Returns:
        A dataset of dicts of tensors with static shapes, R = B / H: `character_ids` and
        `reverse_character_ids` (R, T, C) int32, the input words, 0 where there is none; `targets`
        and `reverse_targets` (R, T) int32, the words to predict; `weights` and `reverse_weights`
        (R, T) float32, 1 where there is a word; `begins` (R,) int32, 1 in the very first batch,
        where the state of a row must be zero; and `position` (R, 3) int32, the `start` that resumes
        after this batch, in every row. The third number of a position is the number of steps read
        in each run.

    Raises:
        FileNotFoundError: the folder is not a corpus, or a shard is missing.
        ValueError: a setting out of range, another tokenizer, a damaged shard, or no text.
        tf.errors.InvalidArgumentError: a corrupt record, while reading; the message names file and
            byte.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import WordTokenizer
        >>> tokenizer = WordTokenizer(["</S>", "<S>", "<UNK>", "to", "be", "or", "not"])
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("to be or\\n\\nnot to be\\n")
        >>> batches = language_model_dataset(path, tokenizer, sequence_length=4, batch_size=2,
        ...                                  cache_dir=tempfile.mkdtemp())
        >>> batch = next(iter(batches))
        >>> batch["targets"].numpy().tolist(), batch["reverse_targets"].numpy().tolist()
        ([[6, 3, 4, 0], [3, 4, 5, 0]], [[4, 3, 6, 1], [5, 4, 3, 1]])
    """
    options = LanguageModelSettings.from_arguments(settings, "language_model_dataset")
    _check_vocabulary(tokenizer, options.target_vocabulary)
    reader, position = open_stream(options, data, tokenizer, split, start, cache_dir)
    characters = character_table(tokenizer.vocabulary, options.max_characters)
    return batches(options, reader, tokenizer, characters, position)


def _check_vocabulary(tokenizer: Tokenizer, target_vocabulary: int | None) -> None:
    """Raises ValueError if a tokenizer is not one of words, or a softmax has the wrong size.

    `target_vocabulary` is the number of words that the softmax predicts, the first of the
    vocabulary; None = all.
    """
    if tokenizer.kind != "words":
        raise ValueError(
            "ELMo requires shards that were prepared with a kbert.WordTokenizer. Received: a "
            f"tokenizer of kind {tokenizer.kind!r}"
        )
    specials = max(tokenizer.sep_id, tokenizer.cls_id, tokenizer.unk_id) + 1
    size = tokenizer.vocabulary_size
    if target_vocabulary is not None and not specials <= target_vocabulary <= size:
        raise ValueError(
            "`target_vocabulary` must include the ends of a sentence and the unknown word, and "
            f"not exceed the vocabulary: it must lie in {specials}..{size}. Received: "
            f"target_vocabulary={target_vocabulary}"
        )


def batches(
    settings: LanguageModelSettings,
    reader: BlockReader,
    tokenizer: Tokenizer,
    characters: tf.Tensor,
    start: Sequence[int | tf.Tensor],
) -> tf.data.Dataset:
    """Returns the batches of `language_model_dataset`, from `start` = (epoch, window, step) on.

    `characters` is the `character_table` of the vocabulary.
    """
    epoch, window, _ = start
    windows = reader.windows_from(epoch, window, settings.epochs)
    windows = windows.map(stage(_steps, tokenizer, reader.token_dtype))
    # The next window is read while the batches of this one are made.
    plans = windows.prefetch(1).flat_map(stage(_places, settings, start))
    features = plans.map(
        stage(_finish, settings, characters, tokenizer.unk_id),
        num_parallel_calls=settings.threads or tf.data.AUTOTUNE,
    )
    return features.prefetch(tf.data.AUTOTUNE).with_options(exact_options(settings.threads))


def character_table(vocabulary: Sequence[str], max_characters: int) -> tf.Tensor:
    """Returns the character ids of all V words, (V + 1, C) int16; the last row is zeros.

    C is `max_characters`.

    >>> character_table(["a", "</S>"], 4).numpy().tolist()
    [[259, 98, 260, 261], [259, 258, 260, 261], [0, 0, 0, 0]]
    """
    parts = [
        character_ids(vocabulary[n : n + _TABLE_WORDS], max_characters).numpy().astype(np.int16)
        for n in range(0, len(vocabulary), _TABLE_WORDS)
    ]
    with tf.device("CPU"):
        return tf.constant(np.concatenate([*parts, np.zeros_like(parts[0][:1])]))


def _steps(
    tokenizer: Tokenizer,
    token_dtype: str,
    epoch: tf.Tensor,
    window: tf.Tensor,
    serialized: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Returns epoch, window, and the ids of the words before and after each step of the window.

    The ids are (M,) `token_dtype` each; the tokenizer gives those of the ends of a sentence.
    `serialized` are the records of the window's blocks.
    """
    blocks = records.parse_blocks(serialized, token_dtype)
    tokens, bounds = blocks["tokens"], sentence_bounds(blocks["sentences"])
    ids_before = insert_token(tokens, bounds[:-1], tokenizer.cls_id)
    ids_behind = insert_token(tokens, bounds[1:], tokenizer.sep_id)
    return epoch, window, ids_before, ids_behind


def _places(
    settings: LanguageModelSettings,
    start: Sequence[int | tf.Tensor],
    epoch: tf.Tensor,
    window: tf.Tensor,
    before: tf.Tensor,
    behind: tf.Tensor,
) -> tf.data.Dataset:
    """Returns a dataset with an element for each batch of a window: the arguments of `_finish`.

    Each has the steps of the runs before the batch, `at`. `start` = (epoch, window, step) is the
    first batch: earlier ones of that window are left out. `before` and `behind`, the words around
    each step, are shared by all elements, not copied.
    """
    longest = -(-tf.size(before, tf.int64) // settings.batch_size)
    is_first = (epoch == start[0]) & (window == start[1])
    at = tf.where(is_first, tf.cast(start[2], tf.int64), 0)
    batch_starts = tf.data.Dataset.range(at, longest, settings.sequence_length)
    return batch_starts.map(lambda at: (epoch, window, at, before, behind))


def _finish(
    settings: LanguageModelSettings,
    characters: tf.Tensor,
    unk_id: int,
    epoch: tf.Tensor,
    window: tf.Tensor,
    at: tf.Tensor,
    before: tf.Tensor,
    behind: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Makes this host's rows of the batch that begins `at` steps after the start of the runs.

    `characters` (V + 1, C) is the `character_table`; `before` and `behind` (M,) are the ids of the
    words before and after each step of the window. `unk_id` is the target for words outside of the
    target vocabulary.
    """
    rows = settings.batch_size // settings.num_hosts
    row = tf.range(rows, dtype=tf.int64) + settings.host_index * rows  # (R,)
    # 64 bits: rows times steps of a window can exceed 32 bits.
    steps = tf.size(before, tf.int64)
    first = row * steps // settings.batch_size
    end = (row + 1) * steps // settings.batch_size
    column = at + tf.range(settings.sequence_length, dtype=tf.int64)  # (T,)
    inside = column < (end - first)[:, None]  # (R, T)

    def read(words: tf.Tensor, targets: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        step = tf.where(inside, step, 0)
        words, targets = (tf.cast(tf.gather(ids, step), tf.int32) for ids in (words, targets))
        words = tf.where(inside, words, tf.shape(characters)[0] - 1)
        if settings.target_vocabulary is not None:
            targets = tf.where(targets < settings.target_vocabulary, targets, unk_id)
        letters = tf.cast(tf.gather(characters, words), tf.int32)  # (R, T, C)
        return [letters, tf.where(inside, targets, 0), tf.cast(inside, tf.float32)]

    names = ("character_ids", "targets", "weights")
    forward = read(before, behind, first[:, None] + column)
    backward = read(behind, before, end[:, None] - 1 - column)
    is_first = (epoch == 0) & (window == 0) & (at == 0)
    position = tf.cast(tf.stack([epoch, window, at + settings.sequence_length]), tf.int32)
    return {
        **dict(zip(names, forward, strict=True)),
        **{f"reverse_{name}": x for name, x in zip(names, backward, strict=True)},
        "begins": tf.fill([rows], tf.cast(is_first, tf.int32)),
        "position": tf.tile(position[None], [rows, 1]),
    }
