"""Batches for a causal language model: rows of packed text, in which every token is predicted.

The documents of a window are joined into one long text, in a new order in every epoch, each
followed by the end-of-text token. The text is split into rows of T steps. A step reads one token
and predicts the next:

    windows of blocks → one text → spans of T + 1 tokens → whole global batches → this host's rows

Neighbouring spans share a token: the last one that a span predicts is the first one that the next
span reads. The first span of a window begins with an end of text, so that every token and every end
of a document is predicted once per epoch. As in `stream.py`, every stage is a function of integers.
So the rows are the same for any number of threads and hosts and any batch size, and the stream can
be resumed at any batch.

Source: Radford et al. 2018 and 2019 train on contiguous spans of text, 512 and 1,024 tokens long;
the ends of documents as separators are those of openai/gpt-2.

Shapes: M tokens of a window, D documents, N rows, T steps of a row, B rows of a batch of H hosts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.core.options import option, takes
from kbert.data.corpus.blocks import BlockReader
from kbert.data.masking.hashing import fold
from kbert.data.pretraining.segments import insert_token
from kbert.data.pretraining.settings import StreamSettings
from kbert.data.pretraining.stream import Data, open_stream, planned_batches
from kbert.data.pretraining.walk import sentence_bounds, shuffled
from kbert.tokenizers.base import Tokenizer

_DOCUMENTS, _ROWS = 0, 1  # streams of draws under the seed


class CausalSettings(StreamSettings):
    """Settings of `causal_dataset`, except the location of the data and the start.

    Args:
        {options}
    """

    sequence_length: int = StreamSettings.with_default("sequence_length", 512)
    batch_size: int = StreamSettings.with_default("batch_size", 64)
    runs: bool = option(
        False,
        help="Each sequence continues in the same row of the next batch, for a model with a "
        "memory. Otherwise sequences come in any order.",
    )


@takes(CausalSettings)
def causal_dataset(
    data: Data,
    tokenizer: Tokenizer,
    *,
    split: str = "train",
    start: ArrayLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    **settings: Any,
) -> tf.data.Dataset:
    """Returns batches for pretraining GPT, from shards or directly from text.

    The shards are those of `pretraining_dataset`. A text ends with the tokenizer's "sep" token:
    `<|endoftext|>` of GPT-2, `</s>` of RoBERTa, `[SEP]` of BERT. Rows are full, except the last of
    each window (4 to 8 million tokens). Positions without a step are the end of text, with weight
    0.

    Args:
        data: folder written by `prepare_corpus`, several folders, or text, with the same options as
            in `pretraining_dataset`.
        tokenizer: tokenizer that made the ids in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after, whole or one row of it; None begins with the
            first batch. It must come from the same `batch_size`.
        cache_dir: folder in which text is prepared; None is the user's cache folder.
        **settings: fields of `CausalSettings`:

            {options}

    Returns:
        A dataset of dicts of tensors with static shapes, R = B / H: `token_ids` (R, T) int32, the
        input; `targets` (R, T) int32, the token after each; `weights` (R, T) float32, 1 where
        there is a step; with `runs`, `begins` (R,) int32, 1 in the first batch of a window, where
        the model's memory must be zero; and `position` (R, 3) int32, the `start` that resumes after
        this batch, in every row.

    Raises:
        FileNotFoundError: the folder is not a corpus, or a shard is missing.
        ValueError: a setting out of range, another tokenizer or one without an end of text, a
            damaged shard, or no text.
        tf.errors.InvalidArgumentError: a corrupt record, while reading; the message names file and
            byte.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "to", "be", "or", "not"])
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("to be\\n\\nor not\\n")
        >>> batches = causal_dataset(path, tokenizer, sequence_length=8, batch_size=1,
        ...                          cache_dir=tempfile.mkdtemp())
        >>> batch = next(iter(batches))
        >>> batch["token_ids"].numpy().tolist(), batch["targets"].numpy().tolist()
        ([[3, 5, 6, 3, 7, 8, 3, 3]], [[5, 6, 3, 7, 8, 3, 3, 3]])
        >>> batch["weights"].numpy().tolist()
        [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    """
    options = CausalSettings.from_arguments(settings, "causal_dataset")
    if tokenizer.sep_id is None:
        raise ValueError(
            'The tokenizer must have a "sep" token, which marks the end of a text. Received: a '
            f"{type(tokenizer).__name__} with {', '.join(tokenizer.special_tokens) or 'no role'} "
            "only"
        )
    reader, position = open_stream(options, data, tokenizer, split, start, cache_dir)
    return batches(options, reader, tokenizer.sep_id, position)


def batches(
    settings: CausalSettings, reader: BlockReader, end_id: int, start: Sequence[int | tf.Tensor]
) -> tf.data.Dataset:
    """Returns the batches of `causal_dataset`, from `start` = (epoch, window, row) on.

    `end_id` is the end-of-text token.
    """
    return planned_batches(
        settings,
        reader,
        start,
        plan=functools.partial(_plan, settings, end_id),
        finish=functools.partial(_finish, settings, end_id),
    )


def _plan(
    settings: CausalSettings,
    end_id: int,
    epoch: tf.Tensor,
    window: tf.Tensor,
    **blocks: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the text of a window, (M,) ids, and the plan of its rows, (N, 5) int32.

    A row is a span of the text. `blocks` are `tokens`, `sentences` and `documents` from
    `parse_blocks`. The plan has the columns of `PLAN_COLUMNS`: start and number of tokens of each
    row, then zeros. `end_id` is the end-of-text token.
    """
    key = fold(fold(settings.seed, epoch), window)
    text = one_text(**blocks, key=fold(key, _DOCUMENTS), end_id=end_id)
    steps = tf.size(text) - 1
    if settings.runs:
        return text, _run_rows(steps, settings)
    start = tf.range(0, steps, settings.sequence_length)
    # A row of n steps spans n + 1 tokens.
    length = tf.minimum(settings.sequence_length, steps - start) + 1
    rows = tf.pad(tf.stack([start, length], 1), [[0, 0], [0, 3]])
    return text, shuffled(rows, fold(key, _ROWS))


def _run_rows(steps: tf.Tensor, settings: CausalSettings) -> tf.Tensor:
    """Divides a window's text of `steps` + 1 tokens into one run for each row of a batch.

    Returns the plan of the rows batch by batch, (N, 5) int32, in the format of `_plan`. Runs differ
    by at most one step; a row after the end of its run has length 0.
    """
    row = tf.range(settings.batch_size + 1, dtype=tf.int64)
    bounds = tf.cast(row * tf.cast(steps, tf.int64) // settings.batch_size, tf.int32)
    longest = tf.reduce_max(bounds[1:] - bounds[:-1])
    start = bounds[:-1] + tf.range(0, longest, settings.sequence_length)[:, None]
    length = tf.clip_by_value(bounds[1:] - start, 0, settings.sequence_length)
    start, length = (tf.reshape(x, [-1]) for x in (start, length))
    # A row of n > 0 steps spans n + 1 tokens; a row without steps has no tokens.
    rows = [tf.where(length > 0, start, 0), tf.where(length > 0, length + 1, 0)]
    return tf.pad(tf.stack(rows, 1), [[0, 0], [0, 3]])


def one_text(
    tokens: tf.Tensor, sentences: tf.Tensor, documents: tf.Tensor, key: tf.Tensor, end_id: int
) -> tf.Tensor:
    """Joins the documents in a random order, with an end of text before and after each.

    Args:
        tokens: (tokens,), ids of a window.
        sentences: (S,) int32, number of tokens of each sentence.
        documents: (D,) int32, number of sentences of each document.
        key: uint64, key of the order.
        end_id: id of the end-of-text token.

    Returns:
        (tokens + D + 1,), of the type of `tokens`.

    Example:
        >>> text = one_text(tf.constant([7, 8, 9]), tf.constant([1, 1, 1]), tf.constant([1, 2]),
        ...                 fold(0, 2), end_id=3)
        >>> text.numpy().tolist()
        [3, 8, 9, 3, 7, 3]
    """
    ends = tf.gather(sentence_bounds(sentences), tf.cumsum(documents))  # (D,)
    ended = insert_token(tokens, ends, end_id)
    ends += tf.range(1, tf.size(ends) + 1)
    starts = tf.pad(ends[:-1], [[1, 0]])
    order = shuffled(tf.range(tf.size(ends)), key)
    lengths = tf.gather(ends - starts, order)
    shift = tf.gather(starts, order) - tf.cumsum(lengths, exclusive=True)
    source = tf.range(tf.size(ended)) + tf.repeat(shift, lengths)
    return tf.concat([tf.cast([end_id], ended.dtype), tf.gather(ended, source)], 0)


def _finish(
    settings: CausalSettings,
    end_id: int,
    text: tf.Tensor,
    rows: tf.Tensor,
    positions: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns the features of `causal_dataset` for some of a window's rows.

    `text` (M,) is the window's text, `rows` (N, …) the plan of the rows: start and number of tokens
    in the first two columns. `positions` (N, 3) becomes a feature. `end_id` fills the rows.
    """
    start, length = rows[:, 0, None], rows[:, 1, None]  # (N, 1)
    column = tf.range(settings.sequence_length + 1)[None]  # (1, T + 1)
    inside = column < length
    ids = tf.cast(tf.gather(text, tf.where(inside, start + column, 0)), tf.int32)
    ids = tf.where(inside, ids, end_id)
    extra = {}
    if settings.runs:
        is_first = positions[:, 2] == settings.batch_size  # first batch of its window
        extra["begins"] = tf.cast(is_first, tf.int32)
    return {
        **extra,
        "token_ids": ids[:, :-1],
        "targets": ids[:, 1:],
        "weights": tf.cast(inside[:, 1:], tf.float32),
        "position": positions,
    }
