"""A model small enough to try every text: its logits depend on all tokens so far, and on their
order, through the cache; and, through what is fixed, on the row.

Shapes: `R` rows, `V` vocabulary, `G` slots.
"""

import itertools

import keras
import numpy as np
from keras import ops

from tests.harness import compiled


class Toy:
    """A random model, its step on `keras.ops`, and its probabilities in NumPy."""

    def __init__(self, rows=3, size=5, slots=6, seed=0, spread=1.0):
        rng = np.random.default_rng(seed)
        self.size, self.slots = size, slots
        self.table = rng.normal(0, spread, (slots, size, size)).astype("float32")
        self.context = rng.normal(0, spread, (rows, size)).astype("float32")
        self.calls = 0  # of `step` in Python: runs in an eager loop, traces in a compiled one

    def start(self, rows=None):
        """Logits and cache, of all rows or of some."""
        context = ops.convert_to_tensor(self.context if rows is None else self.context[rows])
        slots = ops.zeros((context.shape[0], self.slots), "int32")
        return context, {"prompt": {"context": context}, "decoded": [{"slots": slots}]}

    def step(self, token_ids, cache, t):
        """Logits are the context's plus a row of the table for each token and its distance."""
        self.calls += 1
        columns = np.arange(self.slots)
        slots = ops.where(columns == t, token_ids[:, None], cache["decoded"][0]["slots"])
        distance = ops.where(columns <= t, t - columns, 0)
        each = ops.take(
            ops.reshape(self.table, (-1, self.size)), distance * self.size + slots, axis=0
        )
        seen = ops.cast(columns <= t, "float32")[:, None]
        logits = cache["prompt"]["context"] + ops.sum(each * seen, axis=1)
        return logits, {"prompt": cache["prompt"], "decoded": [{"slots": slots}]}

    def log_probabilities(self, row, text):
        """Of the token behind `text`: (V,) float64."""
        logits = self.context[row].astype("float64")
        for distance, token in enumerate(reversed(text)):
            logits = logits + self.table[distance, token]
        return logits - np.log(np.exp(logits).sum())

    def log_probability(self, row, text):
        """Of a whole text."""
        return sum(self.log_probabilities(row, text[:i])[token] for i, token in enumerate(text))

    def texts(self, row, longest, stop_ids, length_penalty, banned_ids=()):
        """(score, text) of every text there is, best first."""
        found = []
        allowed = [i for i in range(self.size) if i not in banned_ids]
        for length in range(1, longest + 1):
            for text in itertools.product(allowed, repeat=length):
                inside = not any(token in stop_ids for token in text[:-1])
                if inside and (text[-1] in stop_ids or length == longest):
                    penalty = ((5 + length) / 6) ** length_penalty
                    found.append((self.log_probability(row, text) / penalty, text))
        return sorted(found, reverse=True)


def texts_of(decoded):
    """Per row, a list of texts without padding; and scores (B, K). What is padding is checked."""
    ids, lengths, scores = (ops.convert_to_numpy(x) for x in decoded)
    assert ids.dtype == lengths.dtype == np.int32
    assert scores.dtype == np.float32
    assert ids.shape[:2] == lengths.shape == scores.shape
    assert (ids[np.arange(ids.shape[-1]) >= lengths[..., None]] == 0).all()
    return [
        [tuple(text[:length].tolist()) for text, length in zip(*row, strict=True)]
        for row in zip(ids, lengths, strict=True)
    ], scores


def in_a_function(function):
    """The function in a graph without XLA; JAX knows one way to compile."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return compiled(function)
