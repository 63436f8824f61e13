"""The exported question answerer: windows, model and decoding as one graph.

Shapes: Q questions, W windows, K best spans.
"""

from typing import Any

import tensorflow as tf

from kbert.serving import Signature
from kbert.tasks.question_answering.answer_spans import choose, merge_windows

# Windows that are encoded at a time: the memory does not grow with the longest context.
WINDOWS_AT_ONCE = 32


def answer_signature(task: Any) -> Signature:
    """`question` and `context` (Q,) strings -> the answers; see `QuestionAnswerer.signatures`."""

    def answer(question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        context = tf.strings.unicode_transcode(context, "UTF-8", "UTF-8", errors="replace")
        count = tf.size(context)
        message = "Every question comes with its context: as many of the one as of the other."
        with tf.control_dependencies(
            [tf.debugging.assert_equal(tf.size(question), count, message)]
        ):
            questions = task.tokenizer.encode(question)
        contexts = task.windows.read(context)
        rows, windows = task.windows.columns(questions, contexts, tf.range(count))
        outputs = _encode_windows(task, rows, tf.size(windows.text))
        merged = merge_windows(windows.text, count, outputs)
        chosen = choose(merged, task.null_threshold)
        start, end = chosen["starts"], chosen["ends"]
        return {
            "answer": tf.strings.substr(context, start, end - start, unit="UTF8_CHAR"),
            "start": start,
            "end": end,
            "score": chosen["scores"],
            "probability": chosen["probabilities"],
            "null_score": chosen["null_scores"],
        }

    names = ("question", "context")
    return Signature(answer, [tf.TensorSpec([None], tf.string, name) for name in names])


def _encode_windows(task: Any, rows: dict[str, Any], count: tf.Tensor) -> dict[str, tf.Tensor]:
    """The task's `outputs` of W windows, a few at a time."""
    turns = tf.maximum(-(-count // WINDOWS_AT_ONCE), 1)  # no window at all takes a turn too
    layout = {
        **dict.fromkeys(("starts", "ends"), (tf.int32, [None, task.n_best])),
        "scores": (tf.float32, [None, task.n_best]),
        "null_scores": (tf.float32, [None]),
    }
    found = {
        name: tf.TensorArray(dtype, turns, infer_shape=False, element_shape=shape)
        for name, (dtype, shape) in layout.items()
    }

    def turn(number: tf.Tensor, found: Any) -> tuple[tf.Tensor, dict[str, Any]]:
        first = number * WINDOWS_AT_ONCE
        index = tf.range(first, tf.minimum(first + WINDOWS_AT_ONCE, count))
        batch = task.assemble({name: tf.gather(x, index) for name, x in rows.items()})
        outputs = task.outputs(task(batch), batch)
        return number + 1, {name: x.write(number, outputs[name]) for name, x in found.items()}

    _, found = tf.while_loop(
        lambda number, _: number < turns, turn, (0, found), parallel_iterations=1
    )
    return {name: x.concat() for name, x in found.items()}
