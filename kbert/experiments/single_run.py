"""One fine-tuning run, from a pretrained model to measured results; it resumes after a kill."""

import contextlib
import functools
import gc
import signal
import time
from typing import Any

from kbert.core.types import PathLike
from kbert.edit import adapters
from kbert.experiments.evaluation import (
    is_labelled,
    predict_and_score,
    tune_threshold,
    write_answers,
    write_submission,
)
from kbert.experiments.experiment import Experiment, Trainable
from kbert.experiments.folder import RunFolder
from kbert.experiments.results import Result
from kbert.experiments.settings import Settings
from kbert.io import atomic
from kbert.tasks import TableTask
from kbert.training.run.estimates import peak_memory
from kbert.training.run.record import SAME, OtherSettings, Resume
from kbert.training.run.signals import Interrupted, Terminated
from kbert.training.strategies import Strategy, make_strategy


class Stopped(Exception):
    """Raised when a signal ends a run; the same call resumes the run.

    Args:
        number: number of the signal.
        step: updates made before the last checkpoint.

    Attributes:
        signal: the signal, a `signal.Signals`.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(
            f"stopped by {self.signal.name} after step {step}; the same call resumes from there"
        )


def run(
    experiment: Trainable,
    output_dir: PathLike,
    *,
    verbose: str | int = "auto",
    resume: Resume = SAME,
    **settings: Any,
) -> Result:
    """Fine-tunes, keeps the best model and measures it; a finished run is only read.

    After a kill at any moment, the same call resumes and gives the same numbers. The files of a run
    are described in `kbert.experiments.folder`.

    Args:
        experiment: task, preset and data: an `Experiment`, or a `MultiTaskExperiment`.
        output_dir: folder of the run.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: "same" raises if the run was started with other data or settings; "changed" resumes
            with the new ones; names of settings allow only these to change.
        **settings: fields of `Settings` that differ from the task's defaults.

    Returns:
        The result; `print` shows its metrics.

    Raises:
        Stopped: SIGTERM or SIGINT (Ctrl-C) ended the run; a checkpoint is written.
        ValueError: the folder holds another run, or the data does not fit the task.
        RuntimeError: another process writes to the folder.
    """
    chosen = experiment.settings(**settings)
    return run_settings(experiment, output_dir, chosen, verbose=verbose, resume=resume)


@functools.cache
def devices(name: str, model_devices: int | None = None) -> Strategy:
    """Returns the strategy by which runs use devices; the first call makes it.

    With several hosts it must be made before any tensor. It is cached, because TensorFlow numbers
    collective operations anew for each strategy.

    Args:
        name: name of the strategy, see `kbert.training.strategies.make_strategy`.
        model_devices: number of devices that a model is split over; "model_parallel" requires it,
            "fully_sharded" accepts it.

    Raises:
        ValueError: there is no such strategy, or the devices do not fit it.
    """
    return make_strategy(name, model_devices)


def run_settings(
    experiment: Trainable,
    output_dir: PathLike,
    settings: Settings,
    *,
    verbose: str | int = "auto",
    resume: Resume = SAME,
) -> Result:
    """Fine-tunes like `run`, with a `Settings` object instead of keyword arguments.

    Args:
        experiment: task, preset and data.
        output_dir: folder of the run; only one process at a time may write to it.
        settings: settings of the run.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: what to do with an earlier run in the folder, see `run`.
    """
    strategy = devices(settings.strategy, settings.model_devices)
    with contextlib.ExitStack() as stack:
        if strategy.is_chief:
            stack.enter_context(atomic.refusing_others(output_dir))
        return _run_in(RunFolder(output_dir), experiment, settings, strategy, verbose, resume)


def _run_in(
    folder: RunFolder,
    experiment: Trainable,
    settings: Settings,
    strategy: Strategy,
    verbose: str | int,
    resume: Resume,
) -> Result:
    """Executes a run in a locked folder, or reads its result if it is finished.

    Args:
        folder: folder of the run.
        experiment: task, preset and data.
        settings: settings of the run.
        strategy: devices and hosts of the run.
        verbose: progress of training and prediction: "auto" shows it, 0 shows nothing.
        resume: what to do with an earlier run in the folder, see `run`.

    Raises:
        RuntimeError: the hosts do not see the same folder.
    """
    if strategy.is_chief:
        folder.begin({**experiment.identity(), "settings": settings.identity()}, resume)
    result = folder.result()
    if not strategy.agrees(result is not None):
        raise RuntimeError(
            "All hosts must see the same folder: put it on a shared file system. Received: "
            f"{folder.path}, on host {strategy.host_index}"
        )
    if result is not None:
        if strategy.is_chief:
            folder.remove_checkpoints()  # in case the process died before it removed them
        return result
    try:
        with strategy.scope():
            result = _run(experiment, folder, settings, strategy, verbose, resume)
    except OtherSettings:  # only the training knows its steps per epoch
        if strategy.is_chief:
            folder.undo_begin()
        raise
    finally:
        gc.collect()  # a model and its graphs are reference cycles
    strategy.agrees(result.steps)  # wait until all hosts have read the files that are removed now
    if strategy.is_chief:
        folder.finish(result)
    return result


def _run(
    experiment: Trainable,
    folder: RunFolder,
    settings: Settings,
    strategy: Strategy,
    verbose: str | int,
    resume: Resume,
) -> Result:
    """Trains, measures and saves the best model; every host computes, only the chief writes.

    Arguments as in `_run_in`.

    Raises:
        Stopped: a signal ended the training.
    """
    writes = strategy.is_chief
    verbose = verbose if writes else 0
    task = experiment.make_task(settings)
    if writes:
        experiment.write_rows(task, settings, verbose)
    strategy.agrees(0)  # wait until the rows are written
    start = time.perf_counter()
    try:
        history = experiment.fit(task, settings, folder.training, verbose, resume)
    except (Interrupted, Terminated) as stopped:
        raise Stopped(stopped.signal, stopped.step) from None
    seconds = time.perf_counter() - start
    task = experiment.finish(task, settings)
    measured = {
        name: _measure(part, own, data, folder.part(name) if writes else None, verbose)
        for name, (data, part, own) in experiment.parts(task, settings).items()
    }
    if writes:
        task.save_to_preset(folder.preset)
    single = measured.get("", {})
    thresholds = {name: text for name, part in measured.items() if (text := part["threshold"])}
    tested = {name: part["test"] for name, part in measured.items() if part["test"] is not None}
    return Result(
        folder=folder.path,
        metric=experiment.main_metric(task, settings),
        dev=experiment.joined(task, {name: part["dev"] for name, part in measured.items()}) or {},
        test=experiment.joined(task, tested),
        best_value=history.best_value,
        best_step=history.best_step,
        best_loss=history.best_loss,
        steps=history.step,
        seconds=seconds,
        confusion=single.get("confusion"),
        threshold=", ".join(f"{name} {x}".strip() for name, x in thresholds.items()) or None,
        peak_memory=peak_memory(),
        settings=settings.to_dict(),
        tasks={} if single else measured,
    )


def _measure(
    task: TableTask,
    settings: Settings,
    experiment: Experiment,
    folder: RunFolder | None,
    verbose: str | int,
) -> dict[str, Any]:
    """Measures a trained task, and writes its answers, reports and adapter.

    Args:
        task: the task.
        settings: settings of the run and the task.
        experiment: the task's data.
        folder: folder of these files; None = nothing is written.
        verbose: progress of prediction: "auto" shows it, 0 shows nothing.

    Returns:
        `dev` and `test`, the metrics; `threshold` and `confusion`, as in `Result`.
    """
    options: dict[str, Any] = {"batch_size": settings.batch_size, "verbose": verbose}
    if folder is not None:
        folder.path.mkdir(parents=True, exist_ok=True)
    threshold = None
    if settings.tune_threshold:
        threshold = tune_threshold(task, experiment.dev, **options)
    dev = predict_and_score(task, experiment.dev, **options)
    test = measure_test(task, experiment, folder, options)
    if folder is not None:
        dev.write(folder.path, "dev", experiment.dev)
        if settings.adapter is not None:
            adapters.save(task, folder.path / "adapter")
    return {
        "dev": dev.metrics,
        "test": test,
        "threshold": threshold,
        "confusion": dev.confusion,
    }


def measure_test(
    task: TableTask, experiment: Experiment, folder: RunFolder | None, options: dict[str, Any]
) -> dict[str, float] | None:
    """Measures the test data, or predicts it if it has no labels.

    Args:
        task: the trained task.
        experiment: task, preset and data.
        folder: folder for the answers; None = nothing is written. For GLUE and SuperGLUE, answers
            to unlabelled data are also written in the form of its server.
        options: arguments of `predict_and_score`: `batch_size` and `verbose`.

    Returns:
        The metrics; None without labelled test data.
    """
    if experiment.test is None:
        return None
    if is_labelled(task.columns, experiment.test):
        test = predict_and_score(task, experiment.test, **options)
        if folder is not None:
            test.write(folder.path, "test", experiment.test)
        return test.metrics
    if folder is None:
        return None
    answers = task.predict(experiment.test, **options)
    write_answers(
        folder.path / "test_answers.jsonl",
        task.columns,
        experiment.test,
        task.file_answers(task).written(answers),
    )
    if experiment.named.benchmark:
        write_submission(experiment.named, experiment.test, answers, folder.path)
    return None
