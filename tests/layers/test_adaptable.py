"""A layer's slot gives back all that it took."""

import gc

import keras

from kbert.layers import Dense
from kbert.layers.adaptable import Switch


class Shifted(keras.layers.Layer):
    def build(self, input_shape):
        self.shift = self.add_weight(name="shift", shape=(2,), initializer="ones")

    def call(self, x, training=False):
        return self.shift


def test_what_comes_after_a_removed_adapter_is_tracked_wherever_it_lies_in_memory():
    """Keras keeps the ids of what it tracks: a new layer often has the id of one that is gone."""
    dense, switch = Dense(2), Switch()
    dense.build((None, 3))
    for _ in range(50):
        dense.add_adapter(switch, "shifted", Shifted(name="shifted"), (None, 3))
        assert len(dense.weights) == 3
        dense.remove_adapter("shifted")
        assert len(dense.weights) == 2
        gc.collect()
