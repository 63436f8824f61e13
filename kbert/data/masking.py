"""Masked-LM targets: which tokens of a row are predicted, and what the model sees in their place.

BERT's rule: 15 % of a row's tokens, [CLS] and [SEP] counted but never chosen; of the chosen 80 %
become [MASK], 10 % any token of the vocabulary, 10 % stay. Source: `create_masked_lm_predictions`
of google-research/bert's create_pretraining_data.py. Every draw is a hash of the row's own key and
the column, so a row is masked alike in any batch.

Shapes: N rows, T sequence length, P predictions a row at most.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from kbert.data.hashing import below, chance, fold

_CHOICE, _ACTION, _TOKEN = 0, 1, 2  # streams of draws under a row's key


def max_predictions(sequence_length: int, masked_share: float = 0.15) -> int:
    """Columns of `mask_positions`: Google's 20 at length 128 and 80 at 512, else just enough.

    >>> max_predictions(128), max_predictions(512), max_predictions(256)
    (20, 80, 40)
    """
    if masked_share == 0.15 and sequence_length in (128, 512):
        return {128: 20, 512: 80}[sequence_length]
    return math.ceil(masked_share * sequence_length) + 1


def prediction_counts(sequence_length: int, masked_share: float = 0.15) -> np.ndarray:
    """(T + 1,) int32: how many tokens a row of each length predicts, specials counted in length.

    Worked out in Python, where `round` is the one that Google's script used. A row without text
    predicts nothing, and none more than its text has: that is for the caller to see to.

    >>> prediction_counts(128)[[0, 5, 50, 128]].tolist()
    [1, 1, 8, 19]
    """
    limit = max_predictions(sequence_length, masked_share)
    counts = [min(limit, max(1, round(n * masked_share))) for n in range(sequence_length + 1)]
    return np.array(counts, np.int32)


def choose_tokens(keys: tf.Tensor, in_text: tf.Tensor, count: tf.Tensor, columns: int) -> tf.Tensor:
    """A fair choice of `count` of the text's positions for each row, ascending.

    Floyd's sampling (Bentley & Floyd, "A sample of brilliance", CACM 30(9), 1987), all rows in
    step: no draws for tokens that are not chosen, no sorting of whole rows.

    Args:
        keys: (N,) uint64.
        in_text: (N, T) bool, tokens that may be chosen.
        count: (N,) int32, tokens to choose, at most as many as there are.
        columns: P.

    Returns:
        (N, P) int32 positions; behind the first `count`, 0.
    """
    rows, width = tf.shape(in_text)[0], in_text.shape[1]
    text = tf.cast(tf.where(tf.reshape(in_text, [-1]))[:, 0], tf.int32)
    eligible = tf.math.count_nonzero(in_text, 1, dtype=tf.int32)
    numbers = tf.range(columns)[:, None]  # (P, 1)
    limit = eligible - count + numbers  # (P, N): the newest candidate of each step
    lots = below(fold(fold(keys, _CHOICE)[None], numbers), tf.maximum(limit + 1, 0))  # (P, N)
    unused = tf.fill(tf.shape(lots), -1)

    def step(number, chosen):
        lot = lots[number][None]
        taken = tf.reduce_any(chosen == lot, 0)
        pick = tf.where(taken, limit[number], lot[0])
        return number + 1, tf.where(numbers == number, pick[None], chosen)

    _, chosen = tf.while_loop(
        lambda number, chosen: number < columns, step, [0, unused], parallel_iterations=1
    )
    used = numbers < count[None]
    slots = tf.sort(tf.transpose(tf.where(used, chosen, tf.int32.max)))  # (N, P)
    used = tf.transpose(used)
    # The slots count text alone; an unused one reads the spare value behind the text.
    index = tf.where(used, slots + tf.cumsum(eligible, exclusive=True)[:, None], tf.size(text))
    positions = tf.gather(tf.pad(text, [[0, 1]]), index) - width * tf.range(rows)[:, None]
    return tf.where(used, positions, 0)


def first_pieces(token_ids: tf.Tensor, in_text: tf.Tensor, continuation: np.ndarray) -> tf.Tensor:
    """(N, T) bool: where a word begins.

    That is at every piece but those with `##`, and at the first piece of a segment, even where
    truncation left the tail of a word there.

    Args:
        token_ids: (N, T) int32.
        in_text: (N, T) bool, tokens of the segments, not specials and padding.
        continuation: (vocabulary,) bool, which pieces begin with `##`.
    """
    after_text = tf.pad(in_text[:, :-1], [[0, 0], [1, 0]])
    return in_text & ~(tf.gather(continuation, token_ids) & after_text)


def choose_words(
    keys: tf.Tensor, starts_word: tf.Tensor, eligible: tf.Tensor, count: tf.Tensor, columns: int
) -> tf.Tensor:
    """A choice of whole words, `count` tokens for each row or as near below as words allow.

    Google's rule: words in random order, one that would exceed the count is passed over.

    Args:
        keys: (N,) uint64.
        starts_word: (N, T) bool, see `first_pieces`.
        eligible: (N, T) bool, tokens that may be chosen.
        count: (N,) int32.
        columns: P.

    Returns:
        (N, P) int32 positions, ascending; behind the chosen ones, 0.
    """
    width = starts_word.shape[1]
    rows = tf.shape(starts_word)[0]
    word = tf.maximum(tf.cumsum(tf.cast(starts_word, tf.int32), axis=1) - 1, 0)  # (N, T)
    flat = tf.reshape(word + width * tf.range(rows)[:, None], [-1])
    size = tf.math.unsorted_segment_sum(
        tf.reshape(tf.cast(eligible, tf.int32), [-1]), flat, rows * width
    )  # (N * T,): pieces of each word; 0 behind the last

    # The draw and the word's number share an integer: sorting it sorts the words by lot.
    lots = fold(fold(keys, _CHOICE)[:, None], tf.range(width))
    lots = tf.bitwise.left_shift(tf.bitwise.right_shift(lots, tf.constant(32, tf.uint64)), 16)
    lots = tf.cast(lots, tf.int64) + tf.range(width, dtype=tf.int64)
    lots = tf.where(tf.reshape(size, [-1, width]) > 0, lots, tf.int64.max)
    order = tf.cast(tf.bitwise.bitwise_and(tf.sort(lots), 0xFFFF), tf.int32)  # (N, T)
    order = tf.transpose(tf.minimum(order, width - 1) + width * tf.range(rows)[:, None])  # (T, N)
    words = tf.reduce_max(word) + 1
    sizes = tf.gather(size, order[:words])

    def step(number, room, taken):
        need = sizes[number]
        fits = (need > 0) & (need <= room)
        return number + 1, room - tf.where(fits, need, 0), taken.write(number, fits)

    taken = tf.TensorArray(tf.bool, words, element_shape=[None], clear_after_read=True)
    number, _, taken = tf.while_loop(
        lambda number, room, taken: (number < words) & tf.reduce_any(room > 0),
        step,
        [0, count, taken],
        parallel_iterations=1,
    )
    taken = tf.reshape(taken.gather(tf.range(number)), [-1])
    chosen_words = tf.boolean_mask(tf.reshape(order[:number], [-1]), taken)
    is_chosen = tf.scatter_nd(chosen_words[:, None], tf.ones_like(chosen_words), [rows * width])
    is_chosen = tf.reshape(tf.gather(is_chosen, flat), [rows, width]) * tf.cast(eligible, tf.int32)
    where = tf.cast(tf.where(is_chosen > 0), tf.int32)  # (chosen, 2): row, position, row by row
    first = tf.cumsum(tf.reduce_sum(is_chosen, 1), exclusive=True)
    slot = tf.range(tf.shape(where)[0]) - tf.gather(first, where[:, 0])
    target = tf.stack([where[:, 0], slot], 1)
    return tf.scatter_nd(target, where[:, 1], [rows, columns])


def apply_masks(
    keys: tf.Tensor,
    token_ids: tf.Tensor,
    positions: tf.Tensor,
    *,
    vocabulary_size: int,
    mask_id: int,
    replacement: tuple[float, float] = (0.8, 0.1),
) -> dict[str, tf.Tensor]:
    """Hides the chosen tokens from the model and keeps them as targets.

    Args:
        keys: (N,) uint64.
        token_ids: (N, T) int32.
        positions: (N, P) int32; 0, the place of [CLS], where nothing is predicted.
        vocabulary_size: a random token is drawn from the whole vocabulary.
        mask_id: id of [MASK].
        replacement: shares of the chosen tokens that become [MASK] and a random token.

    Returns:
        `token_ids` (N, T) int32 with the replacements; `mask_positions`, `mask_ids` (N, P) int32
        and `mask_weights` (N, P) float32, all three 0 where nothing is predicted.

    Example:
        >>> out = apply_masks(fold(1, tf.range(1)), tf.constant([[1, 7, 8, 9, 2]]),
        ...                   tf.constant([[2, 3, 0]]), vocabulary_size=10, mask_id=3)
        >>> out["token_ids"].numpy().tolist(), out["mask_ids"].numpy().tolist()
        ([[1, 7, 3, 3, 2]], [[8, 9, 0]])
    """
    rows, columns = tf.unstack(tf.shape(positions))
    width = token_ids.shape[1]
    numbers = tf.range(columns)[None]
    action = fold(fold(keys, _ACTION)[:, None], numbers)  # (N, P)
    random_ids = below(fold(fold(keys, _TOKEN)[:, None], numbers), vocabulary_size)

    flat = tf.reshape(token_ids, [-1])
    index = tf.reshape(positions + width * tf.range(rows)[:, None], [-1])
    mask_ids = tf.reshape(tf.gather(flat, index), [rows, columns])
    used = positions > 0
    masked, random = replacement
    seen = tf.where(chance(action, masked + random), random_ids, mask_ids)
    seen = tf.where(chance(action, masked), mask_id, seen)
    # Unused slots write [CLS] over itself.
    seen = tf.where(used, seen, mask_ids)
    flat = tf.tensor_scatter_nd_update(flat, index[:, None], tf.reshape(seen, [-1]))
    return {
        "token_ids": tf.reshape(flat, [rows, width]),
        "mask_positions": positions,
        "mask_ids": tf.where(used, mask_ids, 0),
        "mask_weights": tf.cast(used, tf.float32),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingScheme:
    """A way to choose the tokens that are predicted.

    Attributes:
        replacement: shares of [MASK] and of random tokens, as published.
    """

    replacement: tuple[float, float] = (0.8, 0.1)


MASKING_SCHEMES = {
    "token": MaskingScheme(),
    "whole_word": MaskingScheme(),
}
