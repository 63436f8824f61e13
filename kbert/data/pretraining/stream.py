"""The pipeline from blocks to batches, stage by stage.

    windows of blocks → plan of examples → rows → whole global batches → this host's rows
    → tokens → masks

Every stage is a function of integers. So the rows are the same for any number of threads and
hosts and any batch size. An epoch never repeats the pairs and masks of another. The stream can be
resumed at any batch. Only windows are in memory, never the corpus.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus import records
from kbert.data.corpus.blocks import BlockReader
from kbert.data.corpus.manifest import Manifest, read_manifest
from kbert.data.corpus.mixture import Mixture
from kbert.data.corpus.prepared import prepared_folder
from kbert.data.masking.hashing import fold
from kbert.data.masking.masking import Share, mask_rows, num_predictions
from kbert.data.masking.phrases import Phrases
from kbert.data.pipeline import exact_options, stage
from kbert.data.position import checked_start
from kbert.data.pretraining import assembly, packing
from kbert.data.pretraining.attention_kinds import attention_features, plan_kinds
from kbert.data.pretraining.segments import PLANS, join_documents
from kbert.data.pretraining.settings import Settings, StreamSettings
from kbert.tokenizers.base import Tokenizer

# Data of a dataset: a folder of shards, several folders with their shares, or text.
Corpus: TypeAlias = Manifest | Mixture
Data: TypeAlias = PathLike | Sequence[PathLike] | Mapping[PathLike, float] | Manifest | Mixture

_CHUNK_TOKENS = 1 << 17  # tokens assembled at once: 1,024 rows of 128, small enough for the cache
_PLAN, _MASK, _PACK, _KIND = 0, 1, 2, 3  # streams of draws under the seed


def open_stream(
    settings: StreamSettings,
    data: Data,
    tokenizer: Tokenizer,
    split: str,
    start: ArrayLike | None,
    cache_dir: PathLike | None,
) -> tuple[BlockReader, tuple[int, int, int]]:
    """Opens and checks the data of a pretraining dataset.

    Args:
        settings: settings of the stream.
        data: folder written by `prepare_corpus`, several folders with their shares, or text.
        tokenizer: tokenizer that made the ids in the shards.
        split: "train" or "held_out".
        start: `position` of the batch to resume after; None begins with the first batch.
        cache_dir: folder in which text is prepared; None is the user's cache folder.

    Returns:
        A reader of the split's blocks, and (epoch, window, row) to resume from.

    Raises:
        FileNotFoundError: the folder is not a corpus, or a shard is missing.
        ValueError: another tokenizer, too little text, or a `start` that is not of this corpus.
    """
    corpus = open_corpus(data, tokenizer, cache_dir)
    settings.check_aligned(corpus.aligned, f"{corpus.folder}")
    documents = corpus.split(split).documents
    settings.check_documents(documents, f"The {split!r} split of {corpus.folder}")
    order = (split, settings.seed, settings.window_blocks)
    if isinstance(corpus, Mixture):
        static_masks = getattr(settings, "static_masks", None)
        if static_masks is not None:
            raise ValueError(
                "`static_masks` requires a single corpus: an epoch of a mixture has only a part of "
                "a large corpus, and the same epochs again would never read the rest. Received: "
                f"static_masks={static_masks}, {corpus.folder}"
            )
        reader = corpus.reader(*order)
    else:
        reader = BlockReader.from_manifest(corpus, *order)
    return reader, checked_start(start, reader.windows)


def open_corpus(
    data: Data, tokenizer: Tokenizer | None = None, cache_dir: PathLike | None = None
) -> Corpus:
    """Opens a corpus, as its manifest or as a mixture; raises the errors of `open_stream`.

    `data` is a folder, several folders with their shares, or text, which is prepared in a folder
    under `cache_dir`. Without a tokenizer, it must not be text, and its vocabulary is not checked.
    """
    corpus: Corpus
    if isinstance(data, Mapping):
        corpus = Mixture.read(data)
    elif isinstance(data, Manifest | Mixture):
        corpus = data
    elif tokenizer is None:
        corpus = read_manifest(cast(PathLike, data))
    else:
        corpus = read_manifest(prepared_folder(data, tokenizer, cache_dir))
    if tokenizer is not None:
        corpus.check_tokenizer(tokenizer)
    return corpus


def batches(
    settings: Settings,
    reader: BlockReader,
    tokenizer: Tokenizer,
    start: Sequence[int | tf.Tensor],
    phrases: Phrases | None = None,
    first_step: int = 0,
) -> tf.data.Dataset:
    """Returns the batches of `pretraining_dataset`, from `start` = (epoch, window, row) on.

    `phrases` is the lexicon of masking="phrase". `first_step` is the number of batches trained
    before `start`, for a masked share that changes.
    """
    return planned_batches(
        settings,
        reader,
        start,
        plan=functools.partial(_plan, settings, tokenizer),
        finish=functools.partial(_finish, settings, tokenizer, phrases),
        pack=functools.partial(_pack, settings, tokenizer) if settings.pack else None,
        num_examples=settings.max_examples,
        version=settings.version,
        keep_rest=not settings.drop_remainder,
        first_step=None if settings.final_masked_share is None else first_step,
    )


def planned_batches(
    settings: StreamSettings,
    reader: BlockReader,
    start: Sequence[int | tf.Tensor],
    *,
    plan: Callable,
    finish: Callable,
    pack: Callable | None = None,
    num_examples: int = 1,
    version: Callable = lambda epoch: epoch,
    keep_rest: bool = True,
    first_step: int | None = None,
    token_dtype: str | None = None,
) -> tf.data.Dataset:
    """Returns batches of rows that are planned window by window; `plan` and `finish` define a row.

    Args:
        settings: settings of the stream.
        reader: reader of the blocks.
        start: (epoch, window, row) to resume from.
        plan: function (epoch, window, `tokens`, `sentences`, `documents`), with the arrays of
            `parse_blocks` -> the window's tokens (tokens,) and its plan (N, 5) int32, with the
            columns of `PLAN_COLUMNS`.
        finish: function (tokens, rows (N, 6K + 3), positions (N, 3)) -> features of some rows.
        pack: function (epoch, window, examples (M, 6)) -> rows of several examples (N, 6K); None
            makes each example a row.
        num_examples: K, number of examples in a row.
        version: function from an epoch to the epoch whose block order is used.
        keep_rest: whether the last batch of the data is filled up with empty rows; if False, it is
            dropped.
        first_step: number of batches before the first one. If given, the positions passed to
            `finish` have a fourth column, the number of the row's batch.
        token_dtype: type of the tokens that `plan` returns; None is that of the shards.
    """
    dtype = token_dtype or reader.token_dtype

    def planned(
        epoch: tf.Tensor, window: tf.Tensor, serialized: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, bool]:
        blocks = records.parse_blocks(serialized, reader.token_dtype)
        tokens, rows = plan(epoch, window, **blocks)
        rows = assembly.number_examples(rows)
        if pack is not None:
            rows = pack(epoch, window, rows)
        return tokens, assembly.place_rows(rows, epoch, window), False

    epoch, window, row = start
    windows = reader.windows_from(epoch, window, settings.epochs, version)
    windows = windows.map(stage(planned))
    if settings.epochs is not None:
        windows = windows.concatenate(_end_of_data(dtype, num_examples))
    windows = windows.scan(
        assembly.carry_state(dtype, row, num_examples),
        stage(assembly.whole_batches, batch_size=settings.batch_size, keep_rest=keep_rest),
    )
    if first_step is not None:
        windows = windows.scan(
            tf.constant(first_step, tf.int32),
            stage(assembly.number_batches, batch_size=settings.batch_size),
        )
    # The next window is read and planned while the batches of this one are made.
    chunks = windows.prefetch(1).flat_map(stage(_chunks, settings))
    rows = chunks.map(stage(finish), num_parallel_calls=settings.threads or tf.data.AUTOTUNE)
    rows = rows.rebatch(settings.batch_size // settings.num_hosts, drop_remainder=True)
    return rows.prefetch(tf.data.AUTOTUNE).with_options(exact_options(settings.threads))


def _plan(
    settings: Settings,
    tokenizer: Tokenizer,
    epoch: tf.Tensor,
    window: tf.Tensor,
    tokens: tf.Tensor,
    sentences: tf.Tensor,
    documents: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Plans the examples of one window: which of its tokens make up the segments of each.

    Args:
        settings: settings of the stream.
        tokenizer: tokenizer of the shards.
        epoch: number of the epoch, a scalar.
        window: number of the window in the epoch, a scalar.
        tokens: ids of the window's tokens.
        sentences: number of tokens of each sentence.
        documents: number of sentences of each document.

    Returns:
        The tokens, with separators between documents if the scheme joins them, and the plan, a row
        per
        example.
    """
    scheme = settings.segment_scheme
    layout: dict[str, Any] = {}
    if scheme.continues:
        layout["rows"] = settings.batch_size
    if scheme.aligned:
        layout |= {"tokens": tokens, "sep_id": tokenizer.sep_id}
    plan = PLANS[scheme.plan](
        sentences,
        documents,
        fold(fold(fold(settings.seed, _PLAN), settings.version(epoch)), window),
        max_tokens=settings.sequence_length - scheme.num_specials(tokenizer.pair_separators),
        short_share=settings.short_sequence_share,
        **layout,
    )
    if settings.attention_shares is not None:
        key = fold(fold(fold(settings.seed, _KIND), settings.version(epoch)), window)
        plan = plan_kinds(plan, key, settings.attention_shares)
    if scheme.joins_documents:
        tokens = join_documents(tokens, sentences, documents, tokenizer.sep_id)
    return tokens, plan


def _pack(
    settings: Settings,
    tokenizer: Tokenizer,
    epoch: tf.Tensor,
    window: tf.Tensor,
    examples: tf.Tensor,
) -> tf.Tensor:
    """Packs the planned examples of one window into rows of at most `sequence_length` tokens.

    Args:
        settings: settings of the stream.
        tokenizer: tokenizer of the shards.
        epoch: number of the epoch, a scalar.
        window: number of the window in the epoch, a scalar.
        examples: a row per example, from `_plan`.

    Returns:
        The rows, see `packing.pack_examples`.
    """
    text = examples[:, 1] + examples[:, 3]
    lengths = text + 2 + tf.where(examples[:, 3] > 0, tokenizer.pair_separators, 0)
    return packing.pack_examples(
        examples,
        lengths,
        # The number of predictions at the largest share, so that rows are the same at every step.
        num_predictions(
            settings.masking_scheme,
            *(lengths, text),
            settings.largest_share,
            settings.max_predictions,
        ),
        fold(fold(fold(settings.seed, _PACK), settings.version(epoch)), window),
        max_tokens=settings.sequence_length,
        max_predictions=settings.max_predictions,
        max_examples=settings.max_examples,
    )


def _end_of_data(token_dtype: str, num_examples: int) -> tf.data.Dataset:
    rows = tf.zeros([0, assembly.row_columns(num_examples)], tf.int32)
    return tf.data.Dataset.from_tensors((tf.zeros([0], token_dtype), rows, True))


def _chunks(
    settings: StreamSettings, tokens: tf.Tensor, rows: tf.Tensor, positions: tf.Tensor
) -> tf.data.Dataset:
    """Returns a dataset of (tokens, rows, positions), with some of this host's rows at a time.

    `rows` and `positions` are those of whole batches of all hosts. The window's `tokens` are shared
    by all elements, not copied.
    """
    share = functools.partial(
        assembly.host_share,
        batch_size=settings.batch_size,
        num_hosts=settings.num_hosts,
        host_index=settings.host_index,
    )
    rows, positions = share(rows), share(positions)
    size = max(1, _CHUNK_TOKENS // settings.sequence_length)
    begins = tf.data.Dataset.range(0, tf.shape(rows, tf.int64)[0], size)
    return begins.map(lambda n: (tokens, rows[n : n + size], positions[n : n + size]))


def _share_of(settings: Settings, number: tf.Tensor) -> tf.Tensor:
    """Returns the masked share of rows, (N,) float64; `number` (N,) is the batches before theirs.

    The share changes linearly over the first `share_steps` batches, and is constant after them.
    """
    begin, end = settings.masked_share, cast(float, settings.final_masked_share)
    progress = tf.minimum(number, cast(int, settings.share_steps)) / settings.share_steps
    return begin + (end - begin) * progress


def _finish(
    settings: Settings,
    tokenizer: Tokenizer,
    phrases: Phrases | None,
    tokens: tf.Tensor,
    rows: tf.Tensor,
    positions: tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns the features of `pretraining_dataset` for some rows: assembled, masked and packed.

    `tokens` are the ids of a window, `rows` (N, 6K + 3) the plans of rows, see `assembly`.
    `positions` is (N, 3), or with a changing masked share (N, 4): the number of the batch is last.
    `phrases` is the lexicon of masking="phrase", else None.
    """
    share: Share = settings.masked_share
    if settings.final_masked_share is not None:
        share = _share_of(settings, positions[:, 3])
        positions = positions[:, :3]
    if not settings.pack:
        features = _examples(settings, tokenizer, phrases, tokens, rows, share)
        if settings.segment_scheme.continues:
            is_first = positions[:, 2] == settings.batch_size  # first batch of its window
            features["begins"] = tf.cast(is_first, tf.int32)
        return features | {"position": positions}
    examples, indices = assembly.row_examples(rows)
    if settings.final_masked_share is not None:
        share = tf.gather(share, indices // settings.max_examples)
    features = packing.pack_features(
        _examples(settings, tokenizer, phrases, tokens, examples, share),
        indices,
        tf.shape(rows)[0],
        max_examples=settings.max_examples,
        pad_id=tokenizer.pad_id,
        cls_last=settings.masking_scheme.permutes,
    )
    return features | {"position": positions}


def _examples(
    settings: Settings,
    tokenizer: Tokenizer,
    phrases: Phrases | None,
    tokens: tf.Tensor,
    rows: tf.Tensor,
    share: Share,
) -> dict[str, tf.Tensor]:
    """Returns the features of rows of one example each, assembled and masked.

    `tokens` are the ids of a window, `rows` (N, 9) the plans of the rows, see `assembly`. `share`,
    the masked share, is a number, or (N,). `phrases` is the lexicon of masking="phrase", else None.
    """
    length = settings.sequence_length
    features = assembly.assemble(
        tokens,
        rows,
        sequence_length=length,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        separators=tokenizer.pair_separators,
        cls_last=settings.masking_scheme.permutes,
        resets_positions=settings.segment_scheme.aligned,
    )
    lengths, in_text = features.pop("length"), features.pop("in_text")
    if settings.segment_scheme.joins_documents:
        in_text &= features["token_ids"] != tokenizer.sep_id
    number, epoch, window = (rows[:, n] for n in (5, 6, 7))
    shown = None
    if settings.causal_share is not None:
        shown = assembly.evenly_spread(number, settings.causal_share)
    keys = fold(fold(fold(fold(settings.seed, _MASK), settings.version(epoch)), window), number)
    features |= mask_rows(
        settings.masking_scheme,
        keys,
        features["token_ids"],
        in_text,
        lengths,
        tokenizer=tokenizer,
        masked_share=share,
        columns=settings.max_predictions,
        replacement=cast(tuple[float, float], settings.replacement),  # set by its `check`
        phrases=phrases,
        shown=shown,
    )
    if shown is not None:
        features["causal_mask"] = features["padding_mask"] * tf.cast(shown[:, None], tf.int32)
    if settings.attention_shares is not None:
        features |= attention_features(
            rows[:, 4], features["segment_ids"], features["padding_mask"]
        )
    if settings.segment_scheme.label:
        features[settings.segment_scheme.label] = rows[:, 4]
    return features
