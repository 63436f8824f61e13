"""Lays out the text of a window in rows, and gathers their tokens, with the sentences if needed.

A window's tokens are passed through the stages of the stream as one vector. If a noise uses
sentences, bit 30 of the first token of each sentence is 1.

Shapes: M tokens of a window, S sentences, D documents, N rows, L maximum number of tokens of a row.
"""

from __future__ import annotations

from collections.abc import Callable

from kbert.core.late import tf
from kbert.data.denoising.noise import Text
from kbert.data.masking.hashing import fold
from kbert.data.pretraining.segments import plan_segments, plan_sentences
from kbert.data.pretraining.walk import sentence_bounds, shuffled

MARKED_DTYPE = "int32"  # type of tokens with marks
_MARK = 1 << 30
_DOCUMENTS, _ROWS = 0, 1  # streams of draws under the key of a window


def mark_sentences(tokens: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """Marks the first token of each sentence, (M,) int32.

    `tokens` (M,) are ids, `sentences` (S,) int32 the numbers of tokens of the sentences, all above
    0.
    """
    starts = sentence_bounds(sentences)[:-1, None]
    marks = tf.scatter_nd(starts, tf.fill([tf.size(sentences)], _MARK), tf.shape(tokens))
    return tf.cast(tokens, tf.int32) + marks


def gather_text(tokens: tf.Tensor, rows: tf.Tensor, width: int, marked: bool) -> Text:
    """Gathers the tokens of some rows.

    Args:
        tokens: (M,), ids of a window.
        rows: (N, …) int32, plan of the rows: start and number of tokens in the first two columns.
        width: L, maximum number of tokens of a row.
        marked: whether the ids are those of `mark_sentences`.

    Example:
        >>> tokens = mark_sentences(tf.range(5, 11), tf.constant([2, 3, 1]))
        >>> text = gather_text(tokens, tf.constant([[1, 4]]), 5, marked=True)
        >>> text.ids.numpy()[0, :4].tolist(), text.begins.numpy().astype(int).tolist()
        ([6, 7, 8, 9], [[1, 1, 0, 0, 0]])
    """
    start, length = rows[:, 0], rows[:, 1]
    column = tf.range(width)
    inside = column < length[:, None]
    ids = tf.cast(tf.gather(tokens, tf.where(inside, start[:, None] + column, 0)), tf.int32)
    if not marked:
        return Text(ids, length)
    begins = inside & ((ids >= _MARK) | (column == 0))
    return Text(tf.bitwise.bitwise_and(ids, _MARK - 1), length, begins)


def join_text(
    tokens: tf.Tensor,
    sentences: tf.Tensor,
    documents: tf.Tensor,
    key: tf.Tensor,
    max_tokens: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins the documents in a random order, without separators, and divides them into full rows.

    Only the last row of a window may be shorter. Source: `reduce_concat_tokens` and `split_tokens`
    in t5/data/preprocessors.py of google-research/text-to-text-transfer-transformer.

    Args:
        tokens: (M,), ids of a window; marked or not.
        sentences: (S,) int32, number of tokens of each sentence.
        documents: (D,) int32, number of sentences of each document.
        key: uint64 scalar, key of all random draws.
        max_tokens: L, number of tokens of a row.

    Returns:
        The text, (M,), and the plan of its rows in random order, (N, 5) int32, with the columns of
        `PLAN_COLUMNS`: start and number of tokens, then three zeros.
    """
    ends = tf.gather(sentence_bounds(sentences), tf.cumsum(documents))  # (D,)
    starts = tf.pad(ends[:-1], [[1, 0]])
    order = shuffled(tf.range(tf.size(ends)), fold(key, _DOCUMENTS))
    lengths = tf.gather(ends - starts, order)
    shift = tf.gather(starts, order) - tf.cumsum(lengths, exclusive=True)
    text = tf.gather(tokens, tf.range(tf.size(tokens)) + tf.repeat(shift, lengths))
    start = tf.range(0, tf.size(text), max_tokens)
    length = tf.minimum(max_tokens, tf.size(text) - start)
    rows = tf.pad(tf.stack([start, length], 1), [[0, 0], [0, 3]])
    return text, shuffled(rows, fold(key, _ROWS))


def _within_documents(plan: Callable[..., tf.Tensor]) -> Callable:
    """Returns a layout that leaves the tokens in their order, and plans rows by `plan`."""

    def layout(
        tokens: tf.Tensor,
        sentences: tf.Tensor,
        documents: tf.Tensor,
        key: tf.Tensor,
        max_tokens: int,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return tokens, plan(sentences, documents, key, max_tokens=max_tokens, short_share=0.0)

    return layout


# Name of a layout -> function with the arguments and results of `join_text`.
LAYOUTS: dict[str, Callable[..., tuple[tf.Tensor, tf.Tensor]]] = {
    "joined": join_text,
    "single": _within_documents(plan_segments),
    "doc_sentences": _within_documents(plan_sentences),
}
