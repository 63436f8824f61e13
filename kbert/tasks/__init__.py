"""One file per objective: heads, losses, metrics, and what the trained model answers."""

from kbert.tasks.adaptation import adapt
from kbert.tasks.fine_tuning import FineTuned
from kbert.tasks.pretraining import Pretraining
from kbert.tasks.replaced_tokens import ReplacedTokenDetection, generator_config
from kbert.tasks.task import Task
from kbert.tasks.text_classifier import TextClassifier

__all__ = [
    "FineTuned",
    "Pretraining",
    "ReplacedTokenDetection",
    "Task",
    "TextClassifier",
    "adapt",
    "generator_config",
]
