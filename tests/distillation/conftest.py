"""The tokenizer of students and teachers."""

import pytest

import kbert


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)
