"""A pretrained biLM for other words: what is known is kept, the rest is newly initialised."""

import numpy as np
import pytest
from keras import ops

import kbert
from tests.harness import randomise

SPECIAL = ["</S>", "<S>", "<UNK>"]


def tiny(vocabulary=None) -> kbert.Elmo:
    config = kbert.ElmoConfig(
        character_size=4,
        filters=((1, 4), (2, 4)),
        num_highway=1,
        max_characters=10,
        lstm_size=8,
        projection_size=4,
        vocabulary_size=vocabulary and len(vocabulary),
    )
    elmo = kbert.Elmo(config, tokenizer=vocabulary and kbert.WordTokenizer(vocabulary))
    randomise(elmo)
    return elmo


def assert_reads_alike(one, other):
    for a, b in zip(one.embed(["the red fox"]), other.embed(["the red fox"]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_words_keep_their_rows_wherever_they_stand(tmp_path):
    before = tiny([*SPECIAL, "red", "fox"])
    before.save_to_preset(tmp_path)
    words = kbert.WordTokenizer([*SPECIAL, "fox", "dog", "red"])
    after = kbert.tasks.adapt_elmo(tmp_path, words, changes={"dropout": 0.3})
    assert after.config.dropout == 0.3
    assert after.tokenizer is words
    assert_reads_alike(before, after)
    for name in ("kernel", "bias"):
        old, new = (ops.convert_to_numpy(getattr(x.softmax, name)) for x in (before, after))
        np.testing.assert_array_equal(new[[0, 1, 2, 5, 3]], old)
        assert not (new[4] == old).all(axis=-1).any()


def test_a_release_gets_a_softmax(tmp_path):
    before = tiny()
    before.save_to_preset(tmp_path, format="bilm")
    after = kbert.tasks.adapt_elmo(tmp_path, kbert.WordTokenizer([*SPECIAL, "fox"]))
    assert after.softmax.vocabulary_size == 4
    assert_reads_alike(before, after)


def test_weights_of_other_shapes_are_refused(tmp_path):
    tiny().save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"lstm/.*kernel"):
        kbert.tasks.adapt_elmo(
            tmp_path, kbert.WordTokenizer([*SPECIAL, "fox"]), changes={"lstm_size": 16}
        )
