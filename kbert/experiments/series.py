"""Several runs of one experiment: over seeds, or over the grid of BERT's paper.

Each run has a folder. Finished runs are not repeated, so a series resumes where it was stopped.
Only the best model is kept, in `preset/` of the series' folder.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbert.core.types import PathLike
from kbert.experiments.experiment import Experiment
from kbert.experiments.folder import RunFolder
from kbert.experiments.results import Result, Series
from kbert.experiments.settings import BATCH_SIZES, EPOCHS, LEARNING_RATES, Settings
from kbert.experiments.single_run import run_settings
from kbert.io import atomic
from kbert.io.paths import Path, move_tree, remove_tree
from kbert.training.run.record import SAME, Resume

MakeRun = Callable[[Settings, Path], Result]


def seeds(
    experiment: Experiment,
    output_dir: PathLike,
    *,
    count: int = 5,
    verbose: str | int = "auto",
    resume: Resume = SAME,
    **settings: Any,
) -> Series:
    """Executes runs that differ only in the seed of the head, of dropout and of the data order.

    Args:
        experiment: task, preset and data.
        output_dir: folder of the series; each run gets a folder in it.
        count: number of runs; the seeds are `seed` (0 unless given), `seed` + 1 and so on.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: "same" raises if a run was started with other data or settings; "changed" resumes
            with the new ones; names of settings allow only these to change.
        **settings: fields of `Settings`.

    Returns:
        The series; `print` shows its table with mean and standard deviation.
    """
    if count < 1:
        raise ValueError(f"`count` must be at least 1. Received: {count}")
    base = experiment.settings(**settings)
    points = {f"seed-{n}": base.replace(seed=n) for n in range(base.seed, base.seed + count)}
    return run_series(points, _runner(experiment, verbose, resume), output_dir, names=("seed",))


def grid(
    experiment: Experiment,
    output_dir: PathLike,
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    epochs: Sequence[int] = EPOCHS,
    verbose: str | int = "auto",
    resume: Resume = SAME,
    **settings: Any,
) -> Series:
    """Executes a run for every combination; keeps the best model on the development data.

    Args:
        experiment: task, preset and data.
        output_dir: folder of the series; each run gets a folder in it.
        learning_rates: learning rates to try.
        batch_sizes: batch sizes to try.
        epochs: numbers of epochs to try.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: "same" raises if a run was started with other data or settings; "changed" resumes
            with the new ones; names of settings allow only these to change.
        **settings: other fields of `Settings`.

    Returns:
        The series; `print` shows its table, the best run first.
    """
    base = experiment.settings(**settings)
    points = {
        f"lr-{rate:g}-batch-{size}-epochs-{n}": base.replace(
            learning_rate=rate, batch_size=size, epochs=n
        )
        for rate, size, n in itertools.product(learning_rates, batch_sizes, epochs)
    }
    names = ("learning_rate", "batch_size", "epochs")
    return run_series(points, _runner(experiment, verbose, resume), output_dir, names=names)


def _runner(experiment: Experiment, verbose: str | int, resume: Resume) -> MakeRun:
    """Returns a function that executes the run of an experiment in a folder; see `run_settings`."""

    def make_run(settings: Settings, folder: Path) -> Result:
        return run_settings(experiment, folder, settings, verbose=verbose, resume=resume)

    return make_run


def run_series(
    points: Mapping[str, Settings],
    make_run: MakeRun,
    output_dir: PathLike,
    *,
    names: tuple[str, ...],
) -> Series:
    """Calls `make_run` for each run, keeps the best model and writes `series.json`.

    Args:
        points: name of a run's folder -> its settings.
        make_run: function that executes a run, or returns the result of a finished one.
        output_dir: folder of the series.
        names: the settings that the runs differ in.

    Returns:
        The series.

    Raises:
        ValueError: the folder holds finished runs that are not requested, it is the folder of a
            single run, or a run has the strategy "multi_worker".
        RuntimeError: another process writes to the folder.
    """
    if several := [s.strategy for s in points.values() if s.strategy == "multi_worker"]:
        raise ValueError(
            "A series must run on one host: give each host different seeds or settings. Received: "
            f"{len(several)} runs with strategy='multi_worker'"
        )
    with atomic.refusing_others(output_dir):
        return _run_series(points, make_run, Path(output_dir), names)


def _run_series(
    points: Mapping[str, Settings], make_run: MakeRun, folder: Path, names: tuple[str, ...]
) -> Series:
    """Executes the runs of a series in a locked folder; arguments as in `run_series`.

    Raises:
        ValueError: the folder is that of a single run, or holds finished runs that are not in
            `points`.
    """
    if (folder / "run.json").exists():
        raise ValueError(
            f"A series requires a separate folder. Received: {folder}, the folder of a run"
        )
    other_runs = sorted(p.parent.name for p in folder.glob("*/results.json"))
    other_runs = [name for name in other_runs if name not in points]
    if other_runs:
        raise ValueError(
            f"{folder} holds runs that were not requested; request them too, or choose "
            f"another folder. Received: {', '.join(other_runs)}"
        )
    results = []
    for number, (name, settings) in enumerate(points.items(), 1):
        is_finished = RunFolder(folder / name).result() is not None
        print(f"run {number} of {len(points)}: {name}{', finished before' if is_finished else ''}")
        results.append(make_run(settings, folder / name))
        series = Series(folder=folder, names=names, results=tuple(results))
        _remove_presets(series)
    _publish_best(series)
    return series


def _remove_presets(series: Series) -> None:
    """Removes the models of all runs but the best so far."""
    for result in series.results:
        if result is not series.best:
            remove_tree(result.preset)


def _publish_best(series: Series) -> None:
    """Moves the best run's model to the folder of the series, and writes `series.json`."""
    if series.best.preset.exists():
        remove_tree(series.preset)
        move_tree(series.best.preset, series.preset)
    content: dict[str, Any] = {"best": series.best.folder.name, "rows": series.rows()}
    if series.names == ("seed",):
        content["summary"] = {
            data: {n: {"mean": m, "sd": sd} for n, (m, sd) in series.summary(data).items()}
            for data in ("dev", "test")
        }
    path = series.folder / "series.json"
    atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())
