"""A multi-task student that learns from a teacher for each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbert.core.types import PathLike
from kbert.distillation.distiller import Distiller
from kbert.distillation.terms import Term
from kbert.io.paths import Path
from kbert.tasks import EncoderTask, MultiTask


class MultiTaskDistiller(MultiTask):
    """Trains the tasks of a `MultiTask` together, each on the outputs of its own teacher.

    (Liu et al. 2019, "Improving Multi-Task Deep Neural Networks via Knowledge Distillation",
    https://arxiv.org/abs/1904.09482, algorithm 1: an ensemble of models for each task teaches one
    model for all. Their loss is `[OwnLoss(weight=0.5), SoftTargets(weight=0.5)]`.) Tasks without a
    teacher learn from their labels alone. `fit` and `evaluate` are those of `MultiTask`; its losses
    are named after task and term, such as `rte_soft_targets`.

    Args:
        multi: the student.
        teachers: name of a task -> its teacher, or several, see `Distiller`. One head of a
            `MultiTask` is a teacher too: `other.tasks["rte"]`.
        terms: terms of the loss of every task that has a teacher.
        cache_dir: folder that caches the teachers' outputs, in a subfolder for each task; None =
            the teachers run in every step.
        cache_dtype: type of cached hidden states and attention, "float16" or "float32".
        name: name of the model.

    Raises:
        ValueError: there is no such task; student and teacher cannot be compared, see `Distiller`;
            or a term trains layers in turn.

    Example:
        >>> import kbert
        >>> from kbert.distillation import OwnLoss, SoftTargets
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.family("bert-tiny").replace(vocabulary_size=7)
        >>> def praise(encoder):
        ...     return kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
        >>> encoder = kbert.Encoder(config)
        >>> multi = MultiTask({"praise": praise(encoder),
        ...                    "stars": kbert.tasks.TextRegressor(encoder, tokenizer)})
        >>> teachers = {"praise": [praise(kbert.Encoder(config)) for _ in range(2)]}
        >>> terms = [OwnLoss(weight=0.5), SoftTargets(weight=0.5)]
        >>> distiller = MultiTaskDistiller(multi, teachers, terms)
        >>> data = {"praise": (["good", "bad"], ["yes", "no"]), "stars": (["good", "bad"], [5, 1])}
        >>> history = distiller.fit(data, epochs=1, verbose=0)
        >>> "praise_agreement" in history.history, len(multi.tasks["praise"].predict(["good"]))
        (True, 1)
    """

    def __init__(
        self,
        multi: MultiTask,
        teachers: Mapping[str, EncoderTask | Sequence[EncoderTask]],
        terms: Sequence[Term],
        *,
        cache_dir: PathLike | None = None,
        cache_dtype: str = "float16",
        name: str = "multi_task_distiller",
    ) -> None:
        multi.check_names(teachers, all_of_them=False)
        super().__init__(
            multi.tasks,
            train_encoder=multi.train_encoder,
            metrics=multi.metrics_of_tasks,
            name=name,
        )
        self.distillers = {
            task: Distiller(
                multi.tasks[task],
                teacher,
                terms,
                cache_dir=None if cache_dir is None else Path(cache_dir) / task,
                cache_dtype=cache_dtype,
            )
            for task, teacher in teachers.items()
        }
        if any(distiller.rate_scales for distiller in self.distillers.values()):
            raise ValueError(
                "Several tasks cannot train layers in turn: leave out `steps_per_layer`. "
                f"Received: {list(terms)}"
            )

    @property
    def learners(self) -> Mapping[str, Any]:
        return {name: self.distillers.get(name, task) for name, task in self.tasks.items()}

    @property
    def settings(self) -> dict[str, Any]:
        """The records of the tasks, with the terms and the teacher of each that has one."""
        taught = {name: distiller.settings for name, distiller in self.distillers.items()}
        return {name: {**x, **taught.get(name, {})} for name, x in super().settings.items()}
