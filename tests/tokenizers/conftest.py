"""Models trained in the tests."""

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from kbert.tokenizers import train_unigram
from tests.tokenizers.unigram.sentencepiece_reference import corpus


@pytest.fixture(scope="session")
def cased_model() -> bytes:
    """As XLNet's: cased, with pieces of a number and a comma; ALBERT's special tokens."""
    model = ModelProto.FromString(train_unigram(corpus(), 300, lowercase=False))
    for piece in ("▁the", "▁2012,", "12,", "▁7,"):
        model.pieces.add(piece=piece, score=-1.0)
    return model.SerializeToString()


@pytest.fixture(scope="session")
def deberta_model() -> bytes:
    """As DeBERTa-v3's: text as it is, special tokens first, and [MASK] none of its pieces."""
    return train_unigram(corpus(), 300, layout="deberta")


@pytest.fixture(scope="session")
def multilingual_model() -> bytes:
    """As XLM-R's: text as it is."""
    return train_unigram(corpus(), 300, layout="fairseq")
