"""A run of functions, for tests: what an objective's methods would return is handed in."""

import dataclasses
from collections.abc import Callable
from typing import Any

from kbert.training import Objective, Run, RunSettings
from kbert.training.run.objective import batch_evaluation


@dataclasses.dataclass
class OfFunctions(Objective):
    make_dataset: Callable
    evaluate: Callable | None = None
    make_evaluation_dataset: Callable | None = None
    extra_scores: Callable | None = None
    record: Any = None
    unchecked: Any = ()

    @property
    def evaluates(self):
        return self.evaluate is not None or self.make_evaluation_dataset is not None

    def batches(self, stage, start, **hosts):
        return self.make_dataset(stage, start)

    def evaluation(self, task, stage, strategy):
        if self.make_evaluation_dataset is None:
            return self.evaluate
        held_out = self.make_evaluation_dataset(stage)
        return batch_evaluation(task, held_out, strategy, self.extra_scores)

    def identity(self):
        return self.record or {}


def train(task, make_dataset, model_dir, plan, **arguments):
    """Trains to the end of the plan; the arguments are those of the objective, `Run`, settings."""

    def taken(names):
        return {name: arguments.pop(name) for name in names if name in arguments}

    of_objective = taken(field.name for field in dataclasses.fields(OfFunctions))
    of_run = taken(field.name for field in dataclasses.fields(Run) if field.name != "settings")
    return Run(
        task=task,
        objective=OfFunctions(make_dataset, **of_objective),
        plan=plan,
        settings=RunSettings(**arguments),
        model_dir=model_dir,
        **of_run,
    ).train()
