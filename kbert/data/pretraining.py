"""From a prepared corpus to training batches: BERT's pretraining task as a `tf.data` pipeline.

    windows of blocks → plan of pairs → whole global batches → this host's rows → tokens → masks

Every stage is a function of integers, so the rows are the same for any number of threads and
hosts and any batch size, an epoch never repeats another one's pairs and masks, and the stream can
be taken up at any batch. Only windows are held in memory, never the corpus.

Shapes: B rows of a global batch, H hosts, T sequence length, P predictions a row at most.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from kbert.data import assembly, pairs, records
from kbert.data.blocks import WINDOW_BLOCKS, BlockReader
from kbert.data.hashing import fold
from kbert.data.manifest import Manifest, read_manifest
from kbert.data.masking import (
    apply_masks,
    choose_tokens,
    choose_words,
    first_pieces,
    max_predictions,
    prediction_counts,
)
from kbert.data.prepared import prepared_folder

_CHUNK_TOKENS = 1 << 17  # tokens assembled at once: 1,024 rows of 128, small enough for the cache
_FOREVER = np.iinfo(np.int32).max
_PLAN, _MASK = 0, 1  # streams of draws under the seed


def pretraining_dataset(
    data: str | os.PathLike | Sequence[str],
    tokenizer,
    *,
    sequence_length: int = 128,
    batch_size: int = 256,
    seed: int = 0,
    masking: str = "token",
    masked_share: float = 0.15,
    next_sentence: bool = True,
    short_sequence_share: float = 0.1,
    split: str = "train",
    start: Sequence[int] | None = None,
    epochs: int | None = None,
    drop_remainder: bool = False,
    num_hosts: int = 1,
    host_index: int = 0,
    threads: int | None = None,
    window_blocks: int = WINDOW_BLOCKS,
    cache_dir: str | os.PathLike | None = None,
) -> tf.data.Dataset:
    """Batches for masked-LM and next-sentence pretraining, from shards or straight from text.

    Args:
        data: folder written by `prepare_corpus`; or text as `prepare_corpus` takes it (a path, a
            glob, `docs:`, a list of them), which is prepared once into a folder under `cache_dir`.
        tokenizer: the tokenizer whose ids lie in the shards.
        sequence_length: T, specials included; at least 8.
        batch_size: B, rows of a batch of all hosts together.
        seed: seed of the order of blocks, pairs and masks.
        masking: "token", or "whole_word" to mask words with all their `##` pieces.
        masked_share: share of the tokens that is predicted.
        next_sentence: pairs of segments, half of them random; if False, one segment a row.
        short_sequence_share: share of rows that is cut shorter, to a random length.
        split: "train" or "held_out".
        start: `position` of the batch to go on after; None begins with the first.
        epochs: passes over the data; None never ends.
        drop_remainder: leave out the last rows of the last epoch where they do not fill a batch;
            otherwise empty rows, of no weight, fill it.
        num_hosts: H hosts share the work: each makes its slice of every batch. Divides B.
        host_index: which of them this is.
        threads: threads that make batches; None lets TensorFlow decide.
        window_blocks: blocks (of 64k tokens) among which rows are mixed and random next sentences
            are found; at least 2. More takes more memory and time to start.
        cache_dir: where text is prepared to; None is the user's cache folder.

    Returns:
        A dataset of one dict of tensors, of static shapes: `token_ids`, `segment_ids`,
        `padding_mask` (B / H, T) int32; `mask_positions`, `mask_ids` (B / H, P) int32 and
        `mask_weights` (B / H, P) float32, where P is 20 at T = 128 and 80 at 512;
        `next_sentence_labels` (B / H,) int32, 1 = random, unless `next_sentence` is False; and
        `position` (B / H, 3) int32: the `start` that goes on after this batch, on every row.
        An empty row is 0 in `padding_mask` and `mask_weights`.

    Raises:
        FileNotFoundError: no corpus there, or a shard is missing.
        ValueError: a setting out of range, another vocabulary, a damaged shard, too little text.
        tf.errors.InvalidArgumentError: while reading: a corrupt record, by file and byte.

    Example:
        >>> import tempfile, kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("a b c\\nc b\\n\\na a\\nb c c\\n\\nb b\\na c\\n")
        >>> batches = pretraining_dataset(path, tokenizer, sequence_length=16, batch_size=2,
        ...                               cache_dir=tempfile.mkdtemp())
        >>> batch = next(iter(batches))
        >>> batch["token_ids"].shape, batch["position"].numpy().tolist()
        (TensorShape([2, 16]), [[0, 0, 2], [0, 0, 2]])
    """
    recipe = _Recipe(
        sequence_length=sequence_length,
        batch_size=batch_size,
        seed=seed,
        masking=masking,
        masked_share=masked_share,
        next_sentence=next_sentence,
        short_sequence_share=short_sequence_share,
        num_hosts=num_hosts,
        host_index=host_index,
        window_blocks=window_blocks,
        epochs=epochs,
    )
    manifest = read_manifest(prepared_folder(data, tokenizer, cache_dir))
    manifest.check_tokenizer(tokenizer)
    _check_enough_text(manifest, split, next_sentence)
    reader = BlockReader.from_manifest(manifest, split, seed, window_blocks)
    epoch, window, row = _checked_start(start, reader.windows)

    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Rows are small: a thread of its own for each map call beats threads inside operations.
    options.threading.max_intra_op_parallelism = 1
    if threads is not None:
        options.threading.private_threadpool_size = threads

    total = _FOREVER if epochs is None else epochs * reader.windows
    windows = tf.data.Dataset.range(epoch * reader.windows + window, total)
    windows = windows.flat_map(lambda n: _read(reader, n))
    windows = windows.map(functools.partial(_plan, recipe, manifest.token_dtype))
    if epochs is not None:
        windows = windows.concatenate(_end_of_data(manifest.token_dtype))
    windows = windows.scan(
        assembly.carry_state(tf.as_dtype(manifest.token_dtype), row),
        functools.partial(
            assembly.whole_batches, batch_size=batch_size, keep_rest=not drop_remainder
        ),
    )
    # The next window is read and planned while this one is made into batches.
    chunks = windows.prefetch(1).flat_map(functools.partial(_chunks, recipe))
    rows = chunks.map(
        functools.partial(_finish, recipe, _Pieces.of(tokenizer)),
        num_parallel_calls=threads or tf.data.AUTOTUNE,
    )
    batches = rows.rebatch(batch_size // num_hosts, drop_remainder=True)
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Recipe:
    """The settings that decide what the rows are; checked as a whole."""

    sequence_length: int
    batch_size: int
    seed: int
    masking: str
    masked_share: float
    next_sentence: bool
    short_sequence_share: float
    num_hosts: int
    host_index: int
    window_blocks: int
    epochs: int | None

    def __post_init__(self):
        def rule(holds: bool, text: str, *names: str) -> None:
            if not holds:
                received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
                raise ValueError(f"{text}. Received: {received}")

        rule(8 <= self.sequence_length <= 65_536,
             "`sequence_length` must lie in 8..65536", "sequence_length")  # fmt: skip
        rule(self.masking in ("token", "whole_word"),
             '`masking` must be "token" or "whole_word"', "masking")  # fmt: skip
        rule(0 < self.masked_share <= 1, "`masked_share` must lie in (0, 1]", "masked_share")
        rule(0 <= self.short_sequence_share <= 1,
             "`short_sequence_share` must lie in [0, 1]", "short_sequence_share")  # fmt: skip
        rule(self.window_blocks >= 2, "`window_blocks` must be at least 2", "window_blocks")
        rule(self.epochs is None or self.epochs > 0,
             "`epochs` must be above 0, or None to go on for ever", "epochs")  # fmt: skip
        rule(0 <= self.seed < 2**63, "`seed` must lie in 0..2**63-1", "seed")
        rule(0 <= self.host_index < self.num_hosts,
             "`host_index` must lie in 0..num_hosts-1", "host_index", "num_hosts")  # fmt: skip
        rule(self.batch_size > 0 and self.batch_size % self.num_hosts == 0,
             "`batch_size` counts the rows of all hosts: it must be above 0 and a multiple of "
             "`num_hosts`", "batch_size", "num_hosts")  # fmt: skip

    @property
    def num_specials(self) -> int:
        return 3 if self.next_sentence else 2

    @property
    def plan(self) -> Callable:
        return functools.partial(
            pairs.plan_pairs if self.next_sentence else pairs.plan_segments,
            max_tokens=self.sequence_length - self.num_specials,
            short_share=self.short_sequence_share,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pieces:
    """What the pipeline needs to know of a tokenizer."""

    vocabulary_size: int
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    continuation: np.ndarray

    @classmethod
    def of(cls, tokenizer) -> "_Pieces":
        return cls(**{f.name: getattr(tokenizer, f.name) for f in dataclasses.fields(cls)})


def _check_enough_text(manifest: Manifest, split: str, next_sentence: bool) -> None:
    documents = manifest.split(split).documents
    needed = 2 if next_sentence else 1
    if documents < needed:
        raise ValueError(
            f"The {split!r} split of {manifest.folder} has too few documents: a random next "
            "sentence comes from another document, so next-sentence prediction needs two, and "
            "next_sentence=False needs one. Documents are told apart by blank lines. "
            f"Received: {documents} document(s)"
        )


def _checked_start(start: Sequence[int] | None, windows: int) -> tuple[int, int, int]:
    epoch, window, row = (int(number) for number in (start if start is not None else (0, 0, 0)))
    if min(epoch, window, row) < 0 or window >= windows:
        raise ValueError(
            "`start` must be the (epoch, window, row) of a batch's `position`, and the corpus the "
            f"one it was made from: an epoch of this one has {windows} window(s). "
            f"Received: start={(epoch, window, row)}"
        )
    return epoch, window, row


def _read(reader: BlockReader, number: tf.Tensor) -> tf.data.Dataset:
    epoch, window = number // reader.windows, number % reader.windows
    return reader.window(epoch, window).map(lambda serialized: (epoch, window, serialized))


def _plan(recipe: _Recipe, token_dtype: str, epoch: tf.Tensor, window: tf.Tensor, serialized):
    blocks = records.parse_blocks(serialized, token_dtype)
    key = fold(fold(fold(recipe.seed, _PLAN), epoch), window)
    plan = recipe.plan(blocks["sentences"], blocks["documents"], key)
    return blocks["tokens"], assembly.place_rows(plan, epoch, window), False


def _end_of_data(token_dtype: str) -> tf.data.Dataset:
    nothing = tf.zeros([0], token_dtype), tf.zeros([0, len(assembly.ROW_COLUMNS)], tf.int32)
    return tf.data.Dataset.from_tensors((*nothing, True))


def _chunks(recipe: _Recipe, tokens: tf.Tensor, rows: tf.Tensor, positions: tf.Tensor):
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


def _finish(recipe: _Recipe, pieces: _Pieces, tokens, rows, positions) -> dict[str, tf.Tensor]:
    """Assembles and masks some rows."""
    length = recipe.sequence_length
    features = assembly.assemble(
        tokens,
        rows,
        sequence_length=length,
        cls_id=pieces.cls_id,
        sep_id=pieces.sep_id,
        pad_id=pieces.pad_id,
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
        starts = first_pieces(features["token_ids"], in_text, pieces.continuation)
        chosen = choose_words(keys, starts, in_text, count, columns)
    features |= apply_masks(
        keys,
        features["token_ids"],
        chosen,
        vocabulary_size=pieces.vocabulary_size,
        mask_id=pieces.mask_id,
    )
    if recipe.next_sentence:
        features["next_sentence_labels"] = rows[:, 4]
    return features | {"position": positions}
