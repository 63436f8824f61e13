"""Knowledge distillation: DistilBERT, TinyBERT, MiniLM, MobileBERT, and combinations of terms."""

from kbert.distillation.augmentation import (
    STOP_WORDS,
    AugmentationSettings,
    Augmenter,
    augment,
    read_augmented,
    read_stop_words,
    write_augmented,
)
from kbert.distillation.comparison import Comparison, compare
from kbert.distillation.distiller import Distiller
from kbert.distillation.experiment import DistillationExperiment
from kbert.distillation.layer_map import layer_map
from kbert.distillation.published import RECIPES, DistillationRecipe, Stage, recipe
from kbert.distillation.static import distill_static
from kbert.distillation.student import student
from kbert.distillation.terms import (
    AttentionRelations,
    AttentionScores,
    EmbeddingLoss,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
    Term,
)
from kbert.distillation.transfer import (
    AttentionMaps,
    FeatureMaps,
    FeatureMeans,
    FeatureVariances,
)

__all__ = [
    "RECIPES",
    "STOP_WORDS",
    "AttentionMaps",
    "AttentionRelations",
    "AttentionScores",
    "AugmentationSettings",
    "Augmenter",
    "Comparison",
    "DistillationExperiment",
    "DistillationRecipe",
    "Distiller",
    "EmbeddingLoss",
    "FeatureMaps",
    "FeatureMeans",
    "FeatureVariances",
    "HiddenStates",
    "LastHiddenCosine",
    "OwnLoss",
    "SoftTargets",
    "Stage",
    "Term",
    "augment",
    "compare",
    "distill_static",
    "layer_map",
    "read_augmented",
    "read_stop_words",
    "recipe",
    "student",
    "write_augmented",
]
