"""The exported question answerer: windows, model and decoding as one graph.

Shapes: Q questions, W windows, K best spans.
"""

from __future__ import annotations

from typing import Any

from kbert.core.late import tf
from kbert.signatures import Signature, text_tokens
from kbert.signatures.requests import collect
from kbert.tasks.question_answering.answer_spans import choose, merge_windows

# Windows that are encoded together, so that memory does not grow with the longest context.
WINDOWS_AT_ONCE = 32


def answer_signature(task: Any) -> Signature:
    """Returns the entry point for answers; see `QuestionAnswerer.signatures`."""

    def answer(question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        context = tf.strings.unicode_transcode(context, "UTF-8", "UTF-8", errors="replace")
        count = tf.size(context)
        questions = task.tokenizer.encode(question)
        contexts = task.windows.read(context)
        rows, windows = task.windows.columns(questions, contexts, tf.range(count))
        outputs = _encode_windows(task, rows, tf.size(windows.text))
        merged = merge_windows(windows.text, count, outputs)
        answers = choose(merged, task.null_threshold)
        start, end = answers["starts"], answers["ends"]
        return {
            "answer": tf.strings.substr(context, start, end - start, unit="UTF8_CHAR"),
            "start": start,
            "end": end,
            "score": answers["scores"],
            "probability": answers["probabilities"],
            "null_score": answers["null_scores"],
        }

    specs = [tf.TensorSpec([None], tf.string, name) for name in ("question", "context")]
    return Signature(answer, specs, text_tokens())


def _encode_windows(task: Any, rows: dict[str, Any], count: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the task's `outputs` for the windows, computed in groups of `WINDOWS_AT_ONCE`.

    `rows` are the columns of `QuestionWindows.columns`; `count` is W, the number of windows.
    """
    spans = tf.TensorSpec([None, task.n_best], tf.int32)
    specs = {
        "starts": spans,
        "ends": spans,
        "scores": tf.TensorSpec(spans.shape, tf.float32),
        "null_scores": tf.TensorSpec([None], tf.float32),
    }

    def encode(first: tf.Tensor, end: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = task.assemble({name: x[first:end] for name, x in rows.items()})
        return task.outputs(task(batch), batch)

    return collect(encode, count, lambda first: tf.minimum(first + WINDOWS_AT_ONCE, count), specs)
