"""From logits to answers: the best spans of a window and of a question, or no answer.

The rules are those of google-research/bert's run_squad.py (`write_predictions`), with one
difference. The best spans of a window are chosen from all valid spans, not only from combinations
of its 20 best starts and 20 best ends.

Shapes: B windows of a batch, T tokens, W windows of all questions, Q questions, K best spans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from kbert.core.late import tf

# The score of a missing span. Real scores are sums of two logits, far above half of this.
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
    """Returns the spans of each window with the highest sums of logits, by `keras.ops`.

    Args:
        start_logits: (B, T) float32.
        end_logits: (B, T) float32.
        starts: (B, T) int32, first character of an answer that begins with this token; -1 if no
            answer can.
        ends: (B, T) int32, character at which an answer that ends with this token ends; -1 if no
            answer can.
        max_length: maximum number of tokens in a span.
        count: number of spans, K.

    Returns:
        `starts` and `ends` (B, K) int32, characters; `scores` (B, K) float32, highest first. If
        there are fewer spans, the others have `NO_SPAN`, 0 and 0.

    Example:
        >>> logits = np.array([[0.0, 3.0, 1.0]], "float32")
        >>> found = best_spans(logits, logits, np.array([[-1, 0, 4]]), np.array([[-1, 3, 7]]),
        ...                    max_length=2, count=2)
        >>> [ops.convert_to_numpy(x).tolist() for x in found.values()]
        [[[0, 0]], [[3, 7]], [[6.0, 4.0]]]
    """
    tokens = ops.shape(start_logits)[1]
    width = max(max_length, count)  # so that even the shortest window has K sums
    steps = np.arange(width)
    limits = ops.where(ends >= 0, end_logits, NO_SPAN)
    limits = ops.pad(limits, [(0, 0), (0, width - 1)], constant_values=NO_SPAN)
    last = ops.arange(tokens)[:, None] + steps[None]  # (T, width)
    limits = ops.take(limits, last, axis=1)  # (B, T, width): end logits from each token on
    limits = ops.where(ops.convert_to_tensor(steps < max_length), limits, NO_SPAN)
    begins = ops.where(starts >= 0, start_logits, NO_SPAN)
    scores, best = ops.top_k(ops.reshape(begins[:, :, None] + limits, (-1, tokens * width)), count)

    first = best // width
    last = ops.minimum(first + best % width, tokens - 1)
    real = scores > NO_SPAN / 2
    characters = {"starts": (starts, first), "ends": (ends, last)}
    spans = {
        name: ops.where(real, ops.take_along_axis(edges, ops.cast(index, "int32"), axis=1), 0)
        for name, (edges, index) in characters.items()
    }
    return {**spans, "scores": ops.where(real, scores, NO_SPAN)}


def merge_windows(
    questions: tf.Tensor, num_questions: int | tf.Tensor, windows: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the best spans of each question over all its windows.

    Args:
        questions: (W,) int32, index of each window's question, ascending.
        num_questions: Q.
        windows: `starts`, `ends` and `scores` (W, K) of `best_spans`; `null_scores` (W,), scores of
            [CLS] as the answer.

    Returns:
        `starts`, `ends` and `scores` (Q, K), highest score first; `null_scores` (Q,), the lowest of
        a question's windows.
    """
    count = tf.shape(windows["scores"])[1]
    question = tf.repeat(questions, count)  # (W * K,)
    flat = {name: tf.reshape(windows[name], [-1]) for name in ("starts", "ends", "scores")}
    order = tf.argsort(flat["scores"], direction="DESCENDING", stable=True)
    order = tf.gather(order, tf.argsort(tf.gather(question, order), stable=True))
    # Every window has K entries, so every question has at least K.
    first_entries = tf.searchsorted(tf.gather(question, order), tf.range(num_questions))
    best = tf.gather(order, first_entries[:, None] + tf.range(count))  # (Q, K)
    merged = {name: tf.gather(x, best) for name, x in flat.items()}
    nulls = tf.math.unsorted_segment_min(windows["null_scores"], questions, num_questions)
    return {**merged, "null_scores": nulls}


def choose(merged: dict[str, tf.Tensor], null_threshold: float | None) -> dict[str, tf.Tensor]:
    """Chooses the answer of each question, or no answer.

    Args:
        merged: result of `merge_windows`.
        null_threshold: margin for no answer: it is chosen if the null score exceeds the score of
            the best span by more than this. None = always answer if there is a span.

    Returns:
        `starts` and `ends` (Q,) int32, 0 and 0 for no answer; `probabilities` (Q,) of the choice;
        `span_probabilities` (Q, K) and `null_probabilities` (Q,), which add up to 1; `scores` (Q,)
        of the best span; `null_scores` (Q,). The probabilities are a softmax over the scores of the
        K best spans and, with a threshold, the null score.
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
