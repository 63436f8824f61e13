"""A context that is too long to stand beside its question, in overlapping windows.

The rules are those of google-research/bert's run_squad.py (`convert_examples_to_features` and
`_check_is_max_context`), in closed form: the same in a graph and eagerly, for any number of texts.

Shapes: Q questions, W windows of all questions together, P pieces of all windows together.
"""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows:
    """Where each window lies, counted in pieces of its context.

    Args:
        question: (W,) int32, whose context the window is of; windows of a question follow each
            other.
        number: (W,) int32, counted from 0 in each question.
        starts: (W,) int32, first piece.
        sizes: (W,) int32, how many pieces.
        counts: (Q,) int32, windows of each question: 1 at least, also for an empty context.
        steps: (Q,) int32, pieces from the start of a window to that of the next.
        room: (Q,) int32, pieces of a window that is not the last.
        lengths: (Q,) int32, pieces of the context.
    """

    question: tf.Tensor
    number: tf.Tensor
    starts: tf.Tensor
    sizes: tf.Tensor
    counts: tf.Tensor
    steps: tf.Tensor
    room: tf.Tensor
    lengths: tf.Tensor

    def positions(self) -> tf.RaggedTensor:
        """(W, ragged) int32, the pieces in each window as positions in the context."""
        return tf.ragged.range(self.starts, self.starts + self.sizes)

    def most_context(self) -> tf.RaggedTensor:
        """(W, ragged) bool, True in the one window of those with a piece that shows most around it.

        What counts is the smaller of the numbers of pieces to its left and to its right, plus a
        hundredth of the window's size; the first of equally good windows.
        """
        positions = self.positions()
        window = positions.value_rowids()
        p = positions.flat_values  # (P,)
        question = tf.gather(self.question, window)
        room, step = tf.gather(self.room, question), tf.gather(self.steps, question)
        length = tf.gather(self.lengths, question)
        last = tf.gather(self.counts, question) - 1

        def score(number):
            start = number * step
            size = tf.minimum(room, length - start)
            around = tf.minimum(p - start, start + size - 1 - p)
            # float64, as Python computes it there: ties are ties.
            total = tf.cast(around, tf.float64) + 0.01 * tf.cast(size, tf.float64)
            return tf.where(around < 0, tf.constant(-1.0, tf.float64), total)

        # Windows before the last are of one size: the nearest to being centred on the piece is
        # best of them. The last one may be shorter, and is compared by itself.
        before = (2 * p - (room - 1)) // (2 * step)
        best = tf.clip_by_value(before, 0, tf.maximum(last - 1, 0))
        for other in (tf.clip_by_value(before + 1, 0, tf.maximum(last - 1, 0)), last):
            best = tf.where(score(other) > score(best), other, best)
        return positions.with_flat_values(best == tf.gather(self.number, window))


def context_windows(lengths: tf.Tensor, room: tf.Tensor, stride: int) -> Windows:
    """Cuts contexts into windows.

    Args:
        lengths: (Q,) int32, pieces of each context.
        room: (Q,) int32, pieces of the context that fit beside the question, 1 at least.
        stride: pieces from the start of a window to that of the next.

    Returns:
        The windows, those of the first question first. A context that fits is one window.

    Example:
        >>> windows = context_windows(tf.constant([10, 3]), tf.constant([6, 6]), 3)
        >>> windows.positions().to_list()
        [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9], [0, 1, 2]]
        >>> windows.most_context()[0].numpy().tolist()
        [True, True, True, True, True, False]
    """
    steps = tf.minimum(room, stride)  # no piece is left out between two windows
    counts = 1 + tf.maximum((lengths - room + steps - 1) // steps, 0)
    question = tf.repeat(tf.range(tf.size(lengths)), counts)
    first = tf.gather(tf.cumsum(counts, exclusive=True), question)
    number = tf.range(tf.size(question)) - first
    starts = number * tf.gather(steps, question)
    return Windows(
        question=question,
        number=number,
        starts=starts,
        sizes=tf.minimum(tf.gather(room, question), tf.gather(lengths, question) - starts),
        counts=counts,
        steps=steps,
        room=room,
        lengths=lengths,
    )
