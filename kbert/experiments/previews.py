"""A preview of a run: the first examples as the model sees them, time and memory."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from kbert.core.types import Logs
from kbert.data import Table
from kbert.data.tables.bucketing import BUCKET
from kbert.experiments.experiment import Experiment, Trainable
from kbert.experiments.settings import Settings
from kbert.metrics import text_table
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.training.run.estimates import peak_memory
from kbert.training.run.log import duration, human

# Timed steps, and the steps before them, in which graphs are traced.
_WARM, _TIMED = 3, 8
_WIDTH = 100


def preview(experiment: Trainable, *, examples: int = 3, **settings: Any) -> str:
    """Shows the first examples as tokens with their labels, and estimates from a few real steps.

    Nothing is written.

    Args:
        experiment: task, preset and data.
        examples: number of examples to show; of several tasks one of each.
        **settings: fields of `Settings`.

    Returns:
        The text to print.
    """
    chosen = experiment.settings(**settings)
    task = experiment.make_task(chosen)
    shown = [
        f"{name}\n{describe_examples(part, data.head[:1])}"
        if name
        else describe_examples(part, data.head[:examples])
        for name, (data, part, _) in experiment.parts(task, chosen).items()
    ]
    return "\n\n".join([*shown, _estimate(experiment, task, chosen)])


def describe_examples(task: TableTask, table: Table) -> str:
    """Shows labelled examples as the model reads them.

    Args:
        task: the task.
        table: a few labelled examples.

    Returns:
        The label of each example, followed by each of its token sequences as a wrapped line.
    """
    rows = task.tokenize(table, labelled=True)
    index = np.arange(len(rows))
    batch = {k: np.asarray(v) for k, v in task.assemble(rows.gather(index)).items()}
    lines = []
    for row, example in enumerate(rows.examples.tolist()):
        lines.append(f"{table.place(example)}: {task.describe_example(table, example)}")
        marks = task.token_marks({name: x[row] for name, x in batch.items()})
        for name, ids in batch.items():
            if not name.endswith("token_ids"):
                continue
            # Texts of a pair that are encoded separately have one mask each; two orders of one
            # text share a mask.
            mask_name = name.removesuffix("token_ids") + "padding_mask"
            mask = batch[mask_name if mask_name in batch else "padding_mask"][row]
            # A decoder's tokens may have a vocabulary of their own.
            is_target = name.startswith("decoder_")
            tokenizer = task.tokenizer.target if is_target else task.tokenizer
            # Choices, windows and negatives of an example are separate sequences.
            for line, real in zip(np.atleast_2d(ids[row]), np.atleast_2d(mask), strict=True):
                pieces = [task.form.token_name(i, tokenizer) for i in line[real > 0].tolist()]
                pieces = [f"{piece}{marks.get(i, '')}" for i, piece in enumerate(pieces)]
                lines += [f"  {text}" for text in _wrapped(pieces)]
    return "\n".join(lines)


def _wrapped(pieces: list[str]) -> Iterator[str]:
    """Yields lines of at most 100 characters with the tokens, separated by spaces."""
    line = ""
    for piece in pieces:
        if line and len(line) + 1 + len(piece) > _WIDTH:
            yield line
            line = ""
        line += f" {piece}" if line else piece
    yield line


def _sizes(experiment: Experiment, task: TableTask) -> tuple[int, dict[str, str]]:
    """Returns the number of rows of the training data, and estimates of its sizes as text."""
    table, examples = experiment.head, len(experiment.train)
    rows = task.tokenize(table, labelled=True)
    count, cut = (round(x * examples / len(table)) for x in (len(rows), rows.cut))
    padded = -(-rows.lengths // BUCKET) * BUCKET
    return count, {
        "examples": f"{examples:,}, {count:,} sequences",
        "tokens": f"{rows.lengths.mean():.1f} per sequence, {rows.lengths.max():,} at most",
        "cut": f"{cut:,} examples longer than {task.row_length:,} tokens",
        "padding": f"{1 - rows.lengths.sum() / padded.sum():.1%} of the computed tokens",
    }


def _estimate(experiment: Trainable, task: Any, settings: Settings) -> str:
    """Returns a table with sizes of the data, and time and memory measured in a few steps."""
    table = experiment.head
    parts = experiment.parts(task, settings)
    sizes = {name: _sizes(data, part) for name, (data, part, _) in parts.items()}
    counts = [count for count, _ in sizes.values()]
    stages = experiment.fits(task, settings)
    extra = experiment.fit_options
    epoch = sum(math.ceil(count / settings.batch_size) for count in counts)
    epoch = extra.get("steps_per_epoch") or epoch
    steps = {name: epoch * x.epochs for name, (_, x) in stages.items()}
    paces = {name: _pace(model, table, x, extra) for name, (model, x) in stages.items()}
    total = duration(sum(paces[name] * steps[name] for name in stages))
    pace_text = ", ".join(f"{pace:.3g} s per step {name}".rstrip() for name, pace in paces.items())
    texts = {
        f"{name} {key}".strip(): x for name, (_, part) in sizes.items() for key, x in part.items()
    }
    estimates = {
        **texts,
        "steps": f"{epoch:,} per epoch, {sum(steps.values()):,} in total",
        "time": f"about {total} without evaluations, {pace_text}",
        "memory": f"{human(peak_memory())}B at most so far",
    }
    if all(model is not task for model, _ in stages.values()):  # the task learns from a teacher
        alone = _pace(task, table, settings, extra)
        estimates["alone"] = f"{alone:.3g} s per step without a teacher"
    return text_table(["estimate", ""], list(estimates.items()))


def _pace(model: Any, table: Any, settings: Settings, extra: Mapping[str, Any]) -> float:
    """Returns the seconds per step, measured in a few steps of training.

    Args:
        model: object with a `fit`, such as the task; it is trained a little.
        table: labelled examples, in the form of `fit`.
        settings: settings of the run.
        extra: further arguments of `fit`.
    """
    clock = _Clock()
    # These settings need development data or a folder.
    left_out = ("metric", "patience", "evaluate_every", "checkpoint_every")
    options = {**settings.training(), **dict.fromkeys(left_out)}
    model.fit(table, verbose=0, callbacks=[clock], **extra, **options)
    return clock.seconds_per_step


class _Clock(keras.callbacks.Callback):
    """Times a few steps, then stops the training."""

    def __init__(self) -> None:
        super().__init__()
        self._times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        float(logs["loss"])  # wait until the device is done
        self._times.append(time.perf_counter())
        if len(self._times) > _WARM + _TIMED:
            self.model.stop_training = True

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds per step, without the first steps, in which graphs are traced."""
        timed = self._times[_WARM:] if len(self._times) > _WARM + 1 else self._times
        return (timed[-1] - timed[0]) / max(len(timed) - 1, 1)
