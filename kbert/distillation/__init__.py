"""Knowledge distillation: DistilBERT, TinyBERT, MiniLM, MobileBERT, and combinations of terms."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.catalog.distillation import DistillationRecipe as DistillationRecipe, Stage as Stage
    from kbert.distillation.augmentation import (
        STOP_WORDS as STOP_WORDS,
        AugmentationSettings as AugmentationSettings,
        Augmenter as Augmenter,
        augment as augment,
        read_augmented as read_augmented,
        read_stop_words as read_stop_words,
        write_augmented as write_augmented,
    )
    from kbert.distillation.comparison import Comparison as Comparison, compare as compare
    from kbert.distillation.distiller import Distiller as Distiller
    from kbert.distillation.experiment import DistillationExperiment as DistillationExperiment
    from kbert.distillation.layer_maps import layer_map as layer_map
    from kbert.distillation.published import (
        RECIPES as RECIPES,
        distillation_recipe as distillation_recipe,
    )
    from kbert.distillation.several_tasks import MultiTaskDistiller as MultiTaskDistiller
    from kbert.distillation.shrinking import seq2seq_student as seq2seq_student
    from kbert.distillation.static import distill_static as distill_static
    from kbert.distillation.student_model import student as student
    from kbert.distillation.terms import (
        AttentionRelations as AttentionRelations,
        AttentionScores as AttentionScores,
        EmbeddingLoss as EmbeddingLoss,
        HiddenStates as HiddenStates,
        LastHiddenCosine as LastHiddenCosine,
        OwnLoss as OwnLoss,
        SoftTargets as SoftTargets,
        Term as Term,
    )
    from kbert.distillation.transfer import (
        AttentionMaps as AttentionMaps,
        FeatureMaps as FeatureMaps,
        FeatureMeans as FeatureMeans,
        FeatureVariances as FeatureVariances,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
