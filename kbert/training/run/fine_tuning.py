"""A fine-tuning run inside Keras' `fit`: dev metrics, best weights, early stopping, resuming.

What a run writes under `model_dir`, where there is one:

    run.json             its settings, as they were at its first start
    steps.jsonl          every step's values, exactly; no step is missing or twice
    evaluations.jsonl    every evaluation's values
    checkpoints/         the last checkpoints (`kbert.training.run.checkpoints`)
    best/                the best weights that those checkpoints speak of
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from kbert import atomic
from kbert.training.run.best import BestWeights
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.fine_tuning_run import Callbacks, FineTuningHistory, Run
from kbert.training.run.log import RunLog, keras_verbosity
from kbert.training.run.settings import write_settings
from kbert.training.run.signals import stopping

KEPT_CHECKPOINTS = 2  # the newest, and the one before in case that is damaged


def fine_tune(
    task,
    make_dataset: Callable[[tuple[int, int, int]], Any],
    *,
    fit: Callable[..., Any],
    epochs: int,
    steps_per_epoch: int,
    evaluate: Callable[[], dict[str, float]] | None = None,
    metric: str | None = None,
    mode: str = "max",
    patience: int | None = None,
    keep_best: bool = True,
    evaluate_every: int | None = None,
    model_dir: str | os.PathLike | None = None,
    checkpoint_every: int | None = None,
    settings: dict | None = None,
    verbose: str | int = "auto",
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> FineTuningHistory:
    """Trains a compiled task for some epochs; at the end it has the weights that were best on dev.

    `evaluate` is asked at the end of each epoch, and every `evaluate_every` steps. Its values
    appear as `val_…` in the progress bar, in the history and to the callbacks.

    With a `model_dir`, a run that was ended (kill -9, SIGTERM, Ctrl-C) goes on where it stopped
    when it is started again, with the same losses, the same best weights and the same count of
    evaluations without progress as if nothing had happened. SIGTERM and Ctrl-C end it after the
    step that runs, with a checkpoint; a second one ends the process at once. A run that is at its
    end, or was ended early by `patience` or a callback, is only loaded. What state the caller's
    callbacks have is theirs to keep. Runs on one host, on as many devices as its strategy has.

    Args:
        task: A compiled `TrainStep` model.
        make_dataset: Gives the batches from a start (epoch, batch, 0) on, in order, over the ends
            of epochs. Batches hold `position`, the start of the next batch.
        fit: Keras' `fit` of the task, `(dataset, epochs=, initial_epoch=, …)`.
        epochs: Of the whole run.
        steps_per_epoch: Updates of an epoch.
        evaluate: Gives the task's values on held-out data, by name.
        metric: Name of the value that says which weights are best.
        mode: `"max"` or `"min"`: which is better.
        patience: Evaluations in a row without a better value that end the run; `None` for no end.
        keep_best: Whether the best weights are kept and set at the end, rather than the last.
        evaluate_every: Steps between evaluations within an epoch; `None` for none.
        model_dir: Where the run is written; the same folder means the same run. `None`: nothing
            is written, and nothing can be resumed.
        checkpoint_every: Steps between checkpoints within an epoch; the end of each has one.
        settings: What the run is, as JSON can hold it, to be written beside the checkpoints.
        verbose: 0 for silence, 1 for a progress bar, 2 for a line an epoch; `"auto"`: 1 in a
            terminal or a notebook, else 2.
        callbacks: Of Keras.

    Returns:
        Keras' history of losses and dev values by epoch, those before a restart included, and
        which step was the best.

    Raises:
        NonFiniteLoss: If a loss is NaN or infinite. The last checkpoint is from before.
        ValueError: If settings contradict each other, or `metric` is none of the values.
        RuntimeError: If the dataset ends early.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> from kbert.training.step.mixin import TrainStep
        >>> class Line(TrainStep, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.slope = self.add_weight(name="slope", initializer="zeros")
        ...         self.built = True
        ...     def loss_terms(self, batch, training):
        ...         error = keras.ops.square(self.slope * batch["x"] - batch["y"])
        ...         return {"error": (keras.ops.sum(error), keras.ops.size(error))}, {}
        >>> line = Line()
        >>> line.compile(keras.optimizers.SGD(0.5), run_eagerly=True)
        >>> batch = {"x": np.ones((4, 1), "float32"), "y": np.full((4, 1), 3.0, "float32")}
        >>> data = tf.data.Dataset.from_tensors(batch).repeat()
        >>> history = fine_tune(line, lambda start: data, fit=line.fit, epochs=3, verbose=0,
        ...                     steps_per_epoch=1, metric="slope",
        ...                     evaluate=lambda: {"slope": float(line.slope.value)})
        >>> history.history["val_slope"]
        [0.5, 1.0, 1.5]
        >>> print(history)
        trained for 3 steps; best slope 1.5 after step 3 (epoch 3 of 3), whose weights the task has
    """
    _check(epochs, steps_per_epoch, evaluate, metric, patience, keep_best, evaluate_every)
    _check_checkpoints(checkpoint_every, model_dir)
    folder = None if model_dir is None else Path(model_dir)
    best = None
    if evaluate is not None and metric is not None:
        best = BestWeights(metric, mode, keep=keep_best, folder=folder and folder / "best")
    checkpoints = folder and Checkpoints(folder / "checkpoints", KEPT_CHECKPOINTS)
    history = FineTuningHistory()
    run = Run(
        task,
        steps_per_epoch=steps_per_epoch,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        best=best,
        patience=patience,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
        steps=folder and RunLog(folder / "steps.jsonl"),
        evaluations=folder and RunLog(folder / "evaluations.jsonl"),
        history=history,
    )
    latest = _open(folder, checkpoints, run, settings) if folder else None
    shown = keras_verbosity(verbose)
    params = {"epochs": epochs, "steps": steps_per_epoch, "verbose": shown}
    listeners = Callbacks(run, [*callbacks, history], params)
    total = epochs * steps_per_epoch
    with _scope(task), stopping(run.stop) if folder else contextlib.nullcontext():
        start = (0, 0, 0) if latest is None else tuple(latest["position"])
        dataset = make_dataset(start)
        task.prepare(dataset.element_spec)
        if latest is not None:
            checkpoints.restore(task, latest["step"])
        while run.step < total and not run.is_over:
            epoch, done = divmod(run.step, steps_per_epoch)
            fit(
                dataset,
                initial_epoch=epoch,
                # An epoch that was begun before is gone through alone: it has fewer steps left.
                epochs=epoch + 1 if done else epochs,
                steps_per_epoch=steps_per_epoch - done,
                callbacks=listeners,
                verbose=0,
            )
            if done:
                dataset = make_dataset(tuple(task.data_position.numpy().tolist()))
        listeners.finish()
        history.close(run, epochs)
        if run.stopped_by is None and best is not None:
            best.restore(task)
        if verbose:
            print(history)
    return history


def _open(folder: Path, checkpoints: Checkpoints, run: Run, settings: dict | None) -> dict | None:
    """Makes the folder ready, and takes up what the newest checkpoint says of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.remove_leftovers(str(folder))
    checkpoints.remove_leftovers()
    latest = checkpoints.latest()
    write_settings(folder / "run.json", settings or {}, resumed=latest is not None)
    run.load(latest)
    return latest


def _scope(task):
    """TensorFlow's engine has a strategy of its own."""
    strategy = getattr(task, "distribute_strategy", None)
    return strategy.scope() if strategy else contextlib.nullcontext()


def _check(epochs, steps_per_epoch, evaluate, metric, patience, keep_best, evaluate_every) -> None:
    for name, value in (
        ("epochs", epochs),
        ("steps_per_epoch", steps_per_epoch),
        ("patience", patience),
        ("evaluate_every", evaluate_every),
    ):
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {value}")
    asked = {"metric": metric, "patience": patience, "evaluate_every": evaluate_every}
    asked = [f"{name}={value!r}" for name, value in asked.items() if value is not None]
    if evaluate is None and asked:
        raise ValueError(
            "`metric`, `patience` and `evaluate_every` need held-out data to evaluate on. "
            f"Received: {', '.join(asked)} without any"
        )
    if evaluate is not None and metric is None and (keep_best or patience is not None):
        raise ValueError(
            "`metric` must name the value that says which weights are best. "
            f"Received: None with keep_best={keep_best}, patience={patience}"
        )


def _check_checkpoints(checkpoint_every, model_dir) -> None:
    if checkpoint_every is not None and (checkpoint_every < 1 or model_dir is None):
        raise ValueError(
            "`checkpoint_every` must be at least 1, and checkpoints need a `model_dir`. "
            f"Received: checkpoint_every={checkpoint_every}, model_dir={model_dir!r}"
        )
