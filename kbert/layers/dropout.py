"""Dropout that costs half as much as Keras' on TensorFlow and differs between replicas."""

import random
from typing import Any

import keras

from kbert.core.types import Tensor
from kbert.layers import fused


class Dropout(keras.layers.Layer):
    """Sets a share `rate` of the entries to zero and scales up the rest, in training only.

    (Srivastava et al. 2014.) The only state is a seed and a counter in a Keras variable, so a run
    resumed from a checkpoint of all variables gets the same masks as an uninterrupted one.

    Args:
        rate: share of entries dropped, in [0, 1).

    Raises:
        ValueError: `rate` is out of range.

    Example:
        >>> import numpy as np
        >>> np.asarray(Dropout(0.5)(np.ones((2,), "float32"), training=False)).tolist()
        [1.0, 1.0]
    """

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and less than 1. Received: {rate!r}")
        self.rate = rate
        if rate:
            # An explicit seed: without one, Keras on PyTorch draws from the global generator.
            self.seed_generator = keras.random.SeedGenerator(random.randrange(2**31))
        self.built = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        if not training or not self.rate:
            return inputs
        if keras.backend.backend() == "tensorflow":
            return self.drop(inputs, self.next_seed())
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)

    def drop(self, inputs: Tensor, seed: Tensor | None) -> Tensor:
        """Drops entries of the inputs by a seed of `next_seed`; on TensorFlow only."""
        if seed is None:
            return inputs
        if fused.fuses(inputs.shape[-1], training=True):
            return fused.dropout(inputs, self.rate, seed)
        return _tensorflow_dropout(inputs, self.rate, seed)

    def next_seed(self) -> Tensor | None:
        """Returns the seed of the next mask, (2,) int32, on JAX uint32; None if the rate is 0."""
        if not self.rate:
            return None
        if keras.backend.backend() != "tensorflow":
            return self.seed_generator.next()
        import tensorflow as tf

        seed = tf.bitcast(tf.cast(self.seed_generator.next(), tf.uint32), tf.int32)
        return _seed_of_replica(seed)


def _tensorflow_dropout(inputs: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Sets a share `rate` of the entries to zero and scales up the rest; `seed` is (2,) int32.

    Each random word of 32 bits decides about two entries: drawing words is most of the cost.
    """
    import tensorflow as tf

    size = tf.size(inputs)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2],
        seed,
        minval=None,  # all 2**32 values
        maxval=None,
        dtype=tf.int32,
        alg="philox",  # the default is far slower under XLA on a CPU
    )
    halves = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    # int16 counts from -2**15. The rate becomes a multiple of 2**-16: 0.1 becomes 0.100006.
    dropped = round(rate * 2**16)
    keep = tf.reshape(halves >= tf.constant(dropped - 2**15, tf.int16), tf.shape(inputs))
    return inputs * (tf.cast(keep, inputs.dtype) * (2**16 / (2**16 - dropped)))


def _seed_of_replica(seed: Tensor) -> Tensor:
    """Returns a seed (2,) int32 that differs between replicas; with one replica, the same seed.

    Mirrored seeds are equal, but dropout masks must not be.
    """
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return seed
    odd = tf.constant(0x9E3779B9 - 2**32, tf.int32)  # 2**32 / golden ratio: spreads small ids
    return seed + tf.stack([replica.replica_id_in_sync_group * odd, 0])
