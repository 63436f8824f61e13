"""Batches for pretraining an encoder-decoder: it restores text that was corrupted by noise.

    windows of blocks → rows of text → whole global batches → this host's rows → noise → both sides

As in `kbert.data.pretraining.stream`, every stage is a function of integers. So the rows are the
same for any number of threads and hosts and any batch size, an epoch never repeats the noise of
another, and the stream can be resumed at any batch.

Shapes: M tokens of a window, N rows, S and T tokens of a row's source and targets, B rows of a
batch of H hosts.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, cast

from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.core.options import takes
from kbert.data.corpus.blocks import BlockReader
from kbert.data.denoising.noise import Sides
from kbert.data.denoising.rows import LAYOUTS, MARKED_DTYPE, gather_text, mark_sentences
from kbert.data.denoising.settings import DenoisingSettings, with_noise
from kbert.data.masking.hashing import fold
from kbert.data.pretraining.stream import Data, open_stream, planned_batches
from kbert.tokenizers.base import Tokenizer

_PLAN, _NOISE = 0, 1  # streams of draws under the seed


@takes(DenoisingSettings)
def denoising_dataset(
    data: Data,
    tokenizer: Tokenizer,
    *,
    split: str = "train",
    start: ArrayLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    **settings: Any,
) -> tf.data.Dataset:
    """Returns batches for pretraining an encoder-decoder, from shards or directly from text.

    `noise` chooses what the encoder reads and what the decoder predicts. Its kinds are classes of
    `kbert.data.denoising`, which describe both sides and their options. Options follow the name
    after a colon: "t5:masked_share=0.2".

    Args:
        data: folder written by `prepare_corpus`, several folders, or text, with the same options as
            in `pretraining_dataset`.
        tokenizer: tokenizer that made the ids in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after, whole or one row of it; None begins with the
            first batch. It must come from the same settings.
        cache_dir: folder in which text is prepared; None is the user's cache folder.
        **settings: fields of `DenoisingSettings`. `noise` may also be a `Noise`:

            {options}

    Returns:
        A dataset of dicts of tensors with static shapes, R = B / H: `encoder_token_ids` and
        `encoder_padding_mask` (R, S) int32, the source; `targets` (R, T) int32; `weights` (R, T)
        float32, 1 where there is a target; `decoder_token_ids` and `decoder_padding_mask` (R, T)
        int32, the start token and the targets except the last; for "mass" `decoder_position_ids`
        (R, T) int32, the positions of the decoder's tokens in the source; and `position` (R, 3)
        int32, the `start` that resumes after this batch, in every row. Empty rows fill the last
        batch of the last epoch: the source has special tokens only, and all weights are 0.

    Raises:
        FileNotFoundError: the folder is not a corpus, or a shard is missing.
        ValueError: a setting out of range, another tokenizer or one without a special token that
            the noise needs, a damaged shard, or no text.
        tf.errors.InvalidArgumentError: a corrupt record, while reading; the message names file and
            byte.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> words = "to be or not that is the question".split()
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *words, "<extra_id_0>"])
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("to be or not to be\\n\\nthat is the question\\n")
        >>> batches = denoising_dataset(path, tokenizer, noise="t5", sequence_length=9,
        ...                             batch_size=1, cache_dir=tempfile.mkdtemp())
        >>> batch = next(iter(batches))
        >>> for name in ("encoder_token_ids", "decoder_token_ids", "targets"):
        ...     print(*(tokenizer.id_to_token(n) for n in batch[name].numpy()[0]))
        that is the question to be or <extra_id_0> [SEP]
        [PAD] <extra_id_0> not
        <extra_id_0> not [SEP]
    """
    options = DenoisingSettings.from_arguments(with_noise(settings), "denoising_dataset")
    options.noise_options.check_tokenizer(tokenizer, options.sequence_length)
    _check_start(tokenizer, options)
    reader, position = open_stream(options, data, tokenizer, split, start, cache_dir)
    return batches(options, reader, tokenizer, position)


def _check_start(tokenizer: Tokenizer, settings: DenoisingSettings) -> None:
    """Raises ValueError if a tokenizer lacks the token that begins the decoder's input."""
    role = settings.decoder_start
    if role is not None and getattr(tokenizer, f"{role}_id") is None:
        raise ValueError(
            f"decoder_start={role!r} requires a tokenizer with this token. Received: a "
            f"{type(tokenizer).__name__} without one"
        )


def batches(
    settings: DenoisingSettings,
    reader: BlockReader,
    tokenizer: Tokenizer,
    start: Sequence[int | tf.Tensor],
) -> tf.data.Dataset:
    """Returns the batches of `denoising_dataset`, from `start` = (epoch, window, row) on."""
    return planned_batches(
        settings,
        reader,
        start,
        plan=functools.partial(_plan, settings),
        finish=functools.partial(_finish, settings, tokenizer),
        token_dtype=MARKED_DTYPE if settings.noise_options.uses_sentences else None,
    )


def _plan(
    settings: DenoisingSettings,
    epoch: tf.Tensor,
    window: tf.Tensor,
    tokens: tf.Tensor,
    sentences: tf.Tensor,
    documents: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tokens of a window (M,) and the plan of its rows (N, 5) int32.

    `tokens`, `sentences` and `documents` are those of `parse_blocks`; the plan has the columns of
    `PLAN_COLUMNS`. If the noise uses sentences, their first tokens are marked.
    """
    if settings.noise_options.uses_sentences:
        tokens = mark_sentences(tokens, sentences)
    layout = LAYOUTS[cast(str, settings.segments)]  # `check` has set it
    key = fold(fold(fold(settings.seed, _PLAN), epoch), window)
    return layout(tokens, sentences, documents, key, settings.text_length)


def _finish(
    settings: DenoisingSettings,
    tokenizer: Tokenizer,
    tokens: tf.Tensor,
    rows: tf.Tensor,
    positions: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns the features of `denoising_dataset` for some rows.

    `tokens` are those of a window, `rows` (N, 9) the plans of rows, see `assembly`. `positions`
    (N, 3) becomes a feature.
    """
    noise = settings.noise_options
    text = gather_text(tokens, rows, settings.text_length, marked=noise.uses_sentences)
    number, epoch, window = (rows[:, n] for n in (5, 6, 7))
    keys = fold(fold(fold(fold(settings.seed, _NOISE), epoch), window), number)
    sides = noise.corrupt(keys, text, tokenizer, settings.sequence_length)
    start_id = None
    if settings.decoder_start is not None:
        start_id = getattr(tokenizer, f"{settings.decoder_start}_id")
    return features(sides, text.length > 0, start_id) | {"position": positions}


def features(
    sides: Sides, has_text: tf.Tensor, start_id: int | None = None
) -> dict[str, tf.Tensor]:
    """Returns the features of `denoising_dataset`, except the position.

    Args:
        sides: both sides of the rows.
        has_text: (N,) bool; rows without text have weight 0.
        start_id: id of the decoder's first input token, if `sides` has none.

    Example:
        >>> sides = Sides(tf.constant([[7, 3, 0]]), tf.constant([2]),
        ...               tf.constant([[8, 3, 0]]), tf.constant([2]))
        >>> out = features(sides, tf.constant([True]), start_id=2)
        >>> out["decoder_token_ids"].numpy().tolist(), out["weights"].numpy().tolist()
        ([[2, 8, 0]], [[1.0, 1.0, 0.0]])
    """
    width = sides.target.shape[1]
    column = tf.range(width)
    is_target = column < sides.target_length[:, None]
    # The start token is there even if a row has no target.
    is_input = (column == 0) | is_target
    start = tf.zeros_like(sides.target_length) + start_id if sides.start is None else sides.start
    shifted = tf.concat([start[:, None], sides.target[:, :-1]], 1)
    pad = tf.zeros_like(shifted)
    found = {
        "encoder_token_ids": sides.source,
        "encoder_padding_mask": tf.cast(
            tf.range(sides.source.shape[1]) < sides.source_length[:, None], tf.int32
        ),
        "decoder_token_ids": tf.where(is_input, shifted, pad),
        "decoder_padding_mask": tf.cast(is_input, tf.int32),
        "targets": sides.target,
        "weights": tf.cast(is_target & has_text[:, None], tf.float32),
    }
    if sides.first_position is not None:
        position_ids = sides.first_position[:, None] + column
        found["decoder_position_ids"] = tf.where(is_input, position_ids, 0)
    return found
