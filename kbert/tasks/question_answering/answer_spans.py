"""From logits to answers: the best spans of a window, of a question, and whether to answer at all.

The rules are those of google-research/bert's run_squad.py (`write_predictions`), with one
difference: a window's spans are the best of all valid ones, not of those between its 20 best
beginnings and its 20 best ends.

Shapes: B windows of a batch, T tokens, W windows of all questions, Q questions, K best spans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from kbert.core.late import tf

# The score of what is no span. Real ones are sums of two logits, far above half of it.
NO_SPAN = -1e9


def best_spans(
    start_logits: Any,
    end_logits: Any,
    starts: Any,
    ends: Any,
    *,
    max_length: int,
    count: int,
) -> dict[str, Any]:
    """The spans of a window with the highest sums of logits, in `keras.ops`.

    Args:
        start_logits: (B, T) float32.
        end_logits: (B, T) float32.
        starts: (B, T) int32, the character at which an answer that begins with this token begins;
            -1 where none can.
        ends: (B, T) int32, the character at which an answer that ends with this token ends; -1
            where none can.
        max_length: tokens of a span.
        count: K.

    Returns:
        `starts` and `ends` (B, K) int32, characters; `scores` (B, K) float32, from the highest;
        `NO_SPAN` with 0 and 0 where there are fewer spans.

    Example:
        >>> logits = np.array([[0.0, 3.0, 1.0]], "float32")
        >>> found = best_spans(logits, logits, np.array([[-1, 0, 4]]), np.array([[-1, 3, 7]]),
        ...                    max_length=2, count=2)
        >>> [ops.convert_to_numpy(x).tolist() for x in found.values()]
        [[[0, 0]], [[3, 7]], [[6.0, 4.0]]]
    """
    tokens = ops.shape(start_logits)[1]
    width = max(max_length, count)  # so that there are K sums in the shortest window
    steps = np.arange(width)
    limits = ops.where(ends >= 0, end_logits, NO_SPAN)
    limits = ops.pad(limits, [(0, 0), (0, width - 1)], constant_values=NO_SPAN)
    last = ops.arange(tokens)[:, None] + steps[None]  # (T, width)
    limits = ops.take(limits, last, axis=1)  # (B, T, width): of the tokens from each one on
    limits = ops.where(ops.convert_to_tensor(steps < max_length), limits, NO_SPAN)
    begins = ops.where(starts >= 0, start_logits, NO_SPAN)
    scores, best = ops.top_k(ops.reshape(begins[:, :, None] + limits, (-1, tokens * width)), count)

    first = best // width
    last = ops.minimum(first + best % width, tokens - 1)
    real = scores > NO_SPAN / 2
    characters = {"starts": (starts, first), "ends": (ends, last)}
    found = {
        name: ops.where(real, ops.take_along_axis(place, ops.cast(at, "int32"), axis=1), 0)
        for name, (place, at) in characters.items()
    }
    return {**found, "scores": ops.where(real, scores, NO_SPAN)}


def merge_windows(
    questions: tf.Tensor, num_questions: int | tf.Tensor, windows: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """The best spans of each question, over its windows.

    Args:
        questions: (W,) int32, the question of each window, ascending.
        num_questions: Q.
        windows: `starts`, `ends` and `scores` (W, K) of `best_spans`; `null_scores` (W,), of
            [CLS] as the answer.

    Returns:
        `starts`, `ends` and `scores` (Q, K), from the highest score; `null_scores` (Q,), the lowest
        of a question's windows.
    """
    count = tf.shape(windows["scores"])[1]
    question = tf.repeat(questions, count)  # (W * K,)
    flat = {name: tf.reshape(windows[name], [-1]) for name in ("starts", "ends", "scores")}
    order = tf.argsort(flat["scores"], direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(question, order), stable=True))
    # Every window has K entries, so every question has K at least.
    first = tf.searchsorted(tf.gather(question, order), tf.range(num_questions))
    best = tf.gather(order, first[:, None] + tf.range(count))  # (Q, K)
    merged = {name: tf.gather(x, best) for name, x in flat.items()}
    nulls = tf.math.unsorted_segment_min(windows["null_scores"], questions, num_questions)
    return {**merged, "null_scores": nulls}


def choose(merged: dict[str, tf.Tensor], null_threshold: float | None) -> dict[str, tf.Tensor]:
    """The answer of each question, or that there is none.

    Args:
        merged: what `merge_windows` gives.
        null_threshold: no answer where the null score is more than this above the best span's;
            None answers whatever a span is found for.

    Returns:
        `starts` and `ends` (Q,) int32, 0 and 0 for no answer; `probabilities` (Q,) of what was
        chosen; `span_probabilities` (Q, K) and `null_probabilities` (Q,), which add up to 1: a
        softmax over the scores of the K best spans and, with a threshold, the null score;
        `scores` (Q,) of the best span, `null_scores` (Q,).
    """
    scores, null = merged["scores"], merged["null_scores"]
    real = scores > NO_SPAN / 2  # (Q, K)
    abstains = ~real[:, 0]
    highest = scores[:, 0]
    if null_threshold is not None:
        abstains |= null - highest > null_threshold
        highest = tf.maximum(highest, null)
    weights = tf.where(real, tf.exp(scores - highest[:, None]), 0.0)
    null_weight = tf.zeros_like(null) if null_threshold is None else tf.exp(null - highest)
    total = tf.reduce_sum(weights, 1) + null_weight
    spans = tf.math.divide_no_nan(weights, total[:, None])
    nulls = tf.math.divide_no_nan(null_weight, total)
    return {
        "starts": tf.where(abstains, 0, merged["starts"][:, 0]),
        "ends": tf.where(abstains, 0, merged["ends"][:, 0]),
        "probabilities": tf.where(abstains, nulls, spans[:, 0]),
        "span_probabilities": spans,
        "null_probabilities": nulls,
        "scores": scores[:, 0],
        "null_scores": null,
    }
