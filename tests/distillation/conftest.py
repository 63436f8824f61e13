"""The tokenizer of students and teachers, and one of each."""

import pytest

import kbert
from tests.distillation.cached import make_pair


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def classes(tokenizer):
    """Student and teacher, for tests that change neither."""
    return make_pair("classes", tokenizer)
