"""Random rows for tests of masking: where text is, and where its words begin."""

import numpy as np
import tensorflow as tf

from kbert.data.masking.units import first_pieces


def random_rows(seed, rows, width, continuation_share, max_count):
    """Rows of two segments: where text is, where words begin, how many tokens to choose."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(4, width + 1, rows)
    in_text = np.arange(width)[None] < lengths[:, None] - 1
    in_text[:, 0] = False
    in_text[np.arange(rows), rng.integers(1, lengths - 1)] = False  # the [SEP] behind A
    continuation = np.array([False] * 50 + [True] * 50)
    ids = np.where(rng.random((rows, width)) < continuation_share, 60, 10)
    begins = first_pieces(tf.constant(ids), tf.constant(in_text), continuation)
    count = np.minimum(rng.integers(0, max_count + 1, rows), in_text.sum(axis=1))
    return in_text, begins, count.astype(np.int32)


def words_of(in_text, begins):
    """Positions of each word of a row."""
    words = []
    for position in np.flatnonzero(in_text):
        words.append([position]) if begins[position] else words[-1].append(position)
    return words
