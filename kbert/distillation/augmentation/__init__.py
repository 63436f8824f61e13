"""TinyBERT's data augmentation: copies of texts in which words are replaced by similar ones."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.distillation.augmentation.augmenter import Augmenter as Augmenter
    from kbert.distillation.augmentation.folder import (
        read_augmented as read_augmented,
        write_augmented as write_augmented,
    )
    from kbert.distillation.augmentation.previews import preview as preview
    from kbert.distillation.augmentation.run import augment as augment
    from kbert.distillation.augmentation.settings import (
        MAX_VECTORS as MAX_VECTORS,
        AugmentationSettings as AugmentationSettings,
    )
    from kbert.distillation.augmentation.stop_words import (
        STOP_WORDS as STOP_WORDS,
        read_stop_words as read_stop_words,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
