"""Dropout whose state is a checkpointable seed and whose masks differ between replicas."""

import keras


class Dropout(keras.layers.Layer):
    """Sets a share `rate` of the entries to zero and scales up the rest, in training only.

    Args:
        rate: share of entries dropped, in [0, 1).

    Example:
        >>> ops.convert_to_numpy(Dropout(0.5)(ops.ones((2,)), training=False)).tolist()
        [1.0, 1.0]
    """

    def __init__(self, rate: float, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        if rate:
            self.seed_generator = keras.random.SeedGenerator()
        self.built = True

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        return keras.random.dropout(inputs, self.rate, seed=self.seed_generator)
