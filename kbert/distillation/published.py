"""Recipes of the published students: the values of the catalogue with the terms of their losses.

A recipe is the terms of a loss with the settings of a run: on shards of text (`general`), or on the
data of a task, stage after stage (`stages`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kbert.catalog import distillation
from kbert.catalog.recipe import by_name
from kbert.core import late
from kbert.distillation.terms import Term


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A run with one loss.

    Attributes:
        name: of the folder that it is written to.
        terms: the terms of the loss.
        epochs: passes over the data of a task.
        learning_rate: its peak.
    """

    name: str
    terms: Sequence[Term]
    epochs: int
    learning_rate: float

    @property
    def reads_heads(self) -> bool:
        """Whether its loss trains the head too, so that the student can be measured."""
        return any(term.reads_heads for term in self.terms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationRecipe:
    """Loss terms and settings of a distillation.

    Attributes:
        name: in the table.
        summary: what is compared, in a few words.
        source: where the values are from.
        student: arguments of `kbert.student` for the published one, on text.
        terms: the terms of the loss on text; none if the recipe is for tasks alone.
        general: flag of `kbert-distill` -> value, on text. The batch size is that of a cluster.
        progressive: whether, on text, the student's layers learn one after the other.
        first: on text, the recipe that comes before: its student is where this one's begins.
        first_share: of the updates, the share that is the former's.
        stages: on the data of a task, in turn; none if the recipe is for text alone.
    """

    name: str
    summary: str
    source: str
    student: Mapping[str, Any]
    terms: Sequence[Term] = ()
    general: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progressive: bool = False
    first: str | None = None
    first_share: float = 0.0
    stages: Sequence[Stage] = ()


def _made(terms: Sequence[distillation.Term]) -> tuple[Term, ...]:
    return tuple(late.load("term", term.name)(**term.values) for term in terms)


def _recipe(values: distillation.Distillation) -> DistillationRecipe:
    stages = (
        Stage(
            name=stage.name,
            terms=_made(stage.terms),
            epochs=stage.epochs,
            learning_rate=stage.learning_rate,
        )
        for stage in values.stages
    )
    fields = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    return DistillationRecipe(**fields | {"terms": _made(values.terms), "stages": tuple(stages)})


RECIPES = {name: _recipe(values) for name, values in distillation.DISTILLATIONS.items()}


def recipe(name: str) -> DistillationRecipe:
    """The recipe of a name.

    Raises:
        ValueError: there is none; the message lists the close ones.

    Example:
        >>> [stage.name for stage in recipe("tinybert-task").stages]
        ['intermediate', 'prediction']
    """
    return by_name(name, RECIPES, "recipe of distillation")
