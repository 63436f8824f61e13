"""Base of tasks whose model keeps a memory of the earlier text of each row of its batches."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor, Tensors
from kbert.tasks.task import Task
from kbert.training.step.row_state import exchange_rows, read_rows, row_variable, write_rows


class RemembersRows(Task):
    """Base of tasks with a row memory: row b of a batch continues row b of the previous batch.

    The memory is kept for each row of the global batch, on any number of devices, and saved with
    checkpoints; no gradient flows through it. An evaluation has a separate memory, empty at its
    start. A task gets a memory by calling `remember` in its constructor. Its `loss_terms` begins
    with `recall` and ends with `keep`.
    """

    state: keras.Variable | None = None
    _keeps = True

    def remember(self, shape: Sequence[int]) -> None:
        """Creates the memory, zeros of `shape` (…, B, W): W numbers per row of a global batch."""
        self.state = row_variable(shape, "state")
        self._evaluation_state = _EvaluationState(shape)

    def recall(self, batch: Tensors, training: bool) -> Any:
        """Returns the memory (…, b, W) of a batch's b rows on this device, W numbers for each.

        It is that of the training or, without `training`, of the evaluation. A row whose text
        begins here, where `begins` (b,) of the batch is 1, gets zeros.
        """
        rows = batch["begins"].shape[0]
        begins = ops.cast(batch["begins"], "bool")[:, None]  # (b, 1)
        memory = read_rows(self._kept(training), rows)
        return ops.stop_gradient(ops.where(begins, 0.0, memory))

    def keep(self, state: Tensor, training: bool) -> None:
        """Stores the memory (…, b, W) for the next batch, of the training or of an evaluation."""
        if self._keeps:
            write_rows(self._kept(training), ops.stop_gradient(ops.cast(state, "float32")))

    def loss_denominators(self, batch: Tensors) -> Tensor:
        # A graph prunes the model only if nothing is written. On JAX a training step has no values
        # of the evaluation's memory, so that of the training is read.
        self._keeps = False
        try:
            return super().loss_denominators(batch)
        finally:
            self._keeps = True

    def _kept(self, training: bool) -> Any:
        return self.state if training or not self._keeps else self._evaluation_state.value

    @property
    def metrics(self) -> list:
        """Everything that an evaluation resets: the metric sums, and the evaluation's memory."""
        metrics = super().metrics
        return [*metrics, self._evaluation_state] if metrics and self.state is not None else metrics

    def compile(
        self, optimizer: Any = None, *positional: Any, micro_batches: int = 1, **settings: Any
    ) -> None:
        """Like `kbert.training.TrainStep.compile`; a memory does not allow micro-batches."""
        if micro_batches != 1 and self.state is not None:
            raise ValueError(
                "`micro_batches` must be 1 for a model with a memory: use fewer or shorter "
                f"sequences instead. Received: micro_batches={micro_batches}"
            )
        super().compile(optimizer, *positional, micro_batches=micro_batches, **settings)

    def between_replicas(self, total: Callable) -> None:
        super().between_replicas(total)
        if self.state is not None:
            exchange_rows(self.state, total)


class _EvaluationState(keras.metrics.Metric):
    """Row memory of evaluations. A metric, as each evaluation resets its metrics to zeros."""

    def __init__(self, shape: Sequence[int], name: str = "evaluation_state") -> None:
        super().__init__(dtype="float32", name=name)
        self.value = row_variable(shape, name)

    def result(self) -> dict:
        """Returns nothing to log."""
        return {}
