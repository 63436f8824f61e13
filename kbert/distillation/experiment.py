"""Distillation on the data of a task, for `kbert.experiments.run`."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from kbert.catalog.distillation import DistillationRecipe, Stage
from kbert.core.types import PathLike
from kbert.distillation.comparison import Comparison, compare
from kbert.distillation.distiller import Distiller
from kbert.distillation.published import distillation_recipe
from kbert.distillation.student_model import student
from kbert.experiments import Experiment, Settings, settings_for
from kbert.experiments.folder import checksum_of
from kbert.io.paths import Path
from kbert.tasks import Ensemble, FineTuningTask
from kbert.training.run.history import History
from kbert.training.run.record import SAME, Resume


class DistillationExperiment(Experiment):
    """A distillation experiment: a task by name, a fine-tuned teacher, a student and data.

    `kbert.experiments.run`, `seeds` and `grid` accept it instead of an `Experiment`. They train the
    student stage by stage, resume after a kill, evaluate it and write the same folders. The
    settings `epochs` and `learning_rate` apply to the last stage. Earlier stages of a recipe have
    their own values.

    Args:
        task: name of a task in `kbert.experiments.TASKS`, such as "sst2".
        teacher: folder or name of a task of that kind with its head, as `kbert-finetune` writes it;
            or several, which teach as a `kbert.Ensemble`. The student is made from the first.
        train: labelled data: a file or folder that the task's reader reads, or a table.
        recipe: name of a recipe in `kbert.distillation.RECIPES`, or your own recipe; it must have
            stages.
        preset: folder of a student that was pretrained, or distilled on text; its head is newly
            initialised. None = the student is made from the teacher.
        student: arguments of `kbert.student`, if there is no preset. By default the student has
            half of the teacher's layers.
        first_epochs: epochs of the stages before the last; None = the recipe's.
        first_learning_rate: learning rate of the stages before the last; None = the recipe's.
        cache_dir: folder that caches the teacher's outputs, computed once for all epochs, stages
            and runs; None = the teacher runs in every step.
        **options: other arguments of `Experiment`: dev, test, dev_share, columns, ….

    Raises:
        ValueError: an argument is invalid for `Experiment`, the recipe has no stages or an empty
            one, or there are both a preset and arguments for a student. When a run begins: the
            teacher has no head, or lacks a class of the data.

    Example:
        >>> data = {"text": ["free money", "see you"] * 10, "label": ["spam", "ham"] * 10}
        >>> experiment = DistillationExperiment(
        ...     "classify", teacher="out/preset", train=data, dev_share=0.1, first_epochs=5,
        ...     recipe="tinybert-task", student={"num_layers": 3})
        >>> experiment.settings().epochs, experiment.first_stages[0].epochs
        (3, 5)
    """

    def __init__(
        self,
        task: str,
        *,
        teacher: PathLike | Sequence[PathLike],
        train: Any,
        recipe: str | DistillationRecipe = "distilbert",
        preset: PathLike | None = None,
        student: Mapping[str, Any] | None = None,
        first_epochs: int | None = None,
        first_learning_rate: float | None = None,
        cache_dir: PathLike | None = None,
        **options: Any,
    ) -> None:
        self.recipe = _with_stages(recipe)
        if preset is not None and student:
            raise ValueError(
                "Pass either a preset of the student, or arguments to make it of the teacher. "
                f"Received: preset={os.fspath(preset)!r}, {dict(student)}"
            )
        several = [teacher] if isinstance(teacher, str | os.PathLike) else teacher
        self.teachers = [os.fspath(folder) for folder in several]
        self.student_preset = None if preset is None else os.fspath(preset)
        self.student_arguments = dict(student or {})
        self.cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        changes: dict[str, Any] = {"epochs": first_epochs, "learning_rate": first_learning_rate}
        changes = {name: value for name, value in changes.items() if value is not None}
        *first_stages, self.last_stage = self.recipe.stages
        if changes and not first_stages:
            raise ValueError(
                f"The recipe {self.recipe.name} has only one stage, which uses the settings. "
                f"Received: {changes} for the stages before it"
            )
        self.first_stages = [dataclasses.replace(stage, **changes) for stage in first_stages]
        super().__init__(
            task, preset=self.student_preset or self.teachers[0], train=train, **options
        )
        self._teachers: dict[str, FineTuningTask] = {}

    def settings(self, **settings: Any) -> Settings:
        """Returns the settings of a run: the last stage's and the task's defaults, with changes."""
        last = {"epochs": self.last_stage.epochs, "learning_rate": self.last_stage.learning_rate}
        defaults = {**self.named.defaults, **last}
        return settings_for(dataclasses.replace(self.named, defaults=defaults), **settings)

    def make_teacher(self, settings: Settings) -> FineTuningTask:
        """Returns the teacher with the settings in its folder; loads it once per precision.

        Args:
            settings: settings of the run, of which the precision is used.

        Raises:
            ValueError: the folder has no task of this kind with its head, or the teacher lacks a
                class of the data.
        """
        if settings.precision not in self._teachers:
            kind = self.named.task_class
            try:
                loaded = [kind.from_preset(x, settings.precision) for x in self.teachers]
            except ValueError as error:
                raise ValueError(
                    f"The teacher must be a {kind.__name__} with its head, as kbert-finetune "
                    f"writes it. {error}"
                ) from error
            self._teachers[settings.precision] = loaded[0] if len(loaded) == 1 else Ensemble(loaded)
        teacher = self._teachers[settings.precision]
        if self.labels is not None and not set(self.labels) <= set(teacher.labels):
            raise ValueError(
                "The classes of the data must be classes of the teacher. Received: "
                f"{', '.join(map(repr, self.labels))} in the data, "
                f"{', '.join(map(repr, teacher.labels))} in {', '.join(self.teachers)}"
            )
        return teacher

    def new_task(self, settings: Settings) -> FineTuningTask:
        """Returns the student: made from the teacher, or a preset with a newly initialised head."""
        teacher = self.make_teacher(settings)
        keras.utils.set_random_seed(settings.seed)
        arguments = self.named.arguments(settings)
        if self.labels is not None:
            arguments["labels"] = teacher.labels  # in the order of the teacher's head
        if self.student_preset is None:
            half = (teacher.encoder.config.num_layers + 1) // 2
            student_options = {
                "num_layers": half,
                "dtype": settings.precision,
                **self.student_arguments,
            }
            return student(teacher, **student_options, settings=arguments)
        return self.named.task_class.from_preset(
            self.student_preset, settings.precision, new_head=True, **arguments
        )

    def fits(
        self, task: FineTuningTask, settings: Settings
    ) -> dict[str, tuple[Distiller, Settings]]:
        """Returns name of a stage -> (distiller without a cache, settings of the stage)."""
        teacher = self.make_teacher(settings)
        return {
            stage.name: (Distiller(task, teacher, stage.terms), _of_stage(settings, stage))
            for stage in self._stages(settings)
        }

    def fit(
        self,
        task: FineTuningTask,
        settings: Settings,
        model_dir: Path,
        verbose: str | int = "auto",
        resume: Resume = SAME,
    ) -> History:
        """Trains the student stage by stage, and resumes an earlier call that was stopped.

        Args:
            task: the student.
            settings: settings of the run; epochs and learning rate apply to the last stage.
            model_dir: folder with a subfolder for the checkpoints and logs of each stage.
            verbose: 1 = a progress bar, 2 = a line per epoch, 0 = silent; "auto" = 1 in a terminal
                or a notebook, else 2.
            resume: accepted changes of settings, see `Distiller.fit`.

        Returns:
            The history of the last stage.
        """
        history: Any = None
        for stage in self._stages(settings):
            distiller = Distiller(
                task, self.make_teacher(settings), stage.terms, cache_dir=self.cache_dir
            )
            options = self.fit_arguments(_of_stage(settings, stage))
            if not stage.reads_heads:  # without heads there is nothing to evaluate
                options |= dict.fromkeys(("metric", "patience", "evaluate_every"))
                options["keep_best"] = False
            history = distiller.fit(
                self.rows_folder or self.train,
                validation_data=self.dev if stage.reads_heads else None,
                model_dir=Path(model_dir) / stage.name,
                resume=resume,
                verbose=verbose,
                callbacks=self.callbacks(settings) if stage.name == self.last_stage.name else (),
                **options,
            )
        return history

    def compare(self, preset: PathLike, settings: Settings) -> Comparison:
        """Compares the teacher with a student that a run has written, on the dev data.

        Args:
            preset: folder of the student.
            settings: settings of the run.
        """
        teacher = self.make_teacher(settings)
        loaded_student = self.named.task_class.from_preset(preset, settings.precision)
        options: dict[str, Any] = {"metric": settings.metric, "batch_size": settings.batch_size}
        return compare(loaded_student, teacher, self.dev, **options)

    def summary(self) -> str:
        """Returns the text of `Experiment.summary`, and a line about teacher and student."""
        student_options = {"num_layers": "half of the teacher's", **self.student_arguments}
        options_text = ", ".join(f"{name}={value}" for name, value in student_options.items())
        student_text = (
            f"initialised from {self.student_preset}" if self.student_preset else options_text
        )
        return f"{super().summary()}\nteacher: {', '.join(self.teachers)}; student: {student_text}"

    def identity(self) -> dict[str, Any]:
        """Returns what identifies a run: `Experiment.identity`, teacher, student and recipe.

        Epochs and learning rate of the last stage are not included: they are in the settings.
        """
        student_origin = self.student_preset or {"teacher": self.student_arguments}
        student_checksum = checksum_of(self.student_preset)
        first_stages = {
            stage.name: {"epochs": stage.epochs, "learning_rate": stage.learning_rate}
            for stage in self.first_stages
        }
        return {
            **super().identity(),
            "teacher": ", ".join(self.teachers),
            "teacher_checksum": _checksum(self.teachers),
            "student": student_origin,
            "student_checksum": student_checksum,
            "recipe": self.recipe.name,
            "terms": {
                stage.name: [term.record for term in stage.terms] for stage in self.recipe.stages
            },
            "first_stages": first_stages,
        }

    def _stages(self, settings: Settings) -> Sequence[Stage]:
        """Returns all stages, the last one with epochs and learning rate of `settings`."""
        values: dict[str, Any] = {
            "epochs": settings.epochs,
            "learning_rate": settings.learning_rate,
        }
        return [*self.first_stages, dataclasses.replace(self.last_stage, **values)]


def _checksum(teachers: Sequence[str]) -> str | None:
    """Returns the checksums of the teachers' weights; None if one of them cannot be found."""
    checksums = [checksum_of(teacher) for teacher in teachers]
    return None if None in checksums else " ".join(map(str, checksums))


def _of_stage(settings: Settings, stage: Stage) -> Settings:
    return settings.replace(epochs=stage.epochs, learning_rate=stage.learning_rate)


def _with_stages(given: str | DistillationRecipe) -> DistillationRecipe:
    """Returns a recipe, or that of a name; ValueError if it has no stages or one without terms."""
    resolved_recipe = distillation_recipe(given) if isinstance(given, str) else given
    if not resolved_recipe.stages:
        raise ValueError(
            "This recipe distils on text, not on the data of a task: distil on shards first, then "
            "fine-tune, or distil with tinybert-task or distilbert. Received: "
            f"recipe={resolved_recipe.name!r}"
        )
    for stage in resolved_recipe.stages:
        if not stage.terms:  # checked now, before earlier stages are trained
            raise ValueError(
                "Every stage of a recipe must have a loss term with a weight. Received: none "
                f"for the stage {stage.name!r} of {resolved_recipe.name}"
            )
    return resolved_recipe
