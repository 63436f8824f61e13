"""The sentences of rows: their numbers, sizes and random orders.

Shapes: N rows, L text tokens of a row, J maximum number of sentences of these rows.
"""

from __future__ import annotations

from typing import NamedTuple

from kbert.core.late import tf
from kbert.data.denoising.noise import Text, gather_rows, scatter_rows
from kbert.data.masking.hashing import fold


class Sentences(NamedTuple):
    """The sentences of some rows.

    J is the largest number of sentences among the rows. So a result may use columns of the
    sentences that a row has, and no others.

    Attributes:
        number: (N, L) int32, number of the sentence of each token in its row; -1 or the last
            sentence after the end of a row.
        start: (N, J) int32, first token of each sentence; 0 for further columns.
        size: (N, J) int32, number of tokens of each sentence; 0 for further columns.
        count: (N,) int32, number of sentences of each row.
    """

    number: tf.Tensor
    start: tf.Tensor
    size: tf.Tensor
    count: tf.Tensor

    @property
    def used(self) -> tf.Tensor:
        """(N, J) bool, True for the sentences that a row has."""
        return tf.range(tf.shape(self.start)[1]) < self.count[:, None]


def find_sentences(text: Text) -> Sentences:
    """Returns the sentences of some rows, whose `begins` must be given.

    >>> begins = tf.constant([[True, False, True, False]])
    >>> sentences = find_sentences(Text(tf.constant([[7, 8, 9, 0]]), tf.constant([3]), begins))
    >>> sentences.start.numpy().tolist(), sentences.size.numpy().tolist()
    ([[0, 2]], [[2, 1]])
    """
    number = tf.cumsum(tf.cast(text.begins, tf.int32), 1) - 1
    count = number[:, -1] + 1
    most = tf.maximum(tf.reduce_max(count), 1)
    column = tf.range(text.width)[None]
    # Column J collects what does not begin a sentence.
    start = scatter_rows(tf.where(text.begins, number, most), column, most + 1)[:, :-1]
    used = tf.range(most) < count[:, None]
    end = tf.where(tf.range(most) == count[:, None] - 1, text.length[:, None], _next(start))
    return Sentences(number, start, tf.where(used, end - start, 0), count)


def _next(values: tf.Tensor) -> tf.Tensor:
    return tf.pad(values[:, 1:], [[0, 0], [0, 1]])


def random_order(keys: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """Returns the numbers of each row's sentences in random order, (N, J) int32.

    After the sentences that a row has, further numbers follow. `keys` (N,) are uint64.
    """
    lots = tf.bitcast(fold(keys[:, None], tf.range(tf.shape(sentences.start)[1])), tf.int64)
    return tf.argsort(tf.where(sentences.used, lots, tf.int64.max), stable=True)


def permuted(keys: tf.Tensor, text: Text, share: float) -> tf.Tensor:
    """Permutes a share of each row's sentences among their places, and keeps the others.

    Args:
        keys: (N,) uint64, random key of each row.
        text: the rows.
        share: share of the sentences to permute, rounded up to whole sentences.

    Returns:
        (N, L) int32 token ids; any id after the end of a row.
    """
    sentences = find_sentences(text)
    most = tf.shape(sentences.start)[1]
    order = random_order(keys, sentences)
    if share < 1:
        # The first sentences of the random order move. Each goes to one of their places, and the
        # places ascend: given which sentences move, all their permutations are equally likely.
        moved = tf.cast(tf.math.ceil(tf.cast(sentences.count, tf.float64) * share), tf.int32)
        is_moved = tf.range(most) < moved[:, None]
        places = tf.sort(tf.where(is_moved, order, most), axis=1)
        is_place = scatter_rows(places, tf.ones_like(places), most + 1)[:, :-1]
        slot = tf.cumsum(is_place, 1) - 1
        column = tf.broadcast_to(tf.range(most), tf.shape(order))
        order = tf.where(is_place > 0, gather_rows(order, slot), column)
    size = gather_rows(sentences.size, order)
    begin = tf.cumsum(size, 1, exclusive=True)
    shift = gather_rows(sentences.start, order) - begin  # of the sentence at each place
    # Each place changes the shift at its first token; empty places are at the end of a row.
    change = shift - tf.pad(shift[:, :-1], [[0, 0], [1, 0]])
    changes = scatter_rows(tf.where(size > 0, begin, text.width), change, text.width + 1)
    source = tf.range(text.width) + tf.cumsum(changes[:, :-1], 1)
    return gather_rows(text.ids, source)
