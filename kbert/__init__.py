"""kbert: the BERT family for Keras 3 and TensorFlow, from raw text to a model that answers.

Public names load on first use, so that `import kbert` costs what its dependencies cost.

Example:
    >>> import kbert
    >>> kbert.family("bert-tiny").hidden_size
    128
"""

from typing import TYPE_CHECKING

from kbert.core import late
from kbert.version import __version__ as __version__

if TYPE_CHECKING:
    from kbert import (
        analysis as analysis,
        attribution as attribution,
        catalog as catalog,
        checkpoints as checkpoints,
        configs as configs,
        conversion as conversion,
        core as core,
        data as data,
        decoding as decoding,
        distillation as distillation,
        edit as edit,
        experiments as experiments,
        export as export,
        extraction as extraction,
        heads as heads,
        hub as hub,
        inference as inference,
        io as io,
        layers as layers,
        metrics as metrics,
        models as models,
        search as search,
        serve as serve,
        signatures as signatures,
        tasks as tasks,
        text as text,
        tokenizers as tokenizers,
        training as training,
        visualization as visualization,
        word_vectors as word_vectors,
    )
    from kbert.analysis.probing import probe as probe
    from kbert.analysis.surfaces import loss_surface as loss_surface
    from kbert.attribution import attributions as attributions
    from kbert.catalog.families import family as family
    from kbert.catalog.recipes import recipe as recipe
    from kbert.configs.decoder import DecoderConfig as DecoderConfig
    from kbert.configs.elmo import ElmoConfig as ElmoConfig
    from kbert.configs.encoder import EncoderConfig as EncoderConfig
    from kbert.configs.seq2seq import Seq2SeqConfig as Seq2SeqConfig
    from kbert.distillation.student_model import student as student
    from kbert.extraction import (
        TextFeatures as TextFeatures,
        bert_score as bert_score,
        features as features,
    )
    from kbert.layers.text_preprocessor import TextPreprocessor as TextPreprocessor
    from kbert.models.description import describe as describe
    from kbert.models.elmo.elmo import Elmo as Elmo
    from kbert.models.encoder import Encoder as Encoder
    from kbert.models.generators.decoder import Decoder as Decoder
    from kbert.models.generators.seq2seq import Seq2Seq as Seq2Seq
    from kbert.serve import Client as Client
    from kbert.tasks.embedding.text_embedder import TextEmbedder as TextEmbedder
    from kbert.tasks.fine_tuning.ensemble import Ensemble as Ensemble
    from kbert.tasks.fine_tuning.labels import class_names as class_names
    from kbert.tasks.fine_tuning.multiple_choice import MultipleChoice as MultipleChoice
    from kbert.tasks.fine_tuning.soup import soup as soup
    from kbert.tasks.fine_tuning.text_classifier import TextClassifier as TextClassifier
    from kbert.tasks.fine_tuning.text_regressor import TextRegressor as TextRegressor
    from kbert.tasks.fine_tuning.token_classifier import TokenClassifier as TokenClassifier
    from kbert.tasks.fine_tuning.zero_shot import ZeroShotClassifier as ZeroShotClassifier
    from kbert.tasks.generation.few_shot import FewShotClassifier as FewShotClassifier
    from kbert.tasks.generation.text_to_text import TextToText as TextToText
    from kbert.tasks.generation.translator import Translator as Translator
    from kbert.tasks.pretraining.pretraining import Pretraining as Pretraining
    from kbert.tasks.question_answering.question_answerer import (
        QuestionAnswerer as QuestionAnswerer,
    )
    from kbert.tasks.task import Task as Task
    from kbert.tokenizers import (
        BytePairTokenizer as BytePairTokenizer,
        CharacterTokenizer as CharacterTokenizer,
        MarianTokenizer as MarianTokenizer,
        UnigramTokenizer as UnigramTokenizer,
        WordPieceTokenizer as WordPieceTokenizer,
        WordTokenizer as WordTokenizer,
        load_tokenizer as load_tokenizer,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
