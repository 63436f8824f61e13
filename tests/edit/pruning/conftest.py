"""A tiny task, its weights drawn."""

import pytest

from kbert.models import Encoder
from kbert.tasks import TextClassifier
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import randomise, tiny_config


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def task(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    task = TextClassifier(Encoder(config), tokenizer, ["no", "yes"], max_length=12)
    randomise(task, sigma=0.5)
    return task
