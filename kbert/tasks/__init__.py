"""Tasks, one file per objective: heads, losses, metrics and predictions."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.tasks import losses as losses
    from kbert.tasks.columns import Columns as Columns
    from kbert.tasks.embedding.skip_thought import SkipThought as SkipThought
    from kbert.tasks.embedding.text_denoiser import TextDenoiser as TextDenoiser
    from kbert.tasks.embedding.text_embedder import TextEmbedder as TextEmbedder
    from kbert.tasks.encoder_task import EncoderTask as EncoderTask
    from kbert.tasks.file_answers import FileAnswers as FileAnswers
    from kbert.tasks.fine_tuning.base import FineTuningTask as FineTuningTask
    from kbert.tasks.fine_tuning.ensemble import Ensemble as Ensemble
    from kbert.tasks.fine_tuning.labels import (
        Labels as Labels,
        class_names as class_names,
    )
    from kbert.tasks.fine_tuning.multi_task import MultiTask as MultiTask
    from kbert.tasks.fine_tuning.multiple_choice import MultipleChoice as MultipleChoice
    from kbert.tasks.fine_tuning.options import (
        AuxiliaryOptions as AuxiliaryOptions,
        HeadOptions as HeadOptions,
        RowOptions as RowOptions,
        TextOptions as TextOptions,
        WindowOptions as WindowOptions,
    )
    from kbert.tasks.fine_tuning.prepared import prepare_rows as prepare_rows
    from kbert.tasks.fine_tuning.soup import soup as soup
    from kbert.tasks.fine_tuning.table_task import TableTask as TableTask
    from kbert.tasks.fine_tuning.text_classifier import TextClassifier as TextClassifier
    from kbert.tasks.fine_tuning.text_regressor import TextRegressor as TextRegressor
    from kbert.tasks.fine_tuning.text_rows import TextRows as TextRows
    from kbert.tasks.fine_tuning.token_classifier import TokenClassifier as TokenClassifier
    from kbert.tasks.fine_tuning.zero_shot import ZeroShotClassifier as ZeroShotClassifier
    from kbert.tasks.generation.causal_lm import CausalLM as CausalLM
    from kbert.tasks.generation.few_shot import FewShotClassifier as FewShotClassifier
    from kbert.tasks.generation.masked_and_causal import MaskedAndCausal as MaskedAndCausal
    from kbert.tasks.generation.text_to_text import TextToText as TextToText
    from kbert.tasks.generation.translator import Translator as Translator
    from kbert.tasks.generation.unilm_translator import UniLMTranslator as UniLMTranslator
    from kbert.tasks.losses import Prediction as Prediction
    from kbert.tasks.pretraining.adaptation import adapt as adapt
    from kbert.tasks.pretraining.bidirectional_lm import BidirectionalLM as BidirectionalLM
    from kbert.tasks.pretraining.elmo_adaptation import adapt_elmo as adapt_elmo
    from kbert.tasks.pretraining.memory_lm import MemoryLM as MemoryLM
    from kbert.tasks.pretraining.permutation_lm import PermutationLM as PermutationLM
    from kbert.tasks.pretraining.pretraining import Pretraining as Pretraining
    from kbert.tasks.pretraining.replaced_tokens import (
        ReplacedTokenDetection as ReplacedTokenDetection,
        generator_config as generator_config,
    )
    from kbert.tasks.pretraining.unilm import UniLM as UniLM
    from kbert.tasks.question_answering.question_answerer import (
        QuestionAnswerer as QuestionAnswerer,
    )
    from kbert.tasks.task import Task as Task
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
