"""A tiny pretrained model in a folder, and texts whose class is in their words."""

import keras
import numpy as np
import pytest

import kbert

SPAM, HAM = ("red", "fox", "king"), ("tree", "book", "moon")


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def preset(tmp_path_factory, tokenizer):
    """A folder with an encoder that was never trained."""
    folder = tmp_path_factory.mktemp("preset")
    keras.utils.set_random_seed(1)
    config = kbert.EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=32,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.15,
    )
    kbert.Encoder(config).save_to_preset(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="session")
def mail():
    """Columns: sixty-four texts with the labels ham and spam."""
    rng = np.random.default_rng(0)
    texts, labels = [], []
    for number in range(64):
        label, words = (("spam", SPAM), ("ham", HAM))[number % 2]
        texts.append(" ".join(["the", *rng.choice(words, 3), "."]))
        labels.append(label)
    return {"text": texts, "label": labels}
