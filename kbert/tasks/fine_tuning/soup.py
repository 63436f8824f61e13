"""Model soups: the average of the weights of several fine-tuned tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging

from kbert import inference
from kbert.core.finite import nan_last
from kbert.models.weights import get_parts, set_parts
from kbert.tasks.fine_tuning.ensemble import check_alike
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.training.run.averaging import mean_arrays
from kbert.training.run.settings import is_lower_better

AnyTask = TypeVar("AnyTask", bound=TableTask)


def soup(
    tasks: Sequence[AnyTask],
    *,
    validation_data: Any = None,
    metric: str | None = None,
    batch_size: int = inference.BATCH_SIZE,
    verbose: str | int = "auto",
) -> AnyTask:
    """Returns a task whose weights are the mean of those of tasks fine-tuned from one start.

    (Wortsman et al. 2022, https://arxiv.org/abs/2203.05482: "uniform soup", and with
    `validation_data` "greedy soup", recipe 1.) It costs no more to run than one of them. The runs
    should differ in data order or settings only: means of heads that were initialised differently
    can be worse than each. The greedy soup is never worse on `validation_data` than the best task.

    Args:
        tasks: two or more tasks of one class, with the same labels, tokenizer, settings of rows and
            `feature_layers`, and with weights of the same shapes.
        validation_data: labelled examples, as in `evaluate`. The tasks are added in the order of
            their scores on them, each only if the score of the mean does not fall. None = the mean
            of all tasks.
        metric: name of the score; None = that by which `fit` selects the best weights.
        batch_size: maximum number of rows in a batch of an evaluation.
        verbose: progress bars of evaluations: "auto", 0 or 1.

    Returns:
        A new task of the same class and with the settings of the first, not compiled.

    Raises:
        TypeError: a task is not fine-tuned, or is an ensemble.
        ValueError: there are fewer than two tasks, they do not fit together, or there is no score
            of this name.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "lunch"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> runs = [kbert.TextClassifier(kbert.Encoder(config), tokenizer, ["ham", "spam"])
        ...         for _ in range(2)]
        >>> kernels = [task.classifier.dense.kernel.numpy() for task in (*runs, soup(runs))]
        >>> bool(abs(kernels[2] - (kernels[0] + kernels[1]) / 2).max() < 1e-6)
        True
    """
    check_alike(tasks, "A soup")
    layers = [getattr(task, "feature_layers", None) for task in tasks]
    if other := [x for x in layers if x != layers[0]]:
        raise ValueError(
            "A soup requires tasks whose heads read the same layers. Received: "
            f"feature_layers={layers[0]!r} and {other[0]!r}"
        )
    tables = [get_parts(task.parts) for task in tasks]
    _check_shapes(tables)
    mean = _copy(tasks[0])
    if validation_data is None:
        _set(mean, tables)
        return mean
    data = mean.as_table(validation_data)
    metric = metric or mean.main_metric(data)

    def score(task: TableTask) -> float:
        values = task.evaluate(data, batch_size=batch_size, verbose=verbose)
        if metric not in values:
            raise ValueError(
                f"`metric` must be one of {', '.join(values)}. Received: metric={metric!r}"
            )
        return nan_last(-values[metric] if is_lower_better(metric) else values[metric])

    scores = [score(task) for task in tasks]
    best, *order = sorted(range(len(tasks)), key=lambda number: -scores[number])
    chosen, highest = [best], scores[best]
    for number in order:
        _set(mean, [tables[i] for i in (*chosen, number)])
        if (value := score(mean)) >= highest:
            chosen, highest = [*chosen, number], value
    _set(mean, [tables[i] for i in chosen])
    logging.info("A soup of %d of %d tasks: %s %.4f", len(chosen), len(tasks), metric, abs(highest))
    return mean


def _set(task: TableTask, tables: Sequence[dict[str, np.ndarray]]) -> None:
    """Sets a task's weights to the mean of those in `tables`."""
    means = {name: x.astype(tables[0][name].dtype) for name, x in mean_arrays(tables).items()}
    set_parts(task.parts, means, "the mean of several tasks")


def _copy(task: AnyTask) -> AnyTask:
    """Returns a task of the same class, settings, edits and weights, by way of a preset."""
    with tempfile.TemporaryDirectory() as folder:
        task.save_to_preset(folder)
        return type(task).from_preset(folder, task.dtype_policy)


def _check_shapes(tables: Sequence[dict[str, np.ndarray]]) -> None:
    """Raises ValueError unless all tables have the same names and shapes."""
    first, *others = ({name: x.shape for name, x in table.items()} for table in tables)
    for shapes in others:
        if shapes != first:
            names = sorted(k for k in {*first, *shapes} if first.get(k) != shapes.get(k))
            raise ValueError(
                "A soup requires tasks with weights of the same names and shapes. Received: "
                f"{names[0]} of shape {first.get(names[0])} and {shapes.get(names[0])}, "
                f"{len(names)} differences in all"
            )
