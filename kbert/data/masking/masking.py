"""Masked-LM targets: which tokens of a row are predicted, and what the model sees instead.

BERT's rule: 15 % of a row's tokens are chosen, where [CLS] and [SEP] count but are never chosen.
Of the chosen tokens 80 % become [MASK], 10 % become a random token of the vocabulary, and 10 %
stay. Source: `create_masked_lm_predictions` of google-research/bert's create_pretraining_data.py.
Other schemes choose or count differently: see `kbert.data.masking.schemes`. Every draw is a hash
of the row's key and a number, so the masks of a row do not depend on its batch.

A share is a number, or (N,) float64 with one share per row. The latter is used if the share changes
during a run.

Shapes: N rows, T sequence length, P maximum number of predictions per row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

from kbert.core.late import tf
from kbert.core.types import MaybeNone
from kbert.data.masking.hashing import below, chance, fold
from kbert.data.masking.ngrams import (
    PERMUTATION_WEIGHTS,
    TOKEN_WEIGHTS,
    choose_ngrams,
    choose_spans,
    runs,
)
from kbert.data.masking.phrases import Phrases
from kbert.data.masking.schemes import MaskingScheme
from kbert.data.masking.tokens import choose_independent, choose_tokens
from kbert.data.masking.units import choose_words, find_units, first_pieces
from kbert.tokenizers.base import Tokenizer

# Share of the tokens of a row: one number for all rows, or one per row.
Share: TypeAlias = "float | tf.Tensor"

_ACTION, _TOKEN, _ORDER = 1, 2, 4  # streams of draws under a row's key


def prediction_counts(lengths: tf.Tensor, masked_share: Share = 0.15) -> tf.Tensor:
    """Returns the number of predictions, (N,) int32, for rows of these lengths.

    It is the masked share of the lengths, which include special tokens. Numbers are at least 1, and
    rounded half to even in 64 bits, like Python's `round` in Google's code. The caller must limit
    them to the number of text tokens.

    >>> prediction_counts([0, 5, 50, 128]).numpy().tolist()
    [1, 1, 8, 19]
    """
    return tf.maximum(1, tf.cast(tf.round(_share_of(lengths, masked_share)), tf.int32))


def span_counts(lengths: tf.Tensor, masked_share: Share = 0.15) -> tf.Tensor:
    """Returns SpanBERT's number of predictions, (N,) int32, for rows of these lengths.

    It is the masked share of the lengths, which do not include special tokens, rounded up.

    >>> span_counts([0, 5, 50, 126]).numpy().tolist()
    [0, 1, 8, 19]
    """
    return tf.cast(tf.math.ceil(_share_of(lengths, masked_share)), tf.int32)


def _share_of(lengths: tf.Tensor, share: Share, dtype: tf.DType | None = None) -> tf.Tensor:
    dtype = dtype or tf.float64
    # A Python number becomes float64 here; by `tf.cast` it would be rounded to float32 first.
    return tf.cast(lengths, dtype) * tf.cast(tf.convert_to_tensor(share, tf.float64), dtype)


def independent_counts(lengths: tf.Tensor, masked_share: Share = 0.15) -> tf.Tensor:
    """Returns ELECTRA's number of predictions, (N,) int32, for rows of these lengths.

    It is the masked share of the lengths, which include special tokens. Numbers are rounded in
    float32, to at least 1.

    >>> independent_counts([0, 5, 50, 128]).numpy().tolist()
    [1, 1, 8, 19]
    """
    return tf.maximum(1, tf.cast(tf.round(_share_of(lengths, masked_share, tf.float32)), tf.int32))


def apply_masks(
    keys: tf.Tensor,
    token_ids: tf.Tensor,
    positions: tf.Tensor,
    *,
    vocabulary_size: int,
    mask_id: int,
    replacement: tuple[float, float] = (0.8, 0.1),
    groups: tf.Tensor | None = None,
    shown: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Replaces the chosen tokens in the input and returns them as targets.

    Args:
        keys: (N,) uint64, random key of each row.
        token_ids: (N, T) int32, token ids of the rows.
        positions: (N, P) int32, the chosen positions; 0 (the position of [CLS]) for unused columns.
            A position may occur twice.
        vocabulary_size: number of ids from which random tokens are drawn.
        mask_id: id of [MASK].
        replacement: shares of the chosen tokens that become [MASK] and a random token.
        groups: (N, P) int32, positions of one group get the same kind of replacement; None draws
            the kind for each position.
        shown: (N,) bool, rows in which all chosen tokens stay unchanged; None for no such rows.

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
    action = fold(fold(keys, _ACTION)[:, None], numbers if groups is None else groups)  # (N, P)
    random_ids = below(fold(fold(keys, _TOKEN)[:, None], numbers), vocabulary_size)

    masked, random = replacement
    changed = (positions > 0) & chance(action, masked + random)
    if shown is not None:
        changed &= ~shown[:, None]
    flat = tf.reshape(token_ids, [-1])
    begin = width * tf.range(rows)[:, None]
    mask_ids = tf.gather(flat, begin + positions)
    new_ids = tf.where(chance(action, masked), mask_id, random_ids)
    # An unchanged token writes [CLS] over [CLS]. Its own id could overwrite the [MASK] of another
    # draw of the same position.
    new_ids = tf.where(changed, new_ids, token_ids[:, :1])
    index = tf.reshape(begin + tf.where(changed, positions, 0), [-1, 1])
    flat = tf.tensor_scatter_nd_update(flat, index, tf.reshape(new_ids, [-1]))
    used = positions > 0
    return {
        "token_ids": tf.reshape(flat, [rows, width]),
        "mask_positions": positions,
        "mask_ids": tf.where(used, mask_ids, 0),
        "mask_weights": tf.cast(used, tf.float32),
    }


# The names that schemes use.
CHOOSE: dict[str, Callable[..., tf.Tensor]] = {
    "tokens": choose_tokens,
    "words": choose_words,
    "ngrams": choose_ngrams,
    "token_ngrams": functools.partial(choose_ngrams, weights=TOKEN_WEIGHTS),
    "spans": choose_spans,
    "independent": choose_independent,
    "permuted": functools.partial(choose_ngrams, weights=PERMUTATION_WEIGHTS),
}
COUNTS: dict[str, Callable[[tf.Tensor, Share], tf.Tensor]] = {
    "rounded": prediction_counts,
    "whole": span_counts,
    "independent": independent_counts,
}


def num_predictions(
    scheme: MaskingScheme,
    lengths: tf.Tensor,
    text_lengths: tf.Tensor,
    masked_share: Share,
    columns: int,
) -> tf.Tensor:
    """Returns how many tokens a scheme predicts in rows of given lengths.

    Args:
        scheme: a value of `MASKING_SCHEMES`.
        lengths: (N,) int32, tokens of each row, specials included.
        text_lengths: (N,) int32, tokens of each row that may be chosen.
        masked_share: share of the tokens that is predicted: a number, or (N,) with one per row.
        columns: P, maximum number of predictions in a row: `scheme.columns(T, …)` for the largest
            share.

    Returns:
        (N,) int32, at most P.

    Example:
        >>> from kbert.data.masking.schemes import MASKING_SCHEMES
        >>> lengths = tf.constant([128, 20, 3, 0])
        >>> text = tf.constant([125, 18, 1, 0])
        >>> num_predictions(MASKING_SCHEMES["token"], lengths, text, 0.15, 20).numpy().tolist()
        [19, 3, 1, 0]
    """
    count = COUNTS[scheme.counts](text_lengths if scheme.counts_text else lengths, masked_share)
    limit = tf.where(text_lengths > 0, columns, 0) if scheme.repeats else text_lengths
    return tf.minimum(count, limit)


def reading_order(keys: tf.Tensor, positions: tf.Tensor, special: tf.Tensor) -> tf.Tensor:
    """Returns the factorisation order of each row: the text, then the predictions at random.

    Special tokens are ordered among the predictions, so no prediction attends to a special token
    that has attended to its target. Source: Yang et al. 2019, section 2.3; `_local_perm` in
    data_utils.py of zihangdai/xlnet, here with one permutation for the whole row.

    Args:
        keys: (N,) uint64, random key of each row.
        positions: (N, P) int32, positions of the chosen tokens; 0 for unused columns.
        special: (N, T) bool, True at special tokens.

    Returns:
        (N, T) int32: 0 for the text and for padding; 1 to T, without repetition, for predictions
        and special tokens.

    Example:
        >>> special = tf.constant([[False, False, False, False, True]])
        >>> reading_order(fold(0, tf.range(1)), tf.constant([[1, 2, 0]]), special).numpy().tolist()
        [[0, 2, 5, 0, 4]]
    """
    rows, width = tf.unstack(tf.shape(special))
    row = tf.broadcast_to(tf.range(rows)[:, None], tf.shape(positions))
    indices = tf.stack([row, positions], -1)
    chosen = tf.scatter_nd(indices, tf.ones_like(positions), [rows, width]) > 0
    column = tf.range(width)
    later = special | (chosen & (column > 0))
    draws = below(fold(fold(keys, _ORDER)[:, None], column), 2**31 - 1)  # (N, T)
    number = 1 + tf.argsort(tf.argsort(draws, stable=True), stable=True)
    return tf.where(later, number, 0)


def mask_rows(
    scheme: MaskingScheme,
    keys: tf.Tensor,
    token_ids: tf.Tensor,
    in_text: tf.Tensor,
    lengths: tf.Tensor,
    *,
    tokenizer: Tokenizer,
    masked_share: Share,
    columns: int,
    replacement: tuple[float, float],
    phrases: Phrases | MaybeNone = None,
    shown: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Chooses tokens by a scheme and masks them.

    Args:
        scheme: a value of `MASKING_SCHEMES`.
        keys: (N,) uint64, random key of each row.
        token_ids: (N, T) int32, token ids of the rows.
        in_text: (N, T) bool, tokens that may be chosen.
        lengths: (N,) int32, tokens of each row, specials included.
        tokenizer: tokenizer of the text; gives `vocabulary_size`, `mask_id` and `continuation`.
        masked_share: share of the tokens that is predicted: a number, or (N,) with one per row.
        columns: P, the maximum number of predictions per row.
        replacement: shares of the chosen tokens that become [MASK] and a random token.
        phrases: lexicon for a scheme with units of phrases.
        shown: (N,) bool, rows in which all chosen tokens stay unchanged; None for no such rows.

    Returns:
        The features of `apply_masks`. If the scheme masks by span, also `span_starts` and
        `span_ends` (N, P) int32: the first and last position of the run of chosen tokens around
        each chosen token, 0 where nothing is predicted. If it permutes, also `order_ids` (N, T)
        int32.
    """
    if scheme.permutes:
        in_row = tf.range(tf.shape(token_ids)[1]) < lengths[:, None]
        special = in_row & ~in_text
        # Position 0 means no prediction, so it must not be chosen. In other schemes it is [CLS].
        in_text = in_text & (tf.range(tf.shape(token_ids)[1]) > 0)
    begins = None
    if scheme.units != "tokens":
        begins = first_pieces(token_ids, in_text, tokenizer.continuation)
    if scheme.units == "phrases":
        begins = phrases.join(token_ids, in_text, begins)
    text_lengths = tf.math.count_nonzero(in_text, 1, dtype=tf.int32)
    count = num_predictions(scheme, lengths, text_lengths, masked_share, columns)
    positions = CHOOSE[scheme.choose](keys, find_units(in_text, begins), count, columns)
    spans = {}
    if scheme.by_span:
        spans["span_starts"], spans["span_ends"] = runs(positions)
    if scheme.permutes:
        spans["order_ids"] = reading_order(keys, positions, special)
    return spans | apply_masks(
        keys,
        token_ids,
        positions,
        vocabulary_size=tokenizer.vocabulary_size,
        mask_id=tokenizer.mask_id,
        replacement=replacement,
        groups=spans.get("span_starts"),
        shown=shown,
    )
