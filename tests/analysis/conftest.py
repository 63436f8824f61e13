"""A tiny random encoder over the tiny vocabulary."""

import pytest

import kbert
from tests.harness import randomise, tiny_config


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def encoder(tiny_vocabulary):
    encoder = kbert.Encoder(tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=40))
    randomise(encoder)
    return encoder
