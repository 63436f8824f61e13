"""The tasks of several runs as one: an ensemble of them, or a soup of their weights."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbert.experiments.evaluation import predict_and_score, tune_threshold
from kbert.experiments.experiment import Experiment, Trainable
from kbert.experiments.folder import RunFolder
from kbert.experiments.settings import Settings
from kbert.experiments.single_run import measure_test
from kbert.io.paths import Path
from kbert.tasks import Ensemble, TableTask, soup
from kbert.tasks.fine_tuning.ensemble import check_averages

# (presets of the runs, folder of the combined model) -> {"dev": its metrics, "test": its metrics}
Combine = Callable[[Sequence[Path], Path], dict[str, Any]]


def combinations(
    experiment: Trainable, settings: Settings, verbose: str | int, **wanted: bool
) -> dict[str, Combine]:
    """Returns the functions that write and measure the combined models.

    Args:
        experiment: task and data of the runs.
        settings: settings of the runs; their seed does not matter.
        verbose: progress of prediction: "auto" shows it, 0 shows nothing.
        **wanted: `ensemble` and `soup`: whether to make it.

    Raises:
        ValueError: the runs are on several tasks, or an ensemble is wanted of tasks whose answers
            have no mean.
    """
    if not any(wanted.values()):
        return {}
    if not isinstance(experiment, Experiment):
        raise ValueError(
            "An ensemble or a soup requires runs on a single task. Received: "
            f"{', '.join(name for name in wanted if wanted[name])} for a "
            f"{type(experiment).__name__}"
        )
    if wanted["ensemble"]:
        try:
            check_averages(experiment.task_class)  # before the runs
        except TypeError as error:  # here the kind of task is a setting, such as --task
            raise ValueError(str(error)) from None
    options: dict[str, Any] = {"batch_size": settings.batch_size, "verbose": verbose}
    greedy = functools.partial(
        soup, validation_data=experiment.dev, metric=settings.metric, **options
    )
    makers: Mapping[str, Callable] = {"ensemble": Ensemble, "soup": greedy}

    def combine(name: str, presets: Sequence[Path], folder: Path) -> dict[str, Any]:
        kind = experiment.task_class
        task: TableTask = makers[name](
            [kind.from_preset(preset, settings.precision) for preset in presets]
        )
        if settings.tune_threshold:
            tune_threshold(task, experiment.dev, **options)
        dev = predict_and_score(task, experiment.dev, **options)
        task.save_to_preset(folder)
        dev.write(folder, "dev", experiment.dev)
        test = measure_test(task, experiment, RunFolder(folder), options)
        return {"dev": dev.metrics, "test": test}

    return {name: functools.partial(combine, name) for name in makers if wanted[name]}
