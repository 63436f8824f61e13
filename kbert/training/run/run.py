"""A whole run: phases, evaluation, checkpoints, log; killed at any moment, it resumes exactly.

What a run writes under `model_dir`:

    run.json             its settings, as they were at its first start
    steps.jsonl          every step's values, exactly; no step is missing or twice
    evaluations.jsonl    every evaluation's values
    checkpoints/         the last few checkpoints (`kbert.training.run.checkpoints`)
    tensorboard/         curves, on request
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from kbert import atomic
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.curves import Curves
from kbert.training.run.log import ProgressLine, RunLog
from kbert.training.run.monitor import Monitor
from kbert.training.run.phases import Phase, tokens_until
from kbert.training.run.settings import write_settings
from kbert.training.run.signals import stopping
from kbert.training.strategies import Strategy, make_strategy

# A start is (epoch, window, row): where the data goes on, as batches carry it in `position`.
Start = tuple[int, int, int]
# What the progress line shows, of whatever a task logs.
SHOWN = (
    *("loss", "mlm_loss", "mlm_accuracy", "nsp_accuracy", "sop_accuracy", "sbo_accuracy"),
    *("rtd_loss", "rtd_precision", "rtd_recall"),
    # Of a student, see kbert.distillation.terms.
    *("soft_targets", "agreement", "hidden_cosine", "embeddings", "hidden_states"),
    *("attention_scores", "attention_relation", "query_relation", "key_relation"),
    "value_relation",
    *("forward_perplexity", "backward_perplexity", "perplexity", "bleu"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """What became of a run.

    Attributes:
        step: Updates made, those before a restart included.
        stopped_by: Number of the signal that ended it early, if one did; the same call goes on.
        steps: Every step's values so far, in order: `step`, `loss`, the task's terms, … Only on
            the chief, who writes them; elsewhere none.
        evaluations: The same of every evaluation.
    """

    step: int
    stopped_by: int | None
    steps: list[dict]
    evaluations: list[dict]

    @property
    def interrupted(self) -> bool:
        """Whether it was ended early."""
        return self.stopped_by is not None


def train(
    task,
    make_dataset: Callable[[Phase, Start], tf.data.Dataset],
    model_dir: str | os.PathLike,
    phases: Sequence[Phase],
    *,
    strategy: Strategy | None = None,
    make_evaluation_dataset: Callable[[Phase], tf.data.Dataset] | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = 1000,
    checkpoint_minutes: float | None = None,
    keep_checkpoints: int = 3,
    extra_scores: Callable[[], dict[str, float]] | None = None,
    tensorboard: bool = False,
    settings: dict | None = None,
) -> History:
    """Trains a compiled task to the end of its phases, from where an earlier call stopped.

    A checkpoint is written at the end of a run, on SIGTERM and SIGINT (Ctrl-C; a second one ends
    the process at once), and as often as asked. The losses of a run that was killed and started
    again are those of one that was not. Of a run that is at its end the task gets the weights, as
    if the call had trained it.

    A phase begins at the window after the last one read. The rest of that window is passed over,
    and if the last batch had spilled into the next window, those few rows come again.

    Args:
        task: A compiled `TrainStep` model, made in `strategy.scope()`.
        make_dataset: Gives the batches of a phase from a start on; endless or long enough. Batches
            hold `position`. Every host gives its own rows of the global batch.
        model_dir: Where everything is written; the same folder means the same run.
        phases: The run, in order.
        strategy: Devices; by default one.
        make_evaluation_dataset: Gives held-out batches of a phase's shape, the same each time.
        evaluate_every: Steps between evaluations; the end of the run is always evaluated.
        checkpoint_every: Steps between checkpoints.
        checkpoint_minutes: Minutes between checkpoints.
        keep_checkpoints: How many of the newest are kept. One that a signal left is not counted
            among them once the run has gone on.
        extra_scores: Measures the task at every evaluation by more than losses: name → number,
            none of them a loss's or a metric's. Called on the chief alone.
        tensorboard: Whether to write curves for TensorBoard.
        settings: What the run is, as JSON can hold it, to be written beside the checkpoints.

    Returns:
        The history of the run.

    Raises:
        NonFiniteLoss: If a loss is NaN or infinite. The last checkpoint is from before.
        RuntimeError: If a dataset ends early, or hosts do not see the same checkpoints.
    """
    strategy = strategy or make_strategy()
    for phase in phases:
        if phase.batch_size is not None:
            strategy.check_batch(phase.batch_size, task.micro_batches)
    model_dir = Path(model_dir)
    checkpoints = Checkpoints(model_dir / "checkpoints", keep_checkpoints)
    if strategy.is_chief:
        model_dir.mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(str(model_dir))
        checkpoints.remove_leftovers()
    latest = checkpoints.latest() or {"step": 0, "position": (0, 0, 0), "progress": {}}
    if strategy.is_chief:
        checkpoints.remove_replaced(latest["progress"])  # if the process died before it could
    logs = RunLog(model_dir / "steps.jsonl"), RunLog(model_dir / "evaluations.jsonl")
    if strategy.is_chief:
        write_settings(model_dir / "run.json", settings or {}, resumed=latest["step"] > 0)
        for log in logs:
            log.truncate(latest["step"])
    last_step = phases[-1].end
    progress = ProgressLine(last_step, tokens_until(phases, last_step), SHOWN)
    monitor = Monitor(
        first_step=latest["step"],
        phases=phases,
        checkpoints=checkpoints,
        steps=logs[0],
        evaluations=logs[1],
        progress=progress if strategy.is_chief else None,
        curves=Curves(model_dir / "tensorboard") if tensorboard and strategy.is_chief else None,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        checkpoint_minutes=checkpoint_minutes,
        extra_scores=extra_scores,
        bridge=latest["step"] if latest["progress"].get("bridge") else None,
        is_chief=strategy.is_chief,
    )
    with strategy.scope(), stopping(monitor.stop):
        start = latest["position"]
        if latest["step"] >= last_step:
            _finished(latest["step"], last_step)
            # Nothing is left to train on, but what follows a run wants its weights.
            dataset = make_dataset(phases[-1], (0, 0, 0))
            _resume(task, dataset, checkpoints, latest["step"], strategy)
        for phase in phases:
            if phase.end <= latest["step"]:
                continue
            if phase.first_step and monitor.step == phase.first_step:
                start = (start[0], start[1] + 1, 0)
            dataset = make_dataset(phase, tuple(start))
            if monitor.step == latest["step"]:
                _resume(task, dataset, checkpoints, latest["step"], strategy)
            evaluation = make_evaluation_dataset and make_evaluation_dataset(phase)
            monitor.begin_phase(phase, evaluation and strategy.distribute(evaluation))
            task.fit(
                strategy.distribute(dataset),
                epochs=1,
                steps_per_epoch=phase.end - monitor.step,
                callbacks=[monitor],
                verbose=0,
            )
            if monitor.stopped_by is not None:
                break
            if monitor.step < phase.end:
                raise RuntimeError(
                    f"The dataset of the phase ended too early: it needs {phase.end} steps. "
                    f"Received: {monitor.step} steps"
                )
            start = task.data_position.numpy().tolist()
    return History(
        step=monitor.step,
        stopped_by=monitor.stopped_by,
        steps=logs[0].read() if strategy.is_chief else [],
        evaluations=logs[1].read() if strategy.is_chief else [],
    )


def _finished(step: int, last_step: int) -> None:
    if step > last_step:
        warnings.warn(
            f"The run ends at step {last_step}, but its checkpoint is that of step {step}: the "
            "task has the weights of that step, and nothing is trained",
            stacklevel=3,
        )


def _resume(task, dataset, checkpoints: Checkpoints, step: int, strategy: Strategy) -> None:
    """Creates the slots of the optimizer and sets everything to what it was."""
    task.prepare(dataset.element_spec)
    if not strategy.agrees(step):
        raise RuntimeError(
            "All hosts must see the same checkpoints: put the folder on a file system they share. "
            f"Received: {checkpoints.folder}, with step {step} on host {strategy.host_index}"
        )
    if step:
        checkpoints.restore(task, step)
