"""Batches for translation: pairs of similar length, up to a number of tokens per batch.

The pairs are in memory as ids. The shapes of batches depend only on the lengths (see
`kbert.data.translation.shapes`). Each epoch assigns pairs to the batches at random and permutes the
batches, both by integer hashes of (seed, epoch):

    texts → ids → plan of shapes → order of an epoch → this host's rows → dense batches

So a run resumes at any batch without making the batches before.

Source: Vaswani et al. 2017, section 5.1: "Sentence pairs were batched together by approximate
sequence length", about 25,000 source and 25,000 target tokens a batch.

Shapes: N pairs, M batches of an epoch, H hosts, B rows of a batch on all hosts, S and T tokens of
its sources and targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from absl import logging
from numpy.typing import ArrayLike

from kbert.core.late import tf
from kbert.data.pipeline import exact_options
from kbert.data.position import checked_start
from kbert.data.tables.bucketing import Keys
from kbert.data.translation.framing import Framing, framed
from kbert.data.translation.masks import TargetMasks
from kbert.data.translation.pairs import EncodedPairs, encode_pairs
from kbert.data.translation.shapes import BatchPlan, plan_batches
from kbert.text.pairs import split_pairs
from kbert.tokenizers.base import Tokenizer

NUM_SHAPES = 24


def translation_dataset(
    pairs: Iterable[tuple[str, str]] | EncodedPairs,
    tokenizer: Tokenizer,
    *,
    max_tokens: int = 4096,
    max_length: int | None = None,
    framing: Framing | None = None,
    seed: int = 0,
    split: str = "train",
    held_out_share: float = 0.0,
    start: ArrayLike | None = None,
    epochs: int | None = None,
    shuffle: bool = True,
    num_shapes: int = NUM_SHAPES,
    row_multiple: int = 1,
    masked_share: float | None = None,
    num_hosts: int = 1,
    host_index: int = 0,
    threads: int | None = None,
) -> tf.data.Dataset:
    """Returns batches of source and target for a sequence-to-sequence model.

    Every pair is in one batch of every epoch. Batches differ in their numbers of rows and tokens,
    but there are at most `num_shapes` different shapes, the same in every epoch. Padding rows of a
    batch are empty: the source is only the end token, and the targets have weight 0.

    Args:
        pairs: pairs of (source, target), such as those of `kbert.text.read_pairs`; or the result of
            `encode_pairs` with this tokenizer. For the latter `split` and `held_out_share` have no
            effect, and `max_length` must be at least that of `encode_pairs`.
        tokenizer: tokenizer of both sides. Its "sep" token ends a text, its "cls" token begins the
            decoder's input; without one its "pad" token, as in T5.
        max_tokens: maximum number of tokens on either side of a batch on all hosts, with padding:
            rows times S, and rows times T.
        max_length: maximum number of tokens of a source and of a target, with special tokens.
            Longer pairs are left out and counted in the log. None is the maximum for which a batch
            fits `max_tokens`.
        framing: other special tokens around the texts; None = those of the tokenizer.
        seed: seed of the orders of all epochs.
        split: "train" or "held_out", see `kbert.text.split_pairs`.
        held_out_share: share of sources that are held out.
        start: `position` of the batch to resume after, whole or one row of it; None begins with the
            first batch. It must come from the same pairs and settings.
        epochs: passes over the pairs, including those before `start`; None never ends.
        shuffle: False keeps pairs of one shape in their order, and gives short batches first.
        num_shapes: maximum number of different shapes. A step is compiled once for each shape; with
            fewer shapes there is more padding. Pairs of one shape are shuffled in every epoch. If
            there are hardly more batches than shapes, batches contain the same pairs again.
        row_multiple: number of which the rows of a batch are a multiple (also of H): devices times
            micro-batches.
        masked_share: share of the target tokens, with the end token, that are masked and predicted,
            at least one of each target, for `kbert.tasks.UniLMTranslator`. None = every target
            token is predicted from those before it.
        num_hosts: H, number of hosts; each makes its slice of every batch.
        host_index: number of this host.
        threads: number of threads that make batches; None lets TensorFlow decide.

    Returns:
        A dataset of dicts, with R = B / H: `encoder_token_ids` (R, S) int32, source and "sep";
        `encoder_padding_mask` (R, S) int32; `decoder_token_ids` (R, T) int32, "cls" and target;
        `decoder_padding_mask` (R, T) int32; `targets` (R, T) int32, target and "sep"; `weights`
        (R, T) float32, 1 where there is a target; and `position` (R, 3) int32, the `start` that
        resumes after this batch, in every row.

        With `masked_share` there are no features of a decoder, but `target_token_ids` (R, T) int32:
        the targets, in which 80 % of the predicted tokens are "mask", 10 % a random token, and 10 %
        unchanged. `weights` are 1 for predicted tokens. The masks depend on the seed, the epoch and
        the pair.

    Raises:
        ValueError: a setting is out of range, the tokenizer lacks a token (with a `masked_share`
            also "mask"), there are no pairs, or reading the pairs raises.

    Example:
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "go", "run", "geh", "lauf", "!"])
        >>> pairs = [("Go!", "Geh!"), ("Run!", "Lauf!"), ("Go, go!", "Geh, geh!")]
        >>> batch = next(iter(translation_dataset(pairs[:1], tokenizer, max_tokens=8)))
        >>> for name in ("encoder_token_ids", "decoder_token_ids", "targets", "weights"):
        ...     print(name, batch[name][0].numpy().tolist())
        encoder_token_ids [5, 9, 3, 0]
        decoder_token_ids [2, 7, 9, 0]
        targets [7, 9, 3, 0]
        weights [1.0, 1.0, 1.0, 0.0]
    """
    multiple = num_hosts * row_multiple
    longest = max_tokens // max(multiple, 1) if max_length is None else max_length
    for is_valid, rule, received in (
        (0 <= seed < 2**63, "`seed` must lie in 0..2**63-1", seed),
        (epochs is None or epochs > 0, "`epochs` must be above 0, or None to never end", epochs),
        (num_shapes > 0, "`num_shapes` must be above 0", num_shapes),
        (masked_share is None or 0 < masked_share <= 1,
         "`masked_share` must be above 0 and at most 1, or None", masked_share),
        (row_multiple > 0, "`row_multiple` must be above 0", row_multiple),
        (0 <= host_index < num_hosts, "`host_index` must lie in 0..num_hosts-1",
         (host_index, num_hosts)),
        (threads is None or threads > 0, "`threads` must be above 0, or None to leave it to "
         "TensorFlow", threads),
        (longest > 1, "`max_length` must be at least 2 (a token and the end of the text)", longest),
        (longest * multiple <= max_tokens,
         "`max_tokens` must be at least `max_length` * `num_hosts` * `row_multiple`",
          (max_tokens, longest, multiple)),
    ):  # fmt: skip
        if not is_valid:
            raise ValueError(f"{rule}. Received: {received}")
    if framing is None:
        framing = (Framing.of if masked_share is None else Framing.one_row)(tokenizer)
    longest_text = framing.longest_text(longest)
    if not isinstance(pairs, EncodedPairs):
        pairs = split_pairs(pairs, split, held_out_share)
        pairs = encode_pairs(pairs, tokenizer, max_length=longest_text)
    _check_pairs(pairs, tokenizer, longest_text)
    plan = plan_batches(
        pairs.source.lengths + len(framing.source),
        pairs.target.lengths + len(framing.target),
        max_tokens=max_tokens,
        max_length=longest,
        row_multiple=multiple,
        num_shapes=num_shapes,
    )
    logging.info(
        "%d pairs in %d batches per epoch, of %d shapes; %.1f %% of the tokens are padding",
        len(pairs), len(plan.batch_shapes), len(plan.shapes), 100 * plan.padding,
    )  # fmt: skip
    masks = None if masked_share is None else TargetMasks(tokenizer.target, masked_share, seed)
    batches = _Batches(pairs, plan, framing, num_hosts, host_index, masks)
    keys = Keys(tf.constant(plan.parts, tf.int64), seed if shuffle else None)
    steps = len(plan.batch_shapes)
    epoch, batch, _ = checked_start(start, steps)
    end_epoch = tf.int64.max if epochs is None else epochs
    orders = tf.data.Dataset.range(epoch, end_epoch).flat_map(
        batches.of_epoch(keys, (epoch, batch))
    )
    make = tf.autograph.experimental.do_not_convert(batches.make)
    dataset = orders.map(make, num_parallel_calls=threads or tf.data.AUTOTUNE)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    if epochs is not None:
        remaining_batches = max(0, (epochs - epoch) * steps - batch)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(remaining_batches))
    return dataset.with_options(exact_options(threads))


class _Batches:
    """The pipeline stages from an epoch to its batches."""

    def __init__(
        self,
        pairs: EncodedPairs,
        plan: BatchPlan,
        framing: Framing,
        num_hosts: int,
        host_index: int,
        masks: TargetMasks | None,
    ) -> None:
        self.pairs, self.masks = pairs, masks
        self.framing = framing
        self.num_hosts, self.host_index = num_hosts, host_index
        sizes = plan.batch_pairs.astype(np.int64)
        shapes = np.array(plan.shapes, np.int32)[plan.batch_shapes]  # (M, 3)
        with tf.device("CPU"):
            self.layout = tf.constant(plan.layout)
            self.begins = tf.constant(np.cumsum(sizes) - sizes)
            self.sizes = tf.constant(sizes)
            self.shapes = tf.constant(shapes)
        # Static sizes (source width, target width, rows) where all batches agree, else None.
        self.static = [n[0] if len(set(n)) == 1 else None for n in zip(*plan.shapes, strict=True)]

    def of_epoch(self, keys: Keys, start: tuple[int, int]) -> tf.data.Dataset:
        """Returns a function: epoch -> dataset of the arguments of `make`, one element per batch.

        `keys` are the sorting keys that order the pairs and the batches. `start` is the first
        (epoch, batch): earlier batches of that epoch are skipped.
        """

        @tf.autograph.experimental.do_not_convert
        def places(epoch: tf.Tensor) -> tf.data.Dataset:
            order = tf.gather(tf.argsort(keys.rows(epoch), stable=True), self.layout)
            numbers = tf.data.Dataset.from_tensor_slices(keys.batches(len(self.sizes), epoch))
            numbers = numbers.skip(tf.where(epoch == start[0], tf.constant(start[1], tf.int64), 0))
            # The order is shared, not copied.
            return numbers.map(lambda batch, position: (order, epoch, batch, position))

        return places

    def make(
        self, order: tf.Tensor, epoch: tf.Tensor, batch: tf.Tensor, position: tf.Tensor
    ) -> dict[str, Any]:
        """Makes this host's R rows of one batch: the features of `translation_dataset`.

        `order` (N,) has the numbers of the pairs of `epoch`, those of a batch one after the other.
        `batch` is the number of the batch in the plan. `position` (3,), the `start` that resumes
        after the batch, is repeated in every row.
        """
        begin, size = self.begins[batch], self.sizes[batch]
        width, target_width, rows = tf.unstack(self.shapes[batch])
        host_rows = rows // self.num_hosts
        row = tf.cast(tf.range(host_rows) + self.host_index * host_rows, tf.int64)  # (R,)
        # Index N, after the last pair, is an empty pair.
        pair = tf.where(
            row < size, tf.gather(order, begin + tf.minimum(row, size - 1)), len(self.pairs)
        )
        framing = self.framing
        source, target = (
            framed(*side.gather(pair, columns), ends, pad_id)
            for side, columns, ends, pad_id in (
                (self.pairs.source, width, framing.source, framing.source_pad),
                (self.pairs.target, target_width, framing.target, framing.target_pad),
            )
        )
        features = framing.features(source, target)
        features["weights"] *= tf.cast(row < size, tf.float32)[:, None]
        if self.masks is not None:
            mask = features.pop("decoder_padding_mask")
            masked, is_predicted = self.masks.apply(epoch, pair, features["targets"], mask)
            features["weights"] *= tf.cast(is_predicted, tf.float32)
            features["target_token_ids"] = masked
            del features["decoder_token_ids"]
        source_width, target_width, rows = self.static
        rows = rows and rows // self.num_hosts
        for name, feature in features.items():
            feature.set_shape([rows, source_width if name in _OF_SOURCE else target_width])
        position = tf.tile(position[None], [host_rows, 1])
        position.set_shape([rows, 3])
        return {**features, "position": position}


_OF_SOURCE = ("encoder_token_ids", "encoder_padding_mask")


def _check_pairs(pairs: EncodedPairs, tokenizer: Tokenizer, longest: int) -> None:
    """Raises ValueError if pairs are of another tokenizer, too long, or none.

    `longest` is the maximum number of tokens of a text in a batch.
    """
    if pairs.checksum != tokenizer.checksum:
        raise ValueError("The pairs were encoded with another tokenizer: encode them with this one")
    if pairs.max_length > longest:
        raise ValueError(
            "The pairs must not be encoded for longer texts than a batch may have. Received: "
            f"max_length={pairs.max_length} when they were encoded, {longest} now"
        )
    if not len(pairs):
        raise ValueError(
            f"A dataset must have at least one usable pair. Received: none; {pairs.too_long} were "
            f"too long for max_length={pairs.max_length}, {pairs.empty} were empty"
        )
