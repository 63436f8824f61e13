"""Several runs of one experiment: over seeds, or over the grid of BERT's paper.

Each run has a folder. Finished runs are not repeated, so a series resumes where it was stopped.
Only the best model is kept, in `preset/` of the series' folder.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kbert.core.types import PathLike
from kbert.experiments.combining import Combine, combinations
from kbert.experiments.experiment import Trainable
from kbert.experiments.folder import RunFolder
from kbert.experiments.results import Result, Series
from kbert.experiments.settings import BATCH_SIZES, EPOCHS, LEARNING_RATES, Settings
from kbert.experiments.single_run import run_settings
from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import Path, move_tree, remove_tree
from kbert.training.run.record import SAME, Resume

MakeRun = Callable[[Settings, Path], Result]


def seeds(
    experiment: Trainable,
    output_dir: PathLike,
    *,
    count: int = 5,
    ensemble: bool = False,
    soup: bool = False,
    verbose: str | int = "auto",
    resume: Resume = SAME,
    **settings: Any,
) -> Series:
    """Executes runs that differ only in the seed of the head, of dropout and of the data order.

    Args:
        experiment: task, preset and data.
        output_dir: folder of the series; each run gets a folder in it.
        count: number of runs; the seeds are `seed` (0 unless given), `seed` + 1 and so on.
        ensemble: whether to write the runs as a `kbert.Ensemble` to `ensemble/`, and to measure it.
        soup: whether to write the greedy `kbert.soup` of the runs, by its metric on the development
            data, to `soup/`, and to measure it.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: "same" raises if a run was started with other data or settings; "changed" resumes
            with the new ones; names of settings allow only these to change.
        **settings: fields of `Settings`.

    Returns:
        The series; `print` shows its table with mean and standard deviation.

    Raises:
        ValueError: `count` is too small, or the folder holds finished runs of which only the best
            model was kept, and an ensemble or a soup requires all.
    """
    if count < 1 + (ensemble or soup):
        raise ValueError(
            "`count` must be at least 1, and at least 2 for an ensemble or a soup. "
            f"Received: count={count}, ensemble={ensemble}, soup={soup}"
        )
    base = experiment.settings(**settings)
    RunFolder(output_dir).check_sources(experiment.identity())
    points = {f"seed-{n}": base.replace(seed=n) for n in range(base.seed, base.seed + count)}
    return run_series(
        points,
        _runner(experiment, verbose, resume),
        output_dir,
        names=("seed",),
        combine=combinations(experiment, base, verbose, ensemble=ensemble, soup=soup),
    )


def grid(
    experiment: Trainable,
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
    RunFolder(output_dir).check_sources(experiment.identity())
    points = {
        f"lr-{rate:g}-batch-{size}-epochs-{n}": base.replace(
            learning_rate=rate, batch_size=size, epochs=n
        )
        for rate, size, n in itertools.product(learning_rates, batch_sizes, epochs)
    }
    names = ("learning_rate", "batch_size", "epochs")
    return run_series(points, _runner(experiment, verbose, resume), output_dir, names=names)


def _runner(experiment: Trainable, verbose: str | int, resume: Resume) -> MakeRun:
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
    combine: Mapping[str, Combine] = MappingProxyType({}),
) -> Series:
    """Calls `make_run` for each run, keeps the best model and writes `series.json`.

    Args:
        points: name of a run's folder -> its settings.
        make_run: function that executes a run, or returns the result of a finished one.
        output_dir: folder of the series.
        names: the settings that the runs differ in.
        combine: name of a subfolder -> function that writes a model made of all runs to it.

    Returns:
        The series.

    Raises:
        ValueError: the folder holds finished runs that are not requested, it is the folder of a
            single run, a run has the strategy "multi_worker", or a model to combine was removed.
        RuntimeError: another process writes to the folder.
    """
    if several := [s.strategy for s in points.values() if s.strategy == "multi_worker"]:
        raise ValueError(
            "A series must run on one host: give each host different seeds or settings. Received: "
            f"{len(several)} runs with strategy='multi_worker'"
        )
    with atomic.refusing_others(output_dir):
        return _run_series(points, make_run, Path(output_dir), names, combine)


def _run_series(
    points: Mapping[str, Settings],
    make_run: MakeRun,
    folder: Path,
    names: tuple[str, ...],
    combine: Mapping[str, Combine],
) -> Series:
    """Executes the runs of a series in a locked folder; arguments as in `run_series`.

    Raises:
        ValueError: the folder is that of a single run, holds finished runs that are not in
            `points`, or lacks a model to combine.
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
    combined = _combined_before(folder, list(points))
    left = [name for name in combine if name not in combined]
    results = []
    for number, (name, settings) in enumerate(points.items(), 1):
        is_finished = RunFolder(folder / name).result() is not None
        if left and is_finished and not (folder / name / "preset").exists():
            raise ValueError(
                f"{' and '.join(left)} requires the models of all runs, of which a finished series "
                f"keeps only the best: choose another folder. Received: {folder / name}, whose "
                "model was removed"
            )
        print(f"run {number} of {len(points)}: {name}{', finished before' if is_finished else ''}")
        results.append(make_run(settings, folder / name))
        series = Series(folder=folder, names=names, results=tuple(results), combined=combined)
        if not left:
            _remove_presets(series)
    presets = [result.preset for result in results]
    for name in left:
        print(f"{name} of {len(presets)} runs")
        combined[name] = {"runs": list(points), **combine[name](presets, folder / name)}
    series = dataclasses.replace(series, combined=combined)
    # First of all: models that are removed cannot be combined again after a kill.
    _write(series)
    _remove_presets(series)
    _publish_best(series)
    return series


def _combined_before(folder: Path, runs: list[str]) -> dict[str, dict[str, Any]]:
    """Returns the `combined` of an earlier series that were made of these runs and still exist."""
    path = folder / "series.json"
    before = read_json(path).get("combined", {}) if path.exists() else {}
    return {
        name: scores
        for name, scores in before.items()
        if scores["runs"] == runs and (folder / name).exists()
    }


def _remove_presets(series: Series) -> None:
    """Removes the models of all runs but the best so far."""
    for result in series.results:
        if result is not series.best:
            remove_tree(result.preset)


def _publish_best(series: Series) -> None:
    """Moves the best run's model to the folder of the series."""
    if series.best.preset.exists():
        remove_tree(series.preset)
        move_tree(series.best.preset, series.preset)


def _write(series: Series) -> None:
    """Writes `series.json`."""
    content: dict[str, Any] = {"best": series.best.folder.name, "rows": series.rows()}
    if series.names == ("seed",):
        content["summary"] = {
            data: {n: {"mean": m, "sd": sd} for n, (m, sd) in series.summary(data).items()}
            for data in ("dev", "test")
        }
    if series.combined:
        content["combined"] = dict(series.combined)
    path = series.folder / "series.json"
    atomic.write(path, (json.dumps(content, indent=2) + "\n").encode())
