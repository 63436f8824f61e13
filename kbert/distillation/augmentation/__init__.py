"""TinyBERT's data augmentation: copies of texts in which words are replaced by others that fit."""

from kbert.distillation.augmentation.augmenter import Augmenter
from kbert.distillation.augmentation.folder import read_augmented, write_augmented
from kbert.distillation.augmentation.neighbours import MAX_VECTORS
from kbert.distillation.augmentation.preview import preview
from kbert.distillation.augmentation.run import augment
from kbert.distillation.augmentation.settings import AugmentationSettings
from kbert.distillation.augmentation.stop_words import STOP_WORDS, read_stop_words

__all__ = [
    "MAX_VECTORS",
    "STOP_WORDS",
    "AugmentationSettings",
    "Augmenter",
    "augment",
    "preview",
    "read_augmented",
    "read_stop_words",
    "write_augmented",
]
