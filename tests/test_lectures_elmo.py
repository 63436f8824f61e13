"""Exact facts from the lecture on ELMo, as checks on the library.

Each test names the slide it comes from; where a slide rounds or leaves something out, the test
says so.
"""

import keras
import numpy as np
import pytest

import kbert
from kbert.layers import ScalarMix

SENTENCE = "the dog drops a stick in the river".split()
STICK = SENTENCE.index("stick")


@pytest.fixture(scope="module")
def elmo() -> kbert.Elmo:
    """Two layers, never trained: what follows is so for every ELMo."""
    keras.utils.set_random_seed(4)
    size = {"lstm_size": 16, "projection_size": 8, "max_characters": 12}
    config = kbert.ElmoConfig(
        character_size=4, filters=((1, 4), (2, 8), (3, 8)), num_highway=1, **size
    )
    return kbert.Elmo(config)


def halves(embedded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(L + 1, T, 2P) -> what is read forward and backward, (L + 1, T, P) each."""
    return tuple(np.split(embedded, 2, axis=-1))


def moved(one: np.ndarray, other: np.ndarray) -> list[bool]:
    """Of each word, whether its vectors (L + 1, T, P) differ in all layers, or in none."""
    apart = np.abs(one - other).max(axis=-1) > 1e-6  # (L + 1, T)
    assert (apart == apart[0]).all()
    return apart[0].tolist()


# ELMo, slide "Contextualised word embeddings": word2vec and GloVe have one vector for "stick";
# ELMo has one in each sentence. What the slide leaves out: its lowest layer is such a table too,
# only that it is computed from letters.
def test_one_word_has_one_vector_before_the_lstms_and_many_behind(elmo):
    sentences = [SENTENCE, "leaves stick to the wall".split(), "we stick to the plan".split()]
    pairs = zip(sentences, elmo.embed(sentences), strict=True)
    found = [embedded[:, words.index("stick")] for words, embedded in pairs]
    for vectors in found[1:]:
        np.testing.assert_allclose(vectors[0], found[0][0], atol=1e-6)
        assert (np.abs(vectors[1:] - found[0][1:]).max(axis=-1) > 1e-3).all()


# ELMo, slide "Character convolutions": every word has a vector, also one that nobody has seen, and
# case is not lost.
def test_no_word_is_unknown(elmo):
    embedded = elmo.embed([["stick", "Stick", "stickiest", "棒", "🪵"]])[0][0]
    apart = np.abs(embedded[:, None] - embedded[None]).max(axis=-1)
    assert np.isfinite(embedded).all()
    assert (apart[~np.eye(5, dtype=bool)] > 1e-3).all()


# ELMo, slide "A bidirectional language model": the forward model predicts a word from those before
# it, so it may not have seen those behind; the backward model is its mirror image. Neither sees the
# word that it predicts, unlike a BERT without masks.
@pytest.mark.parametrize("place", [0, STICK, len(SENTENCE) - 1])
def test_no_direction_sees_what_it_predicts(elmo, place):
    changed = [*SENTENCE[:place], "branch", *SENTENCE[place + 1 :]]
    one, other = elmo.embed([SENTENCE, changed])
    size = len(SENTENCE)
    pairs = zip(halves(one), halves(other), strict=True)
    forward, backward = (moved(x[1:], y[1:]) for x, y in pairs)
    assert forward == [False] * place + [True] * (size - place)
    assert backward == [True] * (place + 1) + [False] * (size - place - 1)


# ELMo, slide "Both directions side by side": they share the vectors of words and the softmax, but
# no LSTM; a word's layer is the two joined.
def test_directions_share_words_and_no_lstm(elmo):
    embedded = elmo.embed([SENTENCE, SENTENCE[::-1]])
    assert embedded[0].shape == (3, len(SENTENCE), 16)
    np.testing.assert_array_equal(*halves(embedded[0][0]))
    forward, backward = halves(embedded[0])[0], halves(embedded[1])[1][:, ::-1]
    assert np.abs(forward[1:] - backward[1:]).max() > 1e-3  # the same words in the same order


# ELMo, slide "ELMo = gamma * sum of s_j h_j": the weights are a softmax, so they are positive and
# sum to 1; a task learns them, and gamma scales the whole.
def test_the_mix_is_gamma_times_a_weighted_mean_of_the_layers(elmo):
    layers = [layer[None] for layer in elmo.embed([SENTENCE])[0]]  # L + 1 times (1, T, 2P)
    mix = ScalarMix()
    np.testing.assert_allclose(mix(layers), np.mean(layers, axis=0), atol=1e-6)
    mix.scalars.assign(np.log([1.0, 2.0, 5.0]))
    mix.gamma.assign(3.0)
    wanted = 3.0 * (layers[0] / 8 + layers[1] / 4 + layers[2] * 5 / 8)
    np.testing.assert_allclose(mix(layers), wanted, atol=1e-5)
    assert mix.count_params() == 3 + 1


# ELMo, slide "Sizes": two layers of 4,096 units, projected to 512, so a word's vector has 1,024
# numbers; 93.6 M parameters, without the softmax over 793,471 words.
def test_the_size_of_the_original():
    config = kbert.family("elmo-original")
    assert (config.num_layers, config.lstm_size, config.hidden_size) == (2, 4096, 1024)
    assert config.count_parameters() == 93_600_848


# ELMo, slide "The language model": no word stands beyond the ends of a sentence, so it is given a
# begin and an end, which are words like others; `embed` leaves them out.
def test_a_sentence_has_a_begin_and_an_end(elmo):
    batch = elmo.characters.pad_sentences([SENTENCE])
    ids = keras.ops.convert_to_numpy(batch["character_ids"])[0]
    begin, end = keras.ops.convert_to_numpy(kbert.tokenizers.character_ids(["<S>", "</S>"], 12))
    assert len(ids) == len(SENTENCE) + 2
    np.testing.assert_array_equal(ids[0], begin)
    np.testing.assert_array_equal(ids[-1], end)
