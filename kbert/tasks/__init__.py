"""One file per objective: heads, losses, metrics, and what the trained model answers."""

from kbert.tasks.adaptation import adapt
from kbert.tasks.bidirectional_lm import BidirectionalLM
from kbert.tasks.causal_lm import CausalLM
from kbert.tasks.elmo_adaptation import adapt_elmo
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.fine_tuning import FineTuned
from kbert.tasks.multiple_choice import MultipleChoice
from kbert.tasks.pretraining import Pretraining
from kbert.tasks.question_answerer import QuestionAnswerer
from kbert.tasks.replaced_tokens import ReplacedTokenDetection, generator_config
from kbert.tasks.task import Task
from kbert.tasks.text_classifier import TextClassifier
from kbert.tasks.text_regressor import TextRegressor
from kbert.tasks.token_classifier import TokenClassifier
from kbert.tasks.translator import Translator

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
