"""A tiny masked language model whose head prefers words that a test names."""

import keras
import numpy as np
import pytest

import kbert


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def make_model(tokenizer):
    """(words, **changes of the config) -> a model that likes these words best, the first most."""

    def make(*words, **changes):
        keras.utils.set_random_seed(1)
        config = kbert.EncoderConfig(
            vocabulary_size=tokenizer.vocabulary_size + 3,  # rows that are no entry
            hidden_size=16,
            num_layers=1,
            num_heads=2,
            intermediate_size=32,
            max_positions=32,
            initializer_range=0.15,
        ).replace(**changes)
        model = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer, next_sentence=False)
        bias = np.zeros(config.vocabulary_size, "float32")
        bias[tokenizer.vocabulary_size :] = 999  # never to be seen
        for rank, word in enumerate(words):
            bias[tokenizer.token_to_id(word)] = 500 - 20 * rank
        model.masked_lm.bias.assign(bias)
        return model

    return make


@pytest.fixture(scope="session")
def model(make_model):
    """One whose answers hang on the text."""
    return make_model()
