"""Tiny tasks over the tiny vocabulary."""

import keras
import pytest

import kbert
from tests.harness import randomise, tiny_config


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def make_task(tokenizer):
    """Makes a task on a tiny random encoder, or on `encoder`."""

    def make(name, encoder=None, *, changes=None, **options):
        keras.utils.set_random_seed(0)
        if encoder is None:
            config = tiny_config(vocabulary_size=len(tokenizer.vocabulary), **(changes or {}))
            encoder = kbert.Encoder(config)
        task = getattr(kbert.tasks, name)(encoder, tokenizer, **options)
        randomise(task)
        return task

    return make


@pytest.fixture(scope="session")
def classifier(make_task):
    return make_task("TextClassifier", labels=["ham", "spam", "egg"])
