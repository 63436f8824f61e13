"""State that a step updates: running sums of every loss and metric, and the data position.

Both are Keras metrics, so `fit` resets, carries (JAX) and reads them on every backend.
"""

from collections.abc import Sequence

import keras
from keras import ops

from kbert.core.types import Tensor


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divides sums elementwise; a denominator of 0 (nothing counted) gives 0, NaN stays NaN."""
    counted = denominator != 0
    return ops.where(counted, numerator / ops.where(counted, denominator, 1.0), 0.0)


class Ratios(keras.metrics.Metric):
    """Accumulates pairs (numerator, denominator); a result is the quotient of the two sums.

    So a result is the mean over everything counted, not the mean of batch means: a batch with twice
    the masked tokens has twice the weight. Each replica adds its own share; the shares are summed
    when the value is read.

    Args:
        names: One name per pair, in the order of the rows passed to `update_state`.
        name: Name of the metric object.

    Example:
        >>> ratios = Ratios(["loss", "accuracy"])
        >>> ratios.update_state([[6.0, 2.0], [1.0, 2.0]])
        >>> ratios.update_state([[0.0, 1.0], [1.0, 2.0]])
        >>> {name: float(value) for name, value in ratios.result().items()}
        {'loss': 2.0, 'accuracy': 0.5}
    """

    def __init__(self, names: Sequence[str], name: str = "ratios") -> None:
        super().__init__(dtype="float32", name=name)
        self.names = tuple(names)
        self.sums = self.add_variable(
            shape=(len(self.names), 2), initializer="zeros", dtype="float32", name="sums"
        )

    def update_state(self, pairs: Tensor) -> None:
        """Adds `pairs` (K, 2): one row (numerator, denominator) for each of the K names."""
        self.sums.assign(self.sums + ops.convert_to_tensor(pairs, dtype="float32"))

    def result(self) -> dict[str, Tensor]:
        """Returns name → quotient of the sums; 0 if nothing was counted."""
        sums = ops.convert_to_tensor(self.sums)
        return {name: divide(sums[i, 0], sums[i, 1]) for i, name in enumerate(self.names)}

    def counted(self) -> dict[str, bool]:
        """Returns name → whether anything was counted since the last reset (read on the host)."""
        sums = ops.convert_to_numpy(self.sums)
        return {name: bool(sums[i, 1] > 0) for i, name in enumerate(self.names)}


class DataPosition(keras.metrics.Metric):
    """Position where the data resumes after the last batch trained on: (epoch, window, row).

    The step stores the position that came with the batch, so prefetching cannot falsify it. It is
    not a measurement: `reset_state` does not change it.
    """

    def __init__(self, name: str = "data_position") -> None:
        super().__init__(dtype="int32", name=name)
        with keras.name_scope(name):
            # Every replica sees the same position; "on_read" lets each store it without a barrier.
            self.value = keras.Variable(
                initializer="zeros",
                shape=(3,),
                dtype="int32",
                trainable=False,
                aggregation="only_first_replica",
                synchronization="on_read",
                name="value",
            )

    def update_state(self, position: Tensor) -> None:
        """Stores a position: three integers (epoch, window, row)."""
        self.value.assign(position)

    def reset_state(self) -> None:
        """Does nothing: the position is kept over epochs and evaluations."""

    def result(self) -> dict[str, Tensor]:
        """Returns nothing to log."""
        return {}
