"""Knowledge from a large model for a small one: DistilBERT, TinyBERT, MiniLM, and parts of them."""

from kbert.distillation.comparison import Comparison, compare
from kbert.distillation.distiller import Distiller
from kbert.distillation.experiment import DistillationExperiment
from kbert.distillation.layer_map import layer_map
from kbert.distillation.recipes import RECIPES, DistillationRecipe, Stage, recipe
from kbert.distillation.student import student
from kbert.distillation.terms import (
    AttentionRelations,
    AttentionScores,
    Embeddings,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
    Term,
)

__all__ = [
    "AttentionRelations",
    "AttentionScores",
    "Comparison",
    "DistillationExperiment",
    "DistillationRecipe",
    "Distiller",
    "Embeddings",
    "HiddenStates",
    "LastHiddenCosine",
    "OwnLoss",
    "RECIPES",
    "SoftTargets",
    "Stage",
    "Term",
    "compare",
    "layer_map",
    "recipe",
    "student",
]
