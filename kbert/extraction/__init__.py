"""Features of texts from a frozen encoder, for any model whose input is vectors."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.extraction.bertscore import BertScore as BertScore, bert_score as bert_score
    from kbert.extraction.cosines import (
        WordInContext as WordInContext,
        nearest as nearest,
        similarity as similarity,
        word_in_context as word_in_context,
    )
    from kbert.extraction.described import TextVectors as TextVectors
    from kbert.extraction.extract import features as features
    from kbert.extraction.files import TokenVectors as TokenVectors, read_features as read_features
    from kbert.extraction.text_features import TextFeatures as TextFeatures
    from kbert.extraction.write import write_features as write_features
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
