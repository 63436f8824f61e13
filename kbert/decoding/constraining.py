"""Applies constraints to the scores of the next token, the same for every decoding method.

A constraint is a field of `Constraints` and its lines in `constrain`. A constraint that is not used
adds no operation to the decoding loop. The rules and their order are those of transformers 5.24
(`generation/logits_process.py`), so that a decoder of a Hugging Face folder writes the same texts.

Shapes: `R` rows of a decoding batch, `V` vocabulary, `L` tokens of a row.
"""

import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.decoding.constraints import Constraints


def constrain(
    constraints: Constraints,
    scores: Tensor,
    t: Tensor,
    tokens: Tensor,
    *,
    longest: int,
    stop_ids: tuple[int, ...],
) -> Tensor:
    """Applies every constraint but `banned_ids`, which `Request` applies, to scores.

    Args:
        constraints: the constraints.
        scores: (R, V) float32 logits or log-probabilities.
        t: index of the next new token, a scalar.
        tokens: (R, L) int32: the tokens before the first new one, or -1 where a row has none,
            then `longest` new ones, of which the first `t` are known. Not read if
            `reads_tokens` is False.
        longest: most new tokens of a row.
        stop_ids: token ids that end a row.

    Returns:
        Scores (R, V), minus infinity for tokens that may not be next.
    """
    size = scores.shape[-1]
    if constraints.reads_tokens:
        columns = ops.arange(ops.shape(tokens)[1], dtype="int32")
        # Tokens after the first `t` new ones are unknown yet: like those a row does not have.
        tokens = ops.where(columns < ops.shape(tokens)[1] - longest + t, tokens, -1)
        if constraints.repetition_penalty != 1.0:
            penalty = constraints.repetition_penalty
            penalised = ops.where(scores < 0, scores * penalty, scores / penalty)
            scores = ops.where(_members(tokens, scores), penalised, scores)
        if constraints.no_repeat_ngram_size is not None:
            last = ops.shape(tokens)[1] - longest + t - 1
            ends = _ngram_ends(tokens, last, constraints.no_repeat_ngram_size)
            scores = ops.where(_members(ends, scores), -np.inf, scores)
    if constraints.min_new_tokens and stop_ids:
        is_early = ops.less(t, constraints.min_new_tokens)
        scores = ops.where(is_early & _has_ids(size, stop_ids), -np.inf, scores)
    for index, token_id in constraints.forced(longest):
        forced = np.where(_has_ids(size, (token_id,)), 0.0, -np.inf).astype("float32")
        scores = ops.where(ops.equal(t, index), forced, scores)
    if constraints.renormalise:
        total = ops.logsumexp(scores, axis=-1, keepdims=True)
        scores = scores - ops.maximum(total, -1e30)  # no NaN where no token is left
    return scores


def log_probabilities(
    constraints: Constraints,
    logits: Tensor,
    scores: Tensor,
    ids: Tensor,
    t: Tensor,
    longest: int,
) -> Tensor:
    """Returns the log-probabilities (R,) of the chosen tokens `ids` (R,), for their scores.

    Args:
        constraints: the constraints.
        logits: (R, V) logits of the model.
        scores: (R, V) logits after `constrain`.
        ids: (R,) chosen token ids.
        t: index of the chosen tokens, a scalar.
        longest: most new tokens of a row.
    """
    source = scores if constraints.renormalise else logits
    chosen = ops.take_along_axis(source, ids[:, None], axis=-1)[:, 0]
    if constraints.renormalise:
        return chosen
    chosen = chosen - ops.logsumexp(logits, axis=-1)
    for index, _ in constraints.forced(longest):
        chosen = ops.where(ops.equal(t, index), 0.0, chosen)
    return chosen


def _has_ids(size: int, token_ids: tuple[int, ...]) -> np.ndarray:
    """Returns booleans (size,): whether each id of a vocabulary is one of `token_ids`."""
    return np.isin(np.arange(size), token_ids)


def _ngram_ends(tokens: Tensor, last: Tensor, n: int) -> Tensor:
    """Returns the tokens that would complete an n-gram that a row has already.

    Args:
        tokens: (R, L) int32 token ids, -1 where a row has none.
        last: index of the last token of every row, a scalar.
        n: length of the n-grams.

    Returns:
        (R, L) int32: for each position, the last token of the n-gram that begins there, or -1 if
        the row does not end with the tokens before that one.
    """
    length = ops.shape(tokens)[1]
    padded = ops.pad(tokens, ((0, 0), (0, n - 1)), constant_values=-1)
    ends = padded[:, n - 1 : n - 1 + length]
    for i in range(n - 1):
        index = last - (n - 2) + i
        final = ops.take(tokens, ops.maximum(index, 0), axis=1)[:, None]
        is_equal = (padded[:, i : i + length] == final) & (final >= 0) & (index >= 0)
        ends = ops.where(is_equal, ends, -1)
    return ends


def _members(token_ids: Tensor, scores: Tensor) -> Tensor:
    """Returns booleans (R, V): whether an id is among the `token_ids` (R, L) of its row.

    Negative ids are ignored. `scores` (R, V) give the shape of the result.
    """
    size = scores.shape[-1]
    # Negative ids go to an additional column. Every update writes the same value, so the order in
    # which a backend writes duplicates does not matter.
    columns = ops.where(token_ids >= 0, token_ids, size)
    rows = ops.arange(ops.shape(scores)[0], dtype="int32")[:, None] + ops.zeros_like(columns)
    marks = ops.pad(ops.zeros_like(scores), ((0, 0), (0, 1)))
    index = ops.stack([ops.reshape(rows, (-1,)), ops.reshape(columns, (-1,))], axis=1)
    ones = ops.ones_like(index[:, 0], dtype=scores.dtype)
    return ops.scatter_update(marks, index, ones)[:, :size] > 0
