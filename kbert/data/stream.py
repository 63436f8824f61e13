"""The pipeline from blocks to batches, stage by stage.

    windows of blocks → plan of pairs → whole global batches → this host's rows → tokens → masks

Every stage is a function of integers, so the rows are the same for any number of threads and
hosts and any batch size, an epoch never repeats another one's pairs and masks, and the stream can
be taken up at any batch. Only windows are held in memory, never the corpus.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from kbert.data import assembly, pairs, records
from kbert.data.blocks import BlockReader
from kbert.data.hashing import fold
from kbert.data.masking import (
    apply_masks,
    choose_tokens,
    choose_words,
    first_pieces,
    max_predictions,
    prediction_counts,
)
from kbert.data.recipe import Recipe

_CHUNK_TOKENS = 1 << 17  # tokens assembled at once: 1,024 rows of 128, small enough for the cache
_FOREVER = np.iinfo(np.int32).max
_PLAN, _MASK = 0, 1  # streams of draws under the seed


def batches(
    recipe: Recipe, reader: BlockReader, tokenizer, start: Sequence[int | tf.Tensor]
) -> tf.data.Dataset:
    """The batches that `pretraining_dataset` describes, from `start` = (epoch, window, row) on."""
    epoch, window, row = start
    per_epoch = reader.windows
    stop = _FOREVER if recipe.epochs is None else recipe.epochs * per_epoch
    windows = tf.data.Dataset.range(epoch * per_epoch + window, stop)
    windows = windows.flat_map(_stage(_read, reader))
    windows = windows.map(_stage(_plan, recipe, reader.token_dtype))
    if recipe.epochs is not None:
        windows = windows.concatenate(_end_of_data(reader.token_dtype))
    windows = windows.scan(
        assembly.carry_state(reader.token_dtype, row),
        _stage(
            assembly.whole_batches,
            batch_size=recipe.batch_size,
            keep_rest=not recipe.drop_remainder,
        ),
    )
    # The next window is read and planned while this one is made into batches.
    chunks = windows.prefetch(1).flat_map(_stage(_chunks, recipe))
    rows = chunks.map(
        _stage(_finish, recipe, tokenizer),
        num_parallel_calls=recipe.threads or tf.data.AUTOTUNE,
    )
    rows = rows.rebatch(recipe.batch_size // recipe.num_hosts, drop_remainder=True)
    return rows.prefetch(tf.data.AUTOTUNE)


def _stage(function: Callable, *arguments, **settings) -> Callable:
    """A stage with its settings, traced as it stands: AutoGraph would double the time to start."""
    bound = functools.partial(function, *arguments, **settings)
    return tf.autograph.experimental.do_not_convert(lambda *elements: bound(*elements))


def _read(reader: BlockReader, number: tf.Tensor) -> tf.data.Dataset:
    epoch, window = number // reader.windows, number % reader.windows
    return reader.window(epoch, window).map(lambda serialized: (epoch, window, serialized))


def _plan(recipe: Recipe, token_dtype: str, epoch: tf.Tensor, window: tf.Tensor, serialized):
    blocks = records.parse_blocks(serialized, token_dtype)
    key = fold(fold(fold(recipe.seed, _PLAN), epoch), window)
    plan = (pairs.plan_pairs if recipe.next_sentence else pairs.plan_segments)(
        blocks["sentences"],
        blocks["documents"],
        key,
        max_tokens=recipe.sequence_length - recipe.num_specials,
        short_share=recipe.short_sequence_share,
    )
    return blocks["tokens"], assembly.place_rows(plan, epoch, window), False


def _end_of_data(token_dtype: str) -> tf.data.Dataset:
    nothing = tf.zeros([0], token_dtype), tf.zeros([0, len(assembly.ROW_COLUMNS)], tf.int32)
    return tf.data.Dataset.from_tensors((*nothing, True))


def _chunks(recipe: Recipe, tokens: tf.Tensor, rows: tf.Tensor, positions: tf.Tensor):
    """This host's rows of a window, some at a time; the tokens are shared, not copied."""
    share = functools.partial(
        assembly.host_share,
        batch_size=recipe.batch_size,
        num_hosts=recipe.num_hosts,
        host_index=recipe.host_index,
    )
    rows, positions = share(rows), share(positions)
    size = max(1, _CHUNK_TOKENS // recipe.sequence_length)
    begins = tf.data.Dataset.range(0, tf.shape(rows, tf.int64)[0], size)
    return begins.map(lambda n: (tokens, rows[n : n + size], positions[n : n + size]))


def _finish(recipe: Recipe, tokenizer, tokens, rows, positions) -> dict[str, tf.Tensor]:
    """Assembles and masks some rows."""
    length = recipe.sequence_length
    features = assembly.assemble(
        tokens,
        rows,
        sequence_length=length,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        pairs=recipe.next_sentence,
    )
    row_length, length_a, in_text = (features.pop(n) for n in ("length", "length_a", "in_text"))
    epoch, window, row = (rows[:, n] for n in (-3, -2, -1))
    keys = fold(fold(fold(fold(recipe.seed, _MASK), epoch), window), row)  # (rows,)
    counts = prediction_counts(length, recipe.masked_share, recipe.num_specials)
    count = tf.gather(counts, row_length)
    columns = max_predictions(length, recipe.masked_share)
    if recipe.masking == "token":
        eligible = tf.maximum(row_length - recipe.num_specials, 0)
        chosen = choose_tokens(keys, length_a, eligible, count, columns)
    else:
        starts = first_pieces(features["token_ids"], in_text, tokenizer.continuation)
        chosen = choose_words(keys, starts, in_text, count, columns)
    features |= apply_masks(
        keys,
        features["token_ids"],
        chosen,
        vocabulary_size=tokenizer.vocabulary_size,
        mask_id=tokenizer.mask_id,
    )
    if recipe.next_sentence:
        features["next_sentence_labels"] = rows[:, 4]
    return features | {"position": positions}
