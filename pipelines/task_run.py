"""Runs of experiments on a task: from the parsed flags to the best model."""

import logging as python_logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags, logging

import kbert
from kbert import experiments
from kbert.checkpoints.preset import MULTI_TASK_FILE, task_folders, write_several
from kbert.io.paths import Path

from . import option_flags
from .outputs import check_outputs
from .pictures import draw_confusion
from .task_flags import SeriesOptions, settings

_COMBINED = ("ensemble", "soup")  # flags for models that are made of all seeds' runs

if TYPE_CHECKING:
    from kbert.experiments import Result, Series
    from kbert.experiments.experiment import Trainable


def make_runs(
    experiment: "Trainable",
    options: flags.FlagValues,
    also: "Callable[[Result | Series], Any]" = lambda outcome: None,
) -> None:
    """Executes the run or the series that the flags describe, or shows a preview (--dry_run).

    If a signal stops a run, the process ends with the signal's status.

    Args:
        experiment: task, model and data.
        options: the parsed flags.
        also: function that is called with the outcome, for further reports.
    """
    try:
        _make_runs(experiment, options, also)
    except experiments.Stopped as stopped:
        print(stopped)
        sys.exit(128 + stopped.signal)  # the status of a signal, as in a shell


def _make_runs(
    experiment: "Trainable", options: flags.FlagValues, also: "Callable[[Result | Series], Any]"
) -> None:
    """Executes, reports and publishes the runs; arguments as in `make_runs`."""
    # Every run of a series traces its own graphs. TensorFlow counts them together and would warn.
    python_logging.getLogger("tensorflow").setLevel("ERROR")
    if options.seeds and options.grid:
        raise ValueError("--seeds and --grid cannot be combined")
    grid = [name for name in option_flags.flag_names(SeriesOptions) if name.startswith("grid_")]
    if options.grid:
        own = ("learning_rate", "batch_size", "epochs")
        option_flags.refuse(options, own, "with --grid: use --grid_learning_rates and so on")
    else:
        option_flags.refuse(options, grid, "without --grid")
    combined = [f"--{name}" for name in _COMBINED if options[name].value]
    if combined and (options.seeds or 1) < 2:
        raise ValueError(
            "--ensemble and --soup require the models of several runs, --seeds=2 or more. "
            f"Received: {', '.join(combined)} with --seeds={options.seeds}"
        )
    given_settings = settings(options)
    if not experiments.devices(options.strategy, options.model_devices).is_chief:
        _run(experiment, options, given_settings)
        return
    check_outputs(options, experiment.kind)
    print(experiment.summary())
    if options.dry_run:
        print(experiments.preview(experiment, **given_settings))
        return
    folder = Path(options.output_dir)
    finished = is_finished(options)
    outcome = _run(experiment, options, given_settings)
    if finished:
        print(f"{folder} already holds finished results:")
    best = outcome if isinstance(outcome, experiments.Result) else outcome.best
    _report(best, folder)
    if isinstance(outcome, experiments.Series):
        print(outcome)
        print(f"best: {best.folder.name}")
        for name in outcome.combined:
            print(f"{name}: {folder / name}")
    also(outcome)
    print(f"model: {outcome.preset}")
    _publish(outcome.preset, options)


def is_finished(options: flags.FlagValues) -> bool:
    """Returns whether --output_dir has the results of a finished run or series."""
    folder = Path(options.output_dir or "")
    return any((folder / name).exists() for name in ("results.json", "series.json"))


def _run(experiment: "Trainable", options: flags.FlagValues, given: dict) -> "Result | Series":
    """Executes the run, or the series of --seeds or --grid.

    Args:
        experiment: task, model and data.
        options: the parsed flags.
        given: settings whose flags are given.
    """
    folder = options.output_dir
    given = {**given, "resume": tuple(options.allow_changes)}
    if options.seeds:
        given |= {name: options[name].value for name in _COMBINED}
        return experiments.seeds(experiment, folder, count=options.seeds, **given)
    if options.grid:
        series = option_flags.read(SeriesOptions, options).arguments()
        tried = {k.removeprefix("grid_"): x for k, x in series.items() if k.startswith("grid_")}
        return experiments.grid(experiment, folder, **tried, **given)
    return experiments.run(experiment, folder, **given)


def _report(result: "Result", folder: Path) -> None:
    """Prints the report by class and the table of results, and draws the confusion matrix.

    Args:
        result: result of the best run.
        folder: folder for the picture.
    """
    run = experiments.RunFolder(result.folder)
    for name, confusion in _confusions(result).items():
        report = run.part(name).path / "dev_report.txt"
        if report.exists():
            title = f"{name}\n" if name else ""
            print(f"\n{title}{report.read_text(encoding='utf-8')}")
        draw_confusion(confusion, run.part(name).path if name else folder)
    print(f"{result}\n")
    print(result.summary())


def _confusions(result: "Result") -> dict[str, dict | None]:
    """Returns name of a task -> its confusion matrix; the name is empty if there is one task."""
    if not result.tasks:
        return {"": result.confusion}
    return {name: part["confusion"] for name, part in result.tasks.items()}


def _publish(preset: Path, options: flags.FlagValues) -> None:
    """Saves the best model to --preset_dir, and exports it to --export_dir.

    Args:
        preset: folder of the best model.
        options: the parsed flags.
    """
    if not (options.preset_dir or options.export_dir):
        return
    folders = task_folders(preset)
    tasks = {name: kbert.tasks.Task.from_preset(folder) for name, folder in folders.items()}
    if options.preset_dir:  # not copied: files of an older model there, of another kind, must go
        if "" in tasks:
            tasks[""].save_to_preset(options.preset_dir)
        else:
            write_several(options.preset_dir, MULTI_TASK_FILE, tasks)
        print(f"model written to {options.preset_dir}")
    if options.export_dir:
        logging.set_verbosity(logging.WARNING)  # hides TensorFlow's notices about its files
        for name, task in tasks.items():
            print(f"SavedModel written to {task.export(Path(options.export_dir) / name)}")
