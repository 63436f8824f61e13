"""What callbacks share that set ever more weights of kernels to zero while a model is trained."""

import keras
from absl import logging

from kbert.tasks import FineTuningTask
from kbert.types import Logs


class GradualPruning(keras.callbacks.Callback):
    """A callback of `fit` with a share of zeros that grows: after s updates it is

        f + (i - f) · (1 - (s - begin) / (end - begin))³

    where i is the `initial_sparsity` and f the `sparsity` (Zhu & Gupta 2017,
    https://arxiv.org/abs/1710.01878, section 3). Which weights become zeros, a subclass chooses.

    Args:
        sparsity: share of zeros at the end, above 0 and below 1.
        end_step: updates after which it is reached, at most those of the run.
        begin_step: updates before the first weights are chosen.
        initial_sparsity: share of zeros then.
        frequency: updates between two choices.

    Raises:
        ValueError: a value out of range; in `fit`: steps beyond those of the run, or another
            backend than TensorFlow.
    """

    def __init__(
        self,
        sparsity: float,
        *,
        end_step: int,
        begin_step: int = 0,
        initial_sparsity: float = 0.0,
        frequency: int = 1,
    ) -> None:
        super().__init__()
        if not 0 < sparsity < 1 or not 0 <= initial_sparsity <= sparsity:
            raise ValueError(
                "`sparsity` must be above 0 and below 1, and `initial_sparsity` from 0 to it. "
                f"Received: sparsity={sparsity}, initial_sparsity={initial_sparsity}"
            )
        if not 0 <= begin_step < end_step or frequency < 1:
            raise ValueError(
                "Weights are chosen from `begin_step` on, 0 or more, to an `end_step` after it, "
                "every `frequency` updates, 1 or more. Received: "
                f"begin_step={begin_step}, end_step={end_step}, frequency={frequency}"
            )
        self.sparsity, self.initial_sparsity = sparsity, initial_sparsity
        self.begin_step, self.end_step, self.frequency = begin_step, end_step, frequency
        # Whether the sparsity is reached. `train` reads it: weights of before are not the best.
        self.may_be_best = False

    def sparsity_after(self, step: int) -> float:
        """The share of zeros that is wanted after so many updates.

        Example:
            >>> pruning = GradualPruning(0.8, begin_step=10, end_step=30)
            >>> [round(pruning.sparsity_after(step), 3) for step in (0, 10, 20, 30, 40)]
            [0.0, 0.0, 0.7, 0.8, 0.8]
        """
        if step < self.begin_step:
            return 0.0
        left = 1 - min(1.0, (step - self.begin_step) / (self.end_step - self.begin_step))
        return self.sparsity + (self.initial_sparsity - self.sparsity) * left**3

    def is_due(self, step: int) -> bool:
        """Whether weights are chosen after so many updates: by that number alone.

        So a run that resumes chooses when the uninterrupted one would.
        """
        return step >= self.begin_step and not (step - self.begin_step) % self.frequency

    @property
    def step(self) -> int:
        """Updates that the optimizer has made."""
        return int(self.model.optimizer.iterations.numpy())

    def on_train_begin(self, logs: Logs = None) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Kernels are pruned in training by TensorFlow's engine: KERAS_BACKEND=tensorflow. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        self._check_length()
        self.may_be_best = False

    def on_train_end(self, logs: Logs = None) -> None:
        if not self.may_be_best:
            logging.warning(
                "The run ended after %d updates, before the end of the pruning after %d: the "
                "kernels have fewer zeros than %g of their weights",
                *(self.step, self.end_step, self.sparsity),
            )

    def _check_length(self) -> None:
        epochs, steps = (self.params.get(name) for name in ("epochs", "steps"))
        if not isinstance(self.model, FineTuningTask) or not epochs or not steps or self.step:
            return  # phases of pretraining differ in length, and earlier updates may be of this run
        if epochs * steps <= self.end_step:
            raise ValueError(
                "The last weights are chosen before the end of a run, so that what is left can "
                f"recover: `end_step` must be below its {epochs * steps} updates. "
                f"Received: end_step={self.end_step}"
            )
