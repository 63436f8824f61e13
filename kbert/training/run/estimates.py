"""Estimates of the memory and time of a run, from a few real steps."""

import dataclasses
import math
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Sequence

import keras

from kbert.core.late import tf
from kbert.core.types import Logs
from kbert.training.run.log import duration, human
from kbert.training.run.objective import Objective
from kbert.training.run.phases import Phase
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import Strategy, make_strategy

WARM_STEPS, TIMED_STEPS = 2, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Memory and time that a run needs.

    Attributes:
        weights: Bytes of the variables of the task, on each device.
        slots: Bytes of the optimizer's moments, on each device.
        gradients: Bytes of the gradients, on each device.
        peak: Peak memory in bytes while the steps ran: of the first accelerator, or, without one,
            of the whole process, including Python.
        on_accelerator: Whether `peak` is that of an accelerator.
        seconds_per_step: Seconds per step of each phase, in order.
        seconds: Seconds of the whole run, without evaluations and checkpoints.
    """

    weights: int
    slots: int
    gradients: int
    peak: int
    on_accelerator: bool
    seconds_per_step: tuple[float, ...]
    seconds: float

    def summary(self, phases: Sequence[Phase]) -> str:
        """Returns the estimate as text: memory, time per phase (the estimated ones) and in all."""
        fixed = self.weights + self.slots + self.gradients
        peak_owner = "accelerator" if self.on_accelerator else "process"
        lines = [
            f"memory: weights {human(self.weights)}B + optimizer {human(self.slots)}B + gradients "
            f"{human(self.gradients)}B = {human(fixed)}B on each device; "
            f"measured peak of the {peak_owner} {human(self.peak)}B",
        ]
        lines += [
            f"time: {phase.steps:,} steps of {phase.shape}, {seconds * 1000:.3g} ms each "
            f"({human(phase.tokens_per_step / seconds)} tokens/s): "
            f"{duration(phase.steps * seconds)}"
            for phase, seconds in zip(phases, self.seconds_per_step, strict=True)
        ]
        lines.append(f"time: {duration(self.seconds)} in all")
        return "\n".join(lines)


def estimate(
    task: TrainStep,
    objective: Objective,
    phases: Sequence[Phase],
    strategy: Strategy | None = None,
) -> Estimate:
    """Estimates a run by training a few steps of each phase; do not use the task afterwards.

    A run that does not fit into memory fails here as it would later.

    Args:
        task: A compiled task, see `kbert.training.Run`.
        objective: Objective that makes the batches.
        phases: Phases of the run.
        strategy: Devices of the run; one device by default.

    Returns:
        The estimate.
    """
    strategy = strategy or make_strategy()
    seconds = []
    with strategy.scope():
        for phase in phases:
            clock = _Clock()
            dataset = strategy.distribute(objective.batches(phase, (0, 0, 0)))
            steps = WARM_STEPS + TIMED_STEPS
            # Not `task.fit`, which would compile the task again, with its usual optimizer.
            TrainStep.fit(
                task, dataset, epochs=1, steps_per_epoch=steps, callbacks=[clock], verbose=0
            )
            seconds.append(clock.seconds_per_step)
    on_accelerator = _accelerator_peak() is not None
    return Estimate(
        weights=bytes_per_device(task.variables),
        slots=bytes_per_device(task.optimizer.variables),
        gradients=bytes_per_device(task.trainable_variables),
        peak=peak_memory(),
        on_accelerator=on_accelerator,
        seconds_per_step=tuple(seconds),
        seconds=sum(p.steps * s for p, s in zip(phases, seconds, strict=True)),
    )


def peak_memory() -> int:
    """Returns the peak memory in bytes, of the first accelerator or, without one, the process."""
    peak = _accelerator_peak()
    return _process_peak() if peak is None else peak


def bytes_per_device(variables: Iterable[keras.Variable]) -> int:
    """Returns the bytes that variables take on one device, which may store only parts of them.

    Example:
        >>> bytes_per_device([keras.Variable([[1.0, 2.0]])])
        8
    """

    def shape(variable: keras.Variable) -> Sequence[int]:
        if keras.backend.backend() != "jax":
            return variable.shape
        return variable.value.sharding.shard_shape(variable.shape)

    return sum(math.prod(shape(v)) * tf.as_dtype(v.dtype).size for v in variables)


class _Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs: Logs = None) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        float(logs["loss"])  # wait until the device is done
        self.times.append(time.perf_counter())

    @property
    def seconds_per_step(self) -> float:
        steps = zip(self.times[WARM_STEPS - 1 :], self.times[WARM_STEPS:], strict=False)
        return statistics.median(end - begin for begin, end in steps)


def _accelerator_peak() -> int | None:
    """Returns the peak memory in bytes of the first accelerator; None if there is none."""
    if keras.backend.backend() == "jax":
        import jax

        statistics_of_device = jax.local_devices()[0].memory_stats()
        return statistics_of_device and statistics_of_device.get("peak_bytes_in_use")
    gpus = tf.config.list_logical_devices("GPU")
    return tf.config.experimental.get_memory_info(gpus[0].name)["peak"] if gpus else None


def _process_peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
