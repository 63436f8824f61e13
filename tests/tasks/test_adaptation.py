"""A pretrained folder goes on, with words added to its vocabulary."""

import numpy as np
import pytest
from keras import ops

import kbert
from tests.harness import tiny_config


@pytest.fixture
def folder(tmp_path, tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer).save_to_preset(tmp_path / "old")
    return tmp_path / "old"


def test_new_words_start_as_the_mean_of_their_pieces(folder, tiny_vocabulary):
    old = kbert.tasks.Pretraining.from_preset(folder)
    longer = kbert.WordPieceTokenizer([*tiny_vocabulary, "foxes"])
    new = kbert.tasks.adapt(folder, longer, changes={"dropout": 0.3})
    table, before = (ops.convert_to_numpy(t.encoder.token_embedding) for t in (new, old))
    pieces = old.tokenizer.encode(["foxes"]).to_list()[0]
    assert len(pieces) > 1
    np.testing.assert_array_equal(table[:-1], before)
    np.testing.assert_allclose(table[-1], before[pieces].mean(0), rtol=1e-5, atol=1e-7)
    assert new.encoder.config.dropout == 0.3
    # Every other weight is the old one, heads included.
    for a, b in zip(new.trainable_variables, old.trainable_variables, strict=True):
        if tuple(a.shape) == tuple(b.shape):
            np.testing.assert_array_equal(ops.convert_to_numpy(a), ops.convert_to_numpy(b))


def test_a_head_that_is_not_there_begins_anew_and_is_named(folder, tmp_path, caplog):
    encoder = kbert.Encoder.from_preset(folder)
    encoder.save_to_preset(tmp_path / "bare")
    tokenizer = kbert.load_tokenizer(folder)
    tokenizer.save(tmp_path / "bare")
    kbert.tasks.adapt(tmp_path / "bare", tokenizer, next_sentence=False)
    assert "has no masked_lm: it begins anew" in caplog.text


def test_another_vocabulary_is_refused(folder, tiny_vocabulary):
    other = kbert.WordPieceTokenizer([*tiny_vocabulary[:-1], "foxes"])
    with pytest.raises(ValueError, match="preset's vocabulary.*Received: a tokenizer of"):
        kbert.tasks.adapt(folder, other)
