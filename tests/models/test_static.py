"""The encoder that is a table: what it gives, what it refuses, and the tasks on it."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.configs import StaticConfig
from kbert.models import Static, describe
from tests.harness import to_numpy

IDS = np.array([[4, 1, 3, 0], [5, 5, 2, 7]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])


def make(**changes):
    keras.utils.set_random_seed(3)
    values = {"vocabulary_size": 9, "hidden_size": 6, "initializer_range": 0.15}
    return kbert.Encoder(StaticConfig(**{**values, **changes}))


def test_each_token_has_its_row_whatever_stands_around_it():
    encoder = make(uncounted_ids=(0, 1))
    assert type(encoder) is Static
    out = encoder({"token_ids": IDS, "padding_mask": MASK}, return_hidden_states=True)
    table = to_numpy(encoder.token_embedding)
    np.testing.assert_array_equal(to_numpy(out["sequence"]), table[IDS])
    np.testing.assert_array_equal(to_numpy(out["counted"]), [[1, 0, 1, 0], [1, 1, 1, 1]])
    assert len(out["hidden_states"]) == 1
    assert encoder.count_params() == describe(encoder.config).parameters == 54


def test_some_positions_and_a_pooler_on_the_mean():
    encoder = make(uncounted_ids=(1,), pooler_activation="tanh")
    inputs = {"token_ids": IDS, "padding_mask": MASK}
    out = encoder(inputs, output_positions=np.array([[2], [0]]))
    table = to_numpy(encoder.token_embedding)
    np.testing.assert_array_equal(to_numpy(out["sequence"])[:, 0], table[[3, 5]])
    means = np.stack([table[[4, 3]].mean(0), table[[5, 5, 2, 7]].mean(0)])
    kernel, bias = map(to_numpy, encoder.pooler.weights)
    np.testing.assert_allclose(to_numpy(out["pooled"]), np.tanh(means @ kernel + bias), atol=1e-6)
    assert encoder.count_params() == describe(encoder.config).parameters


def test_saved_loaded_and_symbolic(tmp_path):
    encoder = make(uncounted_ids=(0, 1), dropout=0.2, max_positions=40)
    encoder.save_to_preset(tmp_path)
    again = kbert.Encoder.from_preset(tmp_path)
    assert (type(again), again.config) == (Static, encoder.config)
    np.testing.assert_array_equal(again.token_embedding, encoder.token_embedding)
    names = {name: keras.Input((None,), dtype="int32", name=name) for name in ("token_ids",)}
    spec = encoder(names)
    assert {name: (x.shape, x.dtype) for name, x in spec.items()} == {
        "sequence": ((None, None, 6), "float32"),
        "counted": ((None, None), "int32"),
    }


def test_dropout_is_of_training():
    encoder = make(dropout=0.5)
    dropped = to_numpy(encoder({"token_ids": IDS}, training=True)["sequence"])
    assert 0 < np.count_nonzero(dropped == 0) < dropped.size
    assert np.count_nonzero(to_numpy(encoder({"token_ids": IDS})["sequence"]) == 0) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"uncounted_ids": (9,)}, r"`uncounted_ids` must be token ids below vocabulary_size=9.*9"),
        ({"uncounted_ids": 1}, r"`uncounted_ids` must be token ids.*Received: 1"),
        ({"num_layers": 2}, r"StaticConfig does not support `num_layers`. Received: 2"),
        ({"hidden_size": 0}, r"`hidden_size` must be an integer of at least 1. Received: 0"),
        ({"dropout": 1.0}, r"`dropout` must be a number that is at least 0"),
        ({"pooler_activation": "sine"}, r"`pooler_activation` must be one of"),
    ],
)
def test_what_a_table_is_not(fields, message):
    with pytest.raises(ValueError, match=message):
        make(**fields)


def test_segments_are_refused():
    with pytest.raises(ValueError, match=r"not support segments. Received: segment_ids of shape"):
        make()({"token_ids": IDS, "segment_ids": MASK})


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="torch does not train")
def test_features_are_of_encoders_with_layers(tiny_vocabulary):
    encoder = make(vocabulary_size=len(tiny_vocabulary))
    with pytest.raises(ValueError, match=r"use kbert.tasks.TextEmbedder.*a Static"):
        kbert.features(encoder, kbert.WordPieceTokenizer(tiny_vocabulary), ["fox"])


@pytest.mark.jax_slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="torch does not train")
def test_a_classifier_reads_the_mean(tiny_vocabulary):
    """Rows are texts alone, one behind the other: the words decide."""
    keras.utils.set_random_seed(1)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = StaticConfig(
        vocabulary_size=tokenizer.vocabulary_size, hidden_size=12, pooler_activation="identity"
    )
    task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
    ids = [tokenizer.encode([x]) for x in ("fox dog", "over")]
    row = ops.convert_to_numpy(task.build_inputs(*ids)["token_ids"])[0]
    wanted = [tokenizer.token_to_id(x) for x in ("fox", "dog", "over")]
    assert row[:4].tolist() == [*wanted, 0]  # neither [CLS] nor [SEP]
    texts = [(x, "over") for x in ("the fox", "fox jumps", "a dog", "lazy dog")] * 4
    labels = ["yes", "yes", "no", "no"] * 4
    task.fit(texts, labels, epochs=8, batch_size=8, learning_rate=0.1, verbose=0)
    assert task.evaluate(texts, labels, verbose=0)["accuracy"] == 1.0
