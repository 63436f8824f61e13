"""Training on the user's own batches: a `tf.data.Dataset`, in its own order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras
from absl import logging

from kbert.core.in_memory import has_columns, is_dataset
from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.training.optimization.schedules import settable
from kbert.training.run.objective import Evaluate, Objective, batch_evaluation
from kbert.training.run.phases import Epochs, Phase, Start
from kbert.training.run.record import Resume, check_resume
from kbert.training.run.run import Run
from kbert.training.run.settings import RunSettings
from kbert.training.run.signals import raise_stopped
from kbert.training.step.keras_arguments import FIT_DATASET, refuse_arguments
from kbert.training.step.mixin import TrainStep
from kbert.training.step.state import scope_of
from kbert.training.strategies import Strategy

AFTER_FIT = "the weights that training ended with"


class DatasetObjective(Objective):
    """Objective on the user's batches in their order, trained on by Keras' `fit`.

    With a `model_dir`, a `Run` trains on them instead, which writes checkpoints and can resume.

    Args:
        task: a `Task`.
        dataset: a `tf.data.Dataset` of dicts, as `loss_terms` reads them.
        labels: must be None: batches contain their labels.
        model: model to train: the task, or a model that contains it; None = the task.
        epochs: number of epochs, of `steps_per_epoch` steps each.
        steps_per_epoch: updates of an epoch; None = until the dataset ends.
        validation_data: held-out batches, in the form of `dataset`.
        **settings: further arguments of Keras' `fit`; with a `model_dir` the fields of
            `RunSettings`.

    Raises:
        TypeError: an argument of Keras has no meaning for batches.
        ValueError: `dataset` is not a dataset of batches.
    """

    def __init__(
        self,
        task: Any,
        dataset: Any,
        labels: Any = None,
        *,
        model: TrainStep | None = None,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        **settings: Any,
    ) -> None:
        if has_columns(dataset) and not isinstance(dataset, Mapping):
            raise ValueError(
                f"A {type(task).__name__} must be trained on batches: a tf.data.Dataset of dicts, "
                "such as kbert.data makes from text. "
                f"Received: a {type(dataset).__module__.split('.')[0]} {type(dataset).__name__}"
            )
        refuse_arguments(settings if labels is None else {"y": labels}, FIT_DATASET, "fit")
        self.task, self.model = task, task if model is None else model
        self.dataset, self.held_out = dataset, validation_data
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self.settings = settings

    @property
    def evaluates(self) -> bool:  # type: ignore[override]  # by the data
        return self.held_out is not None

    def batches(self, stage: Phase | Epochs, start: Start, **hosts: int) -> tf.data.Dataset:
        return self.dataset.repeat().skip(stage.done)

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        return None if self.held_out is None else batch_evaluation(task, self.held_out, strategy)

    def identity(self) -> Mapping[str, Any]:
        return {"task": {**self.task.record, **self.model.settings}}

    def fit(
        self,
        *,
        model_dir: PathLike | None,
        resume: Resume,
        verbose: str | int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> keras.callbacks.History:
        """Trains the model and returns the history; for the arguments see `Task.fit`.

        Without a `model_dir` this is Keras' `fit`, else a run with checkpoints.
        """
        check_resume(resume, model_dir)
        steps = self._steps()
        if not self.model.compiled_by_user:
            with scope_of(self.task):
                total = None if steps is None else steps * self.epochs
                optimizer = settable(self.task.usual_optimizer(total), callbacks)
                self.model.compile_by_default(optimizer)
            logging.info("compile() was not called: training with %s", type(optimizer).__name__)
        if model_dir is None:
            history = TrainStep.fit(
                self.model,
                self.dataset,
                epochs=self.epochs,
                steps_per_epoch=self.steps_per_epoch,
                validation_data=self.held_out,
                shuffle=False,  # keep the dataset's order
                verbose=verbose,
                callbacks=callbacks,
                **self.settings,
            )
        else:
            history = self._run(steps, model_dir, resume, verbose, callbacks)
        self.task.check_answers(AFTER_FIT)
        return history

    def _run(
        self,
        steps: int | None,
        model_dir: PathLike,
        resume: Resume,
        verbose: str | int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> keras.callbacks.History:
        """Trains with checkpoints in `model_dir` and returns the history; see `fit`.

        `steps` is the number of steps of an epoch. Raises ValueError if it is None (unknown), or if
        the batches have no `position`.
        """
        spec = getattr(self.dataset, "element_spec", None)
        if not isinstance(spec, Mapping) or "position" not in spec:
            raise ValueError(
                "With a `model_dir`, batches must have a `position` of (B, 3) integers, as those "
                "of kbert.data do, so that the run can resume. "
                f"Received: {type(self.dataset).__name__} without it"
            )
        if steps is None:
            raise ValueError(
                "With a `model_dir`, the number of steps must be known: pass `steps_per_epoch`. "
                "Received: a dataset of infinite or unknown length"
            )
        history = Run(
            task=self.model,
            objective=self,
            plan=Epochs(epochs=self.epochs, steps_per_epoch=steps),
            settings=RunSettings.from_arguments(self.settings, "fit"),
            model_dir=model_dir,
            resume=resume,
            verbose=verbose,
            callbacks=callbacks,
        ).train()
        if history.interrupted:
            raise_stopped(cast(int, history.stopped_by), history.step)
        return history

    def _steps(self) -> int | None:
        """Returns the steps of an epoch; None if the dataset's length is unknown or infinite."""
        if self.steps_per_epoch is not None or not is_dataset(self.dataset):
            return self.steps_per_epoch
        size = int(self.dataset.cardinality())
        return size if size > 0 else None
