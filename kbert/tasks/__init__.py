"""One file per objective: heads, losses, metrics, and what the trained model answers."""

from kbert.tasks.adaptation import adapt
from kbert.tasks.pretraining import Pretraining
from kbert.tasks.replaced_tokens import ReplacedTokenDetection, generator_config
from kbert.tasks.task import Task

__all__ = ["Pretraining", "ReplacedTokenDetection", "Task", "adapt", "generator_config"]
