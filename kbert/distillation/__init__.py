"""Knowledge distillation: DistilBERT, TinyBERT, MiniLM, MobileBERT, and combinations of terms."""

import functools
import warnings
from typing import Any

from kbert.distillation.augmentation import (
    MAX_VECTORS,
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
from kbert.word_vectors import WordVectors as _WordVectors

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


# Names of the version before -> what they are now; they are gone with the next.
_RENAMED: dict[str, tuple[Any, str]] = {
    "Embeddings": (EmbeddingLoss, "kbert.distillation.EmbeddingLoss"),
    "WordVectors": (_WordVectors, "kbert.word_vectors.WordVectors"),
    "read_vectors": (
        functools.partial(_WordVectors.load, limit=MAX_VECTORS),
        "kbert.word_vectors.WordVectors.load",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        found, new_name = _RENAMED[name]
        message = f"kbert.distillation.{name} is called {new_name} now"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
