"""The one loop of every run: pretraining goes through phases, fine-tuning through epochs.

Killed at any moment, a run that has a folder resumes exactly: see `kbert.training.run.files` for
what it writes there.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.training.hosts import make_hosts
from kbert.training.run.background import Background
from kbert.training.run.best import BestWeights
from kbert.training.run.files import RunFiles
from kbert.training.run.history import History
from kbert.training.run.log import ProgressLine
from kbert.training.run.monitor import Evaluate, Monitor
from kbert.training.run.phases import Epochs, Phase, Start, phases_of, tokens_until
from kbert.training.run.record import SAME, Resume
from kbert.training.run.signals import stopping
from kbert.training.step.keras_arguments import check_callbacks
from kbert.training.step.mixin import TrainStep
from kbert.training.step.verbosity import keras_verbosity
from kbert.training.strategies import Strategy, current_strategy

LINE = "line"


def train(
    task: TrainStep,
    make_dataset: Callable[[Any, Start], tf.data.Dataset],
    model_dir: PathLike | None,
    phases: Sequence[Phase] | Epochs,
    *,
    strategy: Strategy | None = None,
    make_evaluation_dataset: Callable[[Any], tf.data.Dataset] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    metric: str | None = None,
    mode: str = "max",
    patience: int | None = None,
    keep_best: bool = True,
    checkpoint_every: int | None = 1000,
    checkpoint_minutes: float | None = None,
    keep_checkpoints: int = 3,
    extra_scores: Evaluate | None = None,
    tensorboard: bool = False,
    settings: Mapping[str, Any] | None = None,
    unchecked: Collection[str] = (),
    resume: Resume = SAME,
    verbose: str | int = LINE,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> History:
    """Trains a compiled task to the end of its plan, from where an earlier call stopped.

    The plan is a sequence of phases, each of batches of one shape, or epochs of the same data. A
    checkpoint is written at the end of a run and of each epoch, on SIGTERM and SIGINT (Ctrl-C; a
    second one ends the process at once), and as often as requested, by a background thread.
    The losses of a run that was killed and started again are those of one that was not, and so are
    its best weights and its count of evaluations without progress; what state the caller's
    callbacks have is theirs to keep. Of a run that is at its end the task gets the weights, as if
    the call had trained it. One process at a time writes to a folder (`kbert.io.atomic`).

    A phase begins at the window after the last one read. The rest of that window is skipped,
    and if the last batch had spilled into the next window, those few rows come again.

    Args:
        task: A compiled `TrainStep` model, made in `strategy.scope()`.
        make_dataset: Gives the batches of a phase, whose `done` says how many of them were before,
            or of `Epochs`, from a start on; endless or long enough, over the ends of epochs.
            Batches hold `position`. Every host gives its own rows of the global batch.
        model_dir: Where everything is written; the same folder means the same run. `None`: nothing
            is written, nothing can be resumed, and signals do what they did before.
        phases: The plan: phases in order, or `Epochs`.
        strategy: Devices; by default those of the scope the task was made in.
        make_evaluation_dataset: Gives held-out batches of a phase's shape, the same each time.
        evaluate: Gives the values on held-out data itself, by name, instead. Every host calls it;
            the chief's values count.
        evaluate_every: Steps between evaluations; the end of the run, and of each epoch, is always
            evaluated.
        metric: Name of the value that says which weights are best; `None` keeps none.
        mode: `"max"` or `"min"`: which value is better.
        patience: Evaluations in a row without a better value that end the run; `None` for no end.
        keep_best: Whether the best weights are kept and set at the end, rather than the last. Of
            equal values the smaller loss is best. Weights that a callback sets at the end of
            training stay: those of Keras' `EarlyStopping(restore_best_weights=True)`, or others.
        checkpoint_every: Steps between checkpoints.
        checkpoint_minutes: Minutes between checkpoints.
        keep_checkpoints: How many of the newest are kept. One that a signal caused does not count
            once the run is resumed.
        extra_scores: Measures the task at every evaluation by more than losses: name → number,
            none of them a loss's or a metric's. Called on the chief alone.
        tensorboard: Whether to write curves for TensorBoard.
        settings: What the run is, as JSON can hold it, to be written next to the checkpoints.
        unchecked: Names of those settings that no number depends on.
        resume: Which settings may have changed when a run resumes: `"same"` for none, `"changed"`
            for any, or their names.
        verbose: `"line"` for a line with speed and time left (of phases), or Keras': 0 for silence,
            1 for a progress bar, 2 for a line an epoch, `"auto"` for 1 in a terminal or a notebook,
            else 2.
        callbacks: Of Keras. A phase is an epoch to them. While one has an attribute `may_be_best`
            that is False, evaluations do not count for the best weights.

    Returns:
        The history of the run, those steps and epochs before a restart included.

    Raises:
        NonFiniteLoss: If a loss is NaN or infinite. The last checkpoint is from before, and the
            weights are not moved by such a step.
        ValueError: If settings contradict each other or those that the run was started with, or
            `metric` is none of the values.
        RuntimeError: If a dataset ends early, another process writes to the folder, hosts do not
            see the same checkpoints, or one of them ended.

    Example:
        >>> import numpy as np
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
        >>> plan = Epochs(epochs=3, steps_per_epoch=1)
        >>> history = train(line, lambda plan, start: data, None, plan, verbose=0, metric="slope",
        ...                 evaluate=lambda: {"slope": float(line.slope.value)})
        >>> history.history["val_slope"]
        [0.5, 1.0, 1.5]
        >>> print(history)
        trained for 3 steps; best slope 1.5 after step 3 (epoch 3 of 3), whose weights the task has
    """
    plan = (phases,) if isinstance(phases, Epochs) else tuple(phases)
    check_callbacks(task, callbacks, in_run=True)
    is_evaluated = evaluate is not None or make_evaluation_dataset is not None
    _check_average(task)
    _check(is_evaluated, metric, patience, evaluate_every, checkpoint_every, verbose, plan)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_scope(task) if strategy is None else strategy.scope())
        strategy = strategy or current_strategy()
        for stage in plan:
            if isinstance(stage, Phase) and stage.batch_size is not None:
                strategy.check_batch(stage.batch_size, task.micro_batches)
        hosts = make_hosts(strategy.host_index, strategy.num_hosts)
        files: RunFiles | None = None
        latest: dict[str, Any] | None = None
        if model_dir is not None:
            if strategy.is_chief:
                stack.enter_context(atomic.refusing_others(model_dir))
            files = RunFiles(
                model_dir,
                keep_checkpoints=keep_checkpoints,
                is_chief=strategy.is_chief,
                tensorboard=tensorboard,
            )
            # Epochs may be fewer than there were: of a longer run too, the best weights are taken.
            end = None if isinstance(phases, Epochs) else plan[-1].end
            latest = files.open(settings or {}, unchecked, resume, end)
        best = None
        if metric is not None:
            folder = None if files is None else files.best
            best = BestWeights(metric, mode, keep=keep_best, folder=folder)
        progress = None
        if verbose == LINE and strategy.is_chief:
            last = plan[-1].end
            progress = ProgressLine(last, tokens_until(phases_of(plan), last))
        history = History()
        background = stack.enter_context(Background())
        monitor = Monitor(
            task,
            plan,
            callbacks=callbacks,
            history=history,
            files=files,
            background=background,
            strategy=strategy,
            hosts=hosts,
            progress=progress,
            keras_verbose=0 if verbose == LINE else keras_verbosity(verbose),
            evaluate_every=evaluate_every,
            checkpoint_every=checkpoint_every,
            checkpoint_minutes=checkpoint_minutes,
            best=best,
            patience=patience,
        )
        if files is not None:
            stack.enter_context(hosts.listening())
            stack.enter_context(stopping(monitor.stop))
        if latest is not None:
            monitor.load(latest)
            _warn_of_lost_state(callbacks, monitor)

        def held_out(stage: Phase | Epochs) -> Evaluate | None:
            if evaluate is not None:
                return lambda: hosts.from_chief(evaluate)
            if make_evaluation_dataset is None:
                return None
            dataset = strategy.distribute(make_evaluation_dataset(stage))
            more = extra_scores if strategy.is_chief else None
            return lambda: hosts.from_chief(
                lambda: _evaluate(task, dataset) | (more() if more else {})
            )

        first_step = monitor.step
        try:
            _run(task, plan, make_dataset, held_out, monitor, files, latest, strategy)
        except Exception as error:
            if not hosts.lost_another(error):
                raise
            raise RuntimeError(
                f"Another host of this run ended, or cannot be reached, after step {monitor.step}. "
                "Started again on all hosts, the run resumes. "
                f"{files.checkpoints.describe() if files is not None else ''}"
                f"Received on host {strategy.host_index} of {strategy.num_hosts}: "
                f"{_last_line(error)}"
            ) from error
        background.wait()
        history.step = monitor.step
        history.stopped_by, history.ended_by = monitor.stopped_by, monitor.ended_by
        history.weights_by = monitor.weights_by
        if files is not None and strategy.is_chief:
            history.steps, history.evaluations = files.steps.read(), files.evaluations.read()
        history.close(best, trained=monitor.step > first_step, place=_place(plan, best))
        if best is not None and not history.interrupted and monitor.weights_by is None:
            best.restore(task)
        if verbose != LINE and verbose:
            print(history)
        elif progress is not None and monitor.step == first_step:
            progress.note(str(history))
        return history


def _run(
    task: TrainStep,
    plan: Sequence[Phase | Epochs],
    make_dataset: Callable[[Any, Start], tf.data.Dataset],
    held_out: Callable[[Phase | Epochs], Evaluate | None],
    monitor: Monitor,
    files: RunFiles | None,
    latest: dict[str, Any] | None,
    strategy: Strategy,
) -> None:
    """Every stage that is not over, one `fit` after the other."""
    start: Start = (0, 0, 0)
    if latest is not None and not monitor.is_over:
        start = tuple(latest["position"])
    if monitor.is_over:  # what follows a run wants its weights
        _check_end(monitor.step, plan)
        _resume(task, make_dataset(plan[-1], start), files, latest, strategy)
        return
    is_resumed, first_epoch = False, 0
    for stage in plan:
        if monitor.step == stage.first_step > 0:
            start = (start[0], start[1] + 1, 0)
        if monitor.step < stage.end and not monitor.is_over:
            monitor.begin_stage(stage, first_epoch, held_out(stage))
        while monitor.step < stage.end and not monitor.is_over:
            dataset = make_dataset(_stage_from(stage, monitor.step), start)
            if not is_resumed:
                _resume(task, dataset, files, latest, strategy)
                is_resumed = True
            epoch, done = divmod(monitor.step - stage.first_step, stage.steps_per_epoch)
            TrainStep.fit(
                task,
                strategy.distribute(dataset),
                initial_epoch=first_epoch + epoch,
                # An epoch that began before the restart has its own `fit`: fewer steps are left.
                epochs=first_epoch + (epoch + 1 if done else stage.epochs),
                steps_per_epoch=stage.steps_per_epoch - done,
                callbacks=monitor,
                verbose=0,
            )
            start = tuple(task.data_position.numpy().tolist())
        first_epoch += stage.epochs
    monitor.finish()


def _stage_from(stage: Phase | Epochs, step: int) -> Phase | Epochs:
    """The stage, with what of it is done: what a batch holds may depend on its number."""
    if isinstance(stage, Epochs):
        return stage
    return dataclasses.replace(stage, done=step - stage.first_step)


def _resume(
    task: TrainStep,
    dataset: tf.data.Dataset,
    files: RunFiles | None,
    latest: dict[str, Any] | None,
    strategy: Strategy,
) -> None:
    """Creates the slots of the optimizer and sets everything to what it was."""
    task.prepare(dataset.element_spec)
    if files is None:
        return
    step = 0 if latest is None else latest["step"]
    if not strategy.agrees(step):
        raise RuntimeError(
            "All hosts must see the same checkpoints: put the folder on a file system they share. "
            f"Received: {files.folder}, with step {step} on host {strategy.host_index}"
        )
    if latest is not None:
        files.checkpoints.restore(task, step)


def _evaluate(
    task: TrainStep, dataset: tf.data.Dataset | tf.distribute.DistributedDataset
) -> dict[str, float]:
    with warnings.catch_warnings():
        # Held-out batches do end; Keras warns where it could not foresee when.
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        values = task.evaluate(dataset, verbose=0, return_dict=True)
    return {name: float(value) for name, value in values.items()}


def _warn_of_lost_state(callbacks: Sequence[keras.callbacks.Callback], monitor: Monitor) -> None:
    names = [type(x).__name__ for x in callbacks if getattr(x, "restore_best_weights", False)]
    if names and not monitor.is_over:
        warnings.warn(
            f"{', '.join(names)} knows the epochs since step {monitor.step}, where the run "
            "resumes, and restores the best weights of those alone. What `metric` and `patience` "
            "of `fit` choose is of the whole run",
            stacklevel=3,
        )


def _check_average(task: TrainStep) -> None:
    if getattr(task.optimizer, "use_ema", False):
        raise ValueError(
            "Keras' `use_ema` makes the average the weights at the end of every `fit`, of which a "
            "run takes several, and evaluates other weights than it keeps: compile with "
            "kbert.training.AdamW(rate, ema=0.99), and call use_moving_average(task) when the run "
            f"is over. Received: {type(task.optimizer).__name__} with use_ema=True"
        )


def _last_line(error: Exception) -> str:
    """Of an engine's message, what says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "aborted" in line or "failed" in line]
    return (telling or lines or [type(error).__name__])[0]


def _check_end(step: int, plan: Sequence[Phase | Epochs]) -> None:
    if step > plan[-1].end:
        warnings.warn(
            f"The run ends at step {plan[-1].end}, but its checkpoint is that of step {step}: the "
            "task has the weights of that step, and nothing is trained",
            stacklevel=4,
        )


def _place(plan: Sequence[Phase | Epochs], best: BestWeights | None) -> str:
    """The epoch of the best step, as text."""
    stage = plan[0]
    if best is None or best.step is None or not isinstance(stage, Epochs):
        return ""
    return f" (epoch {-(-best.step // stage.steps_per_epoch)} of {stage.epochs})"


def _scope(task: TrainStep) -> contextlib.AbstractContextManager[Any]:
    """TensorFlow's engine has a strategy of its own."""
    strategy = getattr(task, "distribute_strategy", None)
    return strategy.scope() if strategy else contextlib.nullcontext()


def _check(
    is_evaluated: bool,
    metric: str | None,
    patience: int | None,
    evaluate_every: int | None,
    checkpoint_every: int | None,
    verbose: str | int,
    plan: Sequence[Phase | Epochs],
) -> None:
    at_least_one = {
        "patience": patience,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
    }
    for name, value in at_least_one.items():
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {value}")
    asked = {"metric": metric, "patience": patience, "evaluate_every": evaluate_every}
    asked = [f"{name}={value!r}" for name, value in asked.items() if value is not None]
    if not is_evaluated and asked:
        raise ValueError(
            "`metric`, `patience` and `evaluate_every` need held-out data to evaluate on. "
            f"Received: {', '.join(asked)} without any"
        )
    if metric is None and patience is not None:
        raise ValueError(
            "`metric` must name the value that `patience` waits for. "
            f"Received: None with patience={patience}"
        )
    if verbose == LINE and not all(isinstance(stage, Phase) for stage in plan):
        raise ValueError(
            'verbose="line" is for phases, whose tokens are known; epochs have Keras\' own. '
            f"Received: {plan[0]}"
        )
