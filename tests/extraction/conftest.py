"""A tiny random encoder over the tiny vocabulary, and the same model in `transformers`."""

import functools

import numpy as np
import pytest

import kbert
from tests.harness import randomise, tiny_config

TEXTS = [
    "the quick brown fox jumps over the lazy dog",
    "",
    "a red pen, a blue book!",
    "the king and the queen walked to the river",
    "x",
    "we have two cats",
]
PAIRS = [("the king", "a queen"), ("", "the red fox"), ("one two three", "x"), ("is it?", "it is.")]


@pytest.fixture(scope="session")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture(scope="session")
def encoder(tiny_vocabulary):
    """Five layers, so that the last four are not all."""
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), num_layers=5, max_positions=40)
    encoder = kbert.Encoder(config)
    randomise(encoder)
    return encoder


@pytest.fixture(scope="session")
def hidden_states(encoder, tokenizer, tmp_path_factory):
    """Texts or pairs -> for each its hidden states (L + 1, T, H), as `transformers` has them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("huggingface")
    encoder.save_to_preset(folder, "huggingface")
    tokenizer.save(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    theirs = transformers.BertTokenizer.from_pretrained(folder)

    @functools.cache
    def run(text):
        pair = isinstance(text, tuple)
        inputs = theirs(*text) if pair else theirs(text)
        inputs = {name: torch.tensor([value]) for name, value in inputs.items()}
        with torch.no_grad():
            found = model(**inputs, output_hidden_states=True).hidden_states
        return np.stack([state[0].numpy() for state in found])

    return lambda texts: [run(text) for text in texts]
