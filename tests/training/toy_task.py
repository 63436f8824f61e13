"""A stand-in task for the tests of training: an embedding, a dense layer, two losses."""

import os
import signal
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.training.run.checkpoints import Checkpoints
from kbert.training.step.mixin import TrainStep
from tests.waiting import until

VOCABULARY, WIDTH, LENGTH = 32, 8, 6


class ToyTask(TrainStep, keras.Model):
    """Guesses masked tokens from the sequence's mean, and a label of the sequence."""

    derived_metrics: ClassVar = {"perplexity": ("mlm_loss", ops.exp)}
    shown_metrics = ("mlm_loss", "nsp_accuracy")

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.embedding = keras.layers.Embedding(VOCABULARY, WIDTH, name="embedding")
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.dropout = keras.layers.Dropout(dropout, seed=7)
        self.tokens = keras.layers.Dense(VOCABULARY, name="tokens")
        self.label = keras.layers.Dense(2, name="label")
        self.embedding.build((None, None))
        for layer in (self.norm, self.dropout, self.tokens, self.label):
            layer.build((None, None, WIDTH))
        self.built = True

    def loss_terms(self, batch, training):
        x = self.embedding(batch["token_ids"])  # (B, T, H)
        x = self.dropout(self.norm(x + ops.mean(x, axis=1, keepdims=True)), training=training)
        weights = batch["mask_weights"]
        mlm = cross_entropy(batch["mask_ids"], self.tokens(x))
        nsp_logits = self.label(x[:, 0])
        nsp = cross_entropy(batch["label"], nsp_logits)
        right = ops.cast(ops.equal(ops.argmax(nsp_logits, -1), batch["label"]), "float32")
        rows = ops.sum(ops.ones_like(nsp))
        losses = {
            "mlm_loss": (ops.sum(mlm * weights), ops.sum(weights)),
            "nsp_loss": (ops.sum(nsp), rows),
        }
        return losses, {"nsp_accuracy": (ops.sum(right), rows)}


def cross_entropy(labels, logits):
    logits = ops.cast(logits, "float32")
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def batches(
    steps: int, rows: int = 16, length: int = LENGTH, seed: int = 0, start: int = 0
) -> list[dict]:
    """Batches whose two halves hold very different numbers of masks; tokens repeat a lot.

    The position after batch n of seed s is (0, s, (n + 1) * rows).
    """
    result = []
    for step in range(start, start + steps):
        rng = np.random.default_rng([seed, step])
        share = np.where(np.arange(rows) < rows // 2, 0.1, 0.9)[:, None]
        result.append(
            {
                "token_ids": rng.integers(0, VOCABULARY // 4, (rows, length)).astype("int32"),
                "mask_ids": rng.integers(0, VOCABULARY, (rows, length)).astype("int32"),
                "mask_weights": (rng.random((rows, length)) < share).astype("float32"),
                "label": rng.integers(0, 2, rows).astype("int32"),
                "position": np.tile(np.array([0, seed, (step + 1) * rows], "int32"), (rows, 1)),
            }
        )
    return result


def dataset(steps: int, **settings) -> tf.data.Dataset:
    """The same as `tf.data`, with static shapes."""
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches(steps, **settings))
    return tf.data.Dataset.from_tensor_slices(stacked)


def with_signal(
    data: tf.data.Dataset, number: int, element: int, after: str | None = None
) -> tf.data.Dataset:
    """Sends the own process a signal when an element is about to be handed out.

    SIGKILL leaves only what is on the disk, and checkpoints are written in the background: so it
    waits until there is one in the folder `after`.
    """

    def send(index):
        if index == element:
            if number == signal.SIGKILL and after:
                until(lambda: Checkpoints(after).steps())
            os.kill(os.getpid(), number)
        return index

    def step(index, batch):
        with tf.control_dependencies([tf.py_function(send, [index], tf.int64)]):
            return tf.nest.map_structure(tf.identity, batch)

    return data.enumerate().map(step)
