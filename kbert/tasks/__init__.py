"""One file per objective: heads, losses, metrics, and what the trained model answers."""

from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.fine_tuning.base import FineTuned
from kbert.tasks.fine_tuning.multiple_choice import MultipleChoice
from kbert.tasks.fine_tuning.text_classifier import TextClassifier
from kbert.tasks.fine_tuning.text_regressor import TextRegressor
from kbert.tasks.fine_tuning.token_classifier import TokenClassifier
from kbert.tasks.generation.causal_lm import CausalLM
from kbert.tasks.generation.translator import Translator
from kbert.tasks.pretraining.adaptation import adapt
from kbert.tasks.pretraining.bidirectional_lm import BidirectionalLM
from kbert.tasks.pretraining.elmo_adaptation import adapt_elmo
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tasks.pretraining.replaced_tokens import ReplacedTokenDetection, generator_config
from kbert.tasks.question_answering.question_answerer import QuestionAnswerer
from kbert.tasks.task import Task

__all__ = [
    "BidirectionalLM",
    "CausalLM",
    "EncoderTask",
    "FineTuned",
    "MultipleChoice",
    "Pretraining",
    "QuestionAnswerer",
    "ReplacedTokenDetection",
    "Task",
    "TextClassifier",
    "TextRegressor",
    "TokenClassifier",
    "Translator",
    "adapt",
    "adapt_elmo",
    "generator_config",
]
