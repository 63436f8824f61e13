"""Averages of a run's weights: of its last checkpoints, or a moving average over all steps.

The mean of the last checkpoints often translates better than the last one (Vaswani et al. 2017,
section 6.1: the last 5 of the base model, the last 20 of the big one,
https://arxiv.org/abs/1706.03762). `kbert.soup` averages several runs.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from kbert.core.types import PathLike
from kbert.training.run.checkpoints import Checkpoints, named_state, set_variables
from kbert.training.step.mixin import TrainStep


def mean_arrays(tables: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the mean of each array over tables with the same names, float64.

    Args:
        tables: name -> array, for one model each; they are read one after the other.

    Example:
        >>> mean_arrays([{"bias": np.array([1.0, 2.0])}, {"bias": np.array([3.0, 2.0])}])
        {'bias': array([2., 2.])}
    """
    sums: dict[str, np.ndarray] = {}
    count = 0
    for table in tables:
        count += 1
        for name, array in table.items():
            # In 64 bits, so that the sum of equal weights is exactly a multiple of them.
            sums[name] = sums.get(name, 0.0) + array.astype(np.float64)
    return {name: total / count for name, total in sums.items()}


def average_checkpoints(task: TrainStep, folder: PathLike, last: int = 5) -> list[int]:
    """Sets a task's weights to the mean of those of a run's last checkpoints.

    The optimizer, the dropout seeds, the data position and the files stay unchanged: training
    resumes from the last checkpoint, not from the mean. At most two models are in memory, whatever
    `last` is.

    Args:
        task: The compiled task of the run, for example after `train`.
        folder: Folder `checkpoints` in the folder of the run.
        last: Number of the newest checkpoints to average.

    Returns:
        Steps of the averaged checkpoints, ascending.

    Raises:
        ValueError: There are fewer checkpoints, one is damaged, or they do not fit the task. The
            weights of the task then stay unchanged.

    Example:
        >>> import tempfile, keras
        >>> from kbert.training import TrainStep
        >>> class Line(TrainStep, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = self.add_weight(shape=(1,), name="slope")
        ...         self.built = True
        ...     def loss_terms(self, batch, training):
        ...         error = batch["y"] - self.slope * batch["x"]
        ...         return {"error": (keras.ops.sum(error**2), 1.0)}, {}
        >>> task, folder = Line(), tempfile.mkdtemp()
        >>> task.compile("sgd")
        >>> batch = {"x": keras.ops.ones((1,)), "y": keras.ops.ones((1,))}
        >>> task.prepare(batch)
        >>> for step, slope in enumerate([1.0, 2.0, 6.0]):
        ...     _ = task.slope.assign([slope])
        ...     Checkpoints(folder).save(task, step)
        >>> average_checkpoints(task, folder, last=2), float(task.slope[0])
        ([1, 2], 4.0)
    """
    if last < 1:
        raise ValueError(f"`last` must be at least 1. Received: {last}")
    checkpoints = Checkpoints(folder)
    steps = checkpoints.steps()[-last:]
    if len(steps) < last:
        raise ValueError(
            f"The mean of {last} checkpoints requires as many: keep more of them, or save them "
            f"more often. Received: {len(steps)} in {folder}, of steps {steps}"
        )
    weights = {k: v for k, v in named_state(task).items() if k.startswith("weights/")}

    def stored(step: int) -> dict[str, np.ndarray]:
        checkpoints.info(step)  # raises if it is damaged
        return {k: x for k, x in checkpoints.read(step).items() if k.startswith("weights/")}

    means = mean_arrays(map(stored, steps))
    set_variables(weights, means, f"mean of the checkpoints of steps {steps} in {folder}")
    return steps


def use_moving_average(task: TrainStep) -> None:
    """Sets a task's weights to the moving average that its optimizer kept of them.

    Weights that the optimizer did not train, such as frozen ones, stay as they are, and so does the
    optimizer. A checkpoint has both the weights and the average; training
    resumes from the weights.

    Args:
        task: The trained task, compiled with an optimizer with `ema`.

    Raises:
        ValueError: The optimizer keeps no average, has made no update yet, or trained weights that
            the task no longer has. No weight is changed then.

    Example:
        >>> import keras
        >>> from kbert.training import AdamW, TrainStep
        >>> class Line(TrainStep, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = self.add_weight(shape=(1, 1), name="slope", initializer="ones")
        ...         self.built = True
        ...     def loss_terms(self, batch, training):
        ...         error = batch["y"] - self.slope * batch["x"]
        ...         return {"error": (keras.ops.sum(error**2), 1.0)}, {}
        >>> task = Line()
        >>> task.compile(AdamW(0.1, weight_decay=0.0, ema=0.5))
        >>> slopes = []
        >>> for gradient in (1.0, -1.0):
        ...     task.optimizer.apply([keras.ops.full((1, 1), gradient)], [task.slope])
        ...     slopes.append(float(task.slope[0, 0]))
        >>> use_moving_average(task)
        >>> round(float(task.slope[0, 0]) - sum(slopes) / 2, 6)
        0.0
    """
    averages = getattr(task.optimizer, "averages", None)
    if not averages or not int(task.optimizer.iterations):
        raise ValueError(
            "A moving average requires an optimizer with `ema` and at least one update. "
            f"Received: {type(task.optimizer).__name__}, {int(task.optimizer.iterations)} update(s)"
        )
    # Not the task's trainable variables: with `fit(freeze=…)` the optimizer has averages of some.
    trained = task.optimizer._trainable_variables
    weights = {id(variable) for variable in task.variables}
    if missing := [variable.path for variable in trained if id(variable) not in weights]:
        raise ValueError(
            "The optimizer must have trained weights that the task still has, such as no adapter "
            f"that was removed. Received: averages of {', '.join(missing[:3])}, {len(missing)} "
            "missing in all"
        )
    for variable, average in zip(trained, averages, strict=True):
        variable.assign(average)
