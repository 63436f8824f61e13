"""A tiny pretraining task over the tiny vocabulary."""

import keras
import pytest

import kbert

# A task from outside the package: to look for doctests in it would register it in every test.
collect_ignore = ["ordinal.py"]


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def config(tiny_vocabulary):
    return kbert.EncoderConfig(
        vocabulary_size=len(tiny_vocabulary),
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=40,
        initializer_range=0.15,  # answers that differ visibly
    )


@pytest.fixture
def task(config, tokenizer):
    keras.utils.set_random_seed(1)
    return kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
