"""The toy task's run as a process: `python -m tests.training.run.run_toy FOLDER [JSON]`."""

import json
import sys

import keras

from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.run.phases import Phase, parse_phases
from kbert.training.strategies import make_strategy
from tests.training import toy_task
from tests.training.run import of_functions

PHASES = "6:0.5:16,12:0.5:8"


def main(folder, phases=PHASES, steps=30, strategy="one_device", send=None, **kwargs):
    """`send` = [signal, phase, batch of that phase]: when that batch is due, as if from outside."""
    strategy = make_strategy(strategy)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        task = toy_task.ToyTask(dropout=0.1)
        task.compile(AdamW(WarmupDecay(0.02, steps, 3)), micro_batches=2, clip_norm=0.5)

    def make_dataset(phase: Phase, start):
        """Step n of a phase is drawn from (window, n): a start says all there is to know."""
        window, step = int(start[1]), int(start[2]) // phase.batch_size
        data = toy_task.dataset(
            phase.steps - step,
            rows=phase.batch_size,
            length=phase.sequence_length,
            seed=window,
            start=step,
        )
        if send and window == send[1]:
            data = toy_task.with_signal(data, send[0], send[2], after=f"{folder}/checkpoints")
        return data

    history = of_functions.train(
        task,
        make_dataset,
        folder,
        parse_phases(phases, steps, 16),
        strategy=strategy,
        make_evaluation_dataset=lambda phase: toy_task.dataset(
            2, length=phase.sequence_length, seed=9
        ),
        **{"evaluate_every": 10, "checkpoint_every": 7, **kwargs},
    )
    print(json.dumps({"step": history.step, "interrupted": history.interrupted}))
    return history


if __name__ == "__main__":
    main(sys.argv[1], **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))
