"""One file per objective: heads, losses, metrics, and what the trained model answers."""

from kbert.tasks import losses
from kbert.tasks.columns import Columns
from kbert.tasks.embedding.text_denoiser import TextDenoiser
from kbert.tasks.embedding.text_embedder import TextEmbedder
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.exported import ExportedTask, load_exported
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.labels import Labels
from kbert.tasks.fine_tuning.multi_task import MultiTask
from kbert.tasks.fine_tuning.multiple_choice import MultipleChoice
from kbert.tasks.fine_tuning.task_options import (
    AuxiliaryOptions,
    HeadOptions,
    RowOptions,
    TextOptions,
    WindowOptions,
)
from kbert.tasks.fine_tuning.text_classifier import TextClassifier
from kbert.tasks.fine_tuning.text_regressor import TextRegressor
from kbert.tasks.fine_tuning.text_rows import TextRows
from kbert.tasks.fine_tuning.token_classifier import TokenClassifier
from kbert.tasks.generation.causal_lm import CausalLM
from kbert.tasks.generation.masked_and_causal import MaskedAndCausal
from kbert.tasks.generation.translator import Translator
from kbert.tasks.losses import Prediction
from kbert.tasks.pretraining.adaptation import adapt
from kbert.tasks.pretraining.bidirectional_lm import BidirectionalLM
from kbert.tasks.pretraining.elmo_adaptation import adapt_elmo
from kbert.tasks.pretraining.memory_lm import MemoryLM
from kbert.tasks.pretraining.permutation_lm import PermutationLM
from kbert.tasks.pretraining.pretraining import Pretraining
from kbert.tasks.pretraining.replaced_tokens import ReplacedTokenDetection, generator_config
from kbert.tasks.question_answering.question_answerer import QuestionAnswerer
from kbert.tasks.task import Task

__all__ = [
    "AuxiliaryOptions",
    "BidirectionalLM",
    "CausalLM",
    "Columns",
    "EncoderTask",
    "ExportedTask",
    "FineTuningTask",
    "HeadOptions",
    "Labels",
    "MaskedAndCausal",
    "MemoryLM",
    "MultiTask",
    "MultipleChoice",
    "PermutationLM",
    "Prediction",
    "Pretraining",
    "QuestionAnswerer",
    "ReplacedTokenDetection",
    "RowOptions",
    "Task",
    "TextClassifier",
    "TextDenoiser",
    "TextEmbedder",
    "TextOptions",
    "TextRegressor",
    "TextRows",
    "TokenClassifier",
    "Translator",
    "WindowOptions",
    "adapt",
    "adapt_elmo",
    "generator_config",
    "load_exported",
    "losses",
]
