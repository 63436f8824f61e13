"""Loss scaling for float16, so that small gradients do not underflow."""

import keras
from keras import ops

from kbert.core.types import Tensor

FIRST = 2.0**15
DOUBLE_AFTER = 2000


class LossScale(keras.metrics.Metric):
    """Dynamic loss scale: the loss is multiplied by it, and the gradients are divided by it.

    A step whose gradients overflow updates nothing and halves the scale. After `DOUBLE_AFTER` steps
    without overflow the scale doubles. (Micikevicius et al. 2018, section 3.2,
    https://arxiv.org/abs/1710.03740.) It is not a measurement: it is kept over epochs and saved in
    checkpoints. An overflow at a scale of 1 is not caused by scaling.

    Example:
        >>> scale = LossScale()
        >>> scale.update_state(ops.convert_to_tensor(False))
        >>> float(scale.value.numpy())
        16384.0
    """

    def __init__(self, name: str = "loss_scale") -> None:
        super().__init__(dtype="float32", name=name)
        with keras.name_scope(name):
            self.value = self._add("value", keras.initializers.Constant(FIRST), "float32")
            self.good_steps = self._add("good_steps", "zeros", "int32")

    @staticmethod
    def _add(name: str, initializer: keras.initializers.Initializer | str, dtype: str) -> Tensor:
        """Creates a scalar variable that is not trained."""
        # As in `DataPosition`: replicas agree, and each writes its own copy.
        return keras.Variable(
            initializer=initializer,
            shape=(),
            dtype=dtype,
            trainable=False,
            aggregation="only_first_replica",
            synchronization="on_read",
            name=name,
        )

    def update_state(self, finite: Tensor) -> None:
        """Updates the scale after a step; `finite`: whether losses and gradients were finite."""
        value, good = self.value * 1.0, self.good_steps + 1
        good = ops.where(finite, good, ops.zeros_like(good))
        doubles = good >= DOUBLE_AFTER
        grown = ops.where(doubles, value * 2.0, value)
        self.value.assign(ops.where(finite, grown, ops.maximum(value / 2.0, ops.ones_like(value))))
        self.good_steps.assign(ops.where(doubles, ops.zeros_like(good), good))

    def reset_state(self) -> None:
        """Does nothing: the scale is kept over epochs and evaluations."""

    def result(self) -> dict[str, Tensor]:
        """Returns nothing: the step logs the scale."""
        return {}
