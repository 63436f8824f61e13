"""Recipes of published students: the catalogue's values with the terms of their losses.

A recipe combines the terms of a loss with the settings of a run: on shards of text (`general`), or
on the data of a task, stage by stage (`stages`).
"""

import dataclasses
from collections.abc import Sequence

from kbert.catalog.distillation import DISTILLATIONS, DistillationRecipe, NamedTerm
from kbert.catalog.recipe import by_name
from kbert.core import late
from kbert.distillation.terms import Term


def _made(terms: Sequence[NamedTerm]) -> tuple[Term, ...]:
    """Creates the terms of a loss that a catalogue entry names."""
    return tuple(late.load("term", term.name)(**term.values) for term in terms)


def _recipe(values: DistillationRecipe) -> DistillationRecipe:
    stages = [dataclasses.replace(stage, terms=_made(stage.terms)) for stage in values.stages]
    return dataclasses.replace(values, terms=_made(values.terms), stages=tuple(stages))


RECIPES = {name: _recipe(values) for name, values in DISTILLATIONS.items()}


def distillation_recipe(name: str) -> DistillationRecipe:
    """Returns the recipe with a name.

    Raises:
        ValueError: there is none; the message lists similar names.

    Example:
        >>> [stage.name for stage in distillation_recipe("tinybert-task").stages]
        ['intermediate', 'prediction']
    """
    return by_name(name, RECIPES, "recipe of distillation")
