"""Knowledge from a large model for a small one: DistilBERT, TinyBERT, MiniLM, and parts of them."""

from kbert.distillation.augmentation import (
    STOP_WORDS,
    AugmentationSettings,
    Augmenter,
    WordVectors,
    augment,
    read_augmented,
    read_stop_words,
    read_vectors,
    write_augmented,
)
from kbert.distillation.comparison import Comparison, compare
from kbert.distillation.distiller import Distiller
from kbert.distillation.experiment import DistillationExperiment
from kbert.distillation.layer_map import layer_map
from kbert.distillation.published import RECIPES, DistillationRecipe, Stage, recipe
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
    "RECIPES",
    "STOP_WORDS",
    "AttentionRelations",
    "AttentionScores",
    "AugmentationSettings",
    "Augmenter",
    "Comparison",
    "DistillationExperiment",
    "DistillationRecipe",
    "Distiller",
    "Embeddings",
    "HiddenStates",
    "LastHiddenCosine",
    "OwnLoss",
    "SoftTargets",
    "Stage",
    "Term",
    "WordVectors",
    "augment",
    "compare",
    "layer_map",
    "read_augmented",
    "read_stop_words",
    "read_vectors",
    "recipe",
    "student",
    "write_augmented",
]
