"""The toy's fine-tuning as a process: `-m tests.training.run.fine_tuning_toy FOLDER [JSON]`."""

import contextlib
import json
import sys

import keras

from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import fine_tuning_schedule
from kbert.training.run.phases import Epochs
from tests.training import toy_task
from tests.training.run.of_functions import train

ROWS, STEPS_PER_EPOCH, EPOCHS = 16, 6, 3


def compiled_task(dropout: float = 0.1, strategy=None, **settings) -> toy_task.ToyTask:
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = toy_task.ToyTask(dropout)
        schedule = fine_tuning_schedule(0.05, EPOCHS * STEPS_PER_EPOCH)
        task.compile(AdamW(schedule, bias_correction=True), **settings)
    return task


def main(folder, *, task=None, send=None, evaluate=None, **settings):
    """`send` = [signal, batch]: when that batch of the call is due, as if from outside."""
    task = task or compiled_task(micro_batches=2)

    def make_dataset(plan, start):
        data = toy_task.dataset(EPOCHS * STEPS_PER_EPOCH, rows=ROWS, start=start[2] // ROWS)
        if not send:
            return data
        return toy_task.with_signal(data, *send, after=folder and f"{folder}/checkpoints")

    def on_held_out():
        data = toy_task.dataset(2, seed=9)
        return task.evaluate(data, verbose=0, return_dict=True)

    defaults = {"metric": "loss", "evaluate_every": 4, "verbose": 0}
    return train(
        task,
        make_dataset,
        folder,
        Epochs(epochs=EPOCHS, steps_per_epoch=STEPS_PER_EPOCH),
        evaluate=evaluate or on_held_out,
        **{**defaults, "checkpoint_every": 5, "keep_checkpoints": 2, **settings},
    )


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
