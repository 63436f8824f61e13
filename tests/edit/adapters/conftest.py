"""A toy task that an adapter can learn: praise and blame by single words."""

import keras
import numpy as np
import pytest

import kbert

GOOD, BAD = ("good", "great", "fine", "nice"), ("bad", "awful", "poor", "sad")
WORDS = (*GOOD, *BAD, "the", "film", "movie", "was")


@pytest.fixture(scope="session")
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture
def encoder(tokenizer):
    return make_encoder(tokenizer)


def make_encoder(tokenizer, dtype=None, **changes):
    """Always the same weights."""
    keras.utils.set_random_seed(1)
    fields = {
        **{"vocabulary_size": tokenizer.vocabulary_size, "hidden_size": 32, "num_layers": 2},
        **{"num_heads": 2, "intermediate_size": 64, "max_positions": 32, "dropout": 0.0},
        **{"attention_dropout": 0.0, "initializer_range": 0.15},
    }
    return kbert.Encoder(kbert.EncoderConfig(**{**fields, **changes}), dtype=dtype)


def reviews(count, seed=0, swapped=False):
    """Texts and their labels; swapped: the other way round."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    words = [rng.choice(GOOD if label != swapped else BAD) for label in labels]
    texts = [f"the {rng.choice(['film', 'movie'])} was {word}" for word in words]
    return texts, [["no", "yes"][label] for label in labels]
