"""A layer's slot gives back all that it took."""

import gc

import keras

from kbert.layers import Dense
from kbert.layers.slots import Switch
from tests.harness import assert_close, to_numpy


class Shifted(keras.layers.Layer):
    def build(self, input_shape):
        self.shift = self.add_weight(name="shift", shape=(2,), initializer="ones")

    def call(self, x, training=False):
        return self.shift


def test_what_comes_after_a_removed_edit_is_tracked_wherever_it_lies_in_memory():
    """Keras keeps the ids of what it tracks: a new layer often has the id of one that is gone."""
    dense, switch = Dense(2), Switch()
    dense.build((None, 3))
    for _ in range(50):
        dense.add_edit(Shifted(name="shifted"), (None, 3), switch)
        assert len(dense.weights) == 3
        dense.remove_edit("shifted")
        assert len(dense.weights) == 2
        gc.collect()


def test_those_without_a_switch_stay_where_one_is_chosen():
    class Doubled(keras.layers.Layer):
        def call(self, rows, kernel, training=False):
            return rows, 2.0 * kernel

    dense, switch = Dense(2, initializer_range=None), Switch()
    x = keras.ops.ones((1, 3))
    dense.build((None, 3))
    once = to_numpy(dense(x))
    dense.add_edit(Doubled(name="doubled"), (3, 2))
    for name in ("first", "second"):
        dense.add_edit(Shifted(name=name), (None, 3), switch)
    assert [edit.name for edit in dense.edits] == ["doubled"]
    assert dense.chosen is None
    assert_close(to_numpy(dense(x)), 2 * once, 1e-6)
    dense.second.shift.assign([5.0, 5.0])
    switch.active = "first"
    assert_close(to_numpy(dense(x)), 2 * once + 1, 1e-6)
    with switch.using("second"):
        assert_close(to_numpy(dense(x)), 2 * once + 5, 1e-6)
    with switch.using("elsewhere"):  # of another layer's slot
        assert_close(to_numpy(dense(x)), 2 * once, 1e-6)
    dense.remove_edit("doubled")
    dense.remove_edit("doubled")  # gone already
    assert_close(to_numpy(dense(x)), once + 1, 1e-6)
