"""Texts into a Keras model of one's own: functional, saved, exported, in `tf.data`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.tokenizers import SPECIAL_TOKENS, train_unigram
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

TEXTS = ["the red fox", "", "sun"]
WORDS = [*SPECIAL_TOKENS, "the", "red", "fox", "sun"]


@pytest.fixture
def tokenizer():
    return kbert.WordPieceTokenizer(WORDS)


def encoder():
    return kbert.Encoder(
        kbert.EncoderConfig(
            vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16
        )
    )


def arrays(features):
    return {name: keras.ops.convert_to_numpy(x).tolist() for name, x in features.items()}


def classifier(tokenizer):
    texts = keras.Input((), dtype="string", name="texts")
    inputs = kbert.TextPreprocessor(tokenizer, max_length=8)(texts)
    return keras.Model(texts, keras.layers.Dense(2)(encoder()(inputs)["pooled"]))


def test_the_rows_of_the_tokenizer(tokenizer):
    preprocess = kbert.TextPreprocessor(tokenizer, max_length=8)
    wanted = arrays(tokenizer(TEXTS, padding="max_length", max_length=8))
    for texts in (TEXTS, np.array(TEXTS), np.array(TEXTS)[:, None]):
        assert arrays(preprocess(texts)) == wanted
    pairs = arrays(tokenizer(TEXTS, TEXTS, padding="max_length", max_length=8))
    assert arrays(preprocess(TEXTS, TEXTS)) == pairs


def test_a_stage_of_a_dataset(tokenizer):
    preprocess = kbert.TextPreprocessor(tokenizer, max_length=8)
    data = tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 0])).batch(3)
    features, labels = next(iter(data.map(lambda x, y: (preprocess(x), y))))
    assert arrays(features) == arrays(preprocess(TEXTS))
    assert labels.numpy().tolist() == [0, 1, 0]


@pytest.mark.tensorflow
def test_a_model_of_texts_trains_and_is_saved(tokenizer, tmp_path):
    model = classifier(tokenizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.fit(np.array(TEXTS, object), np.array([0, 1, 0]), batch_size=2, epochs=1, verbose=0)
    logits = model.predict(tf.constant(TEXTS), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(tf.constant(TEXTS)), logits, atol=1e-6)


@pytest.mark.tensorflow
def test_a_savedmodel_of_texts(tokenizer, tmp_path):
    model = classifier(tokenizer)
    model.export(str(tmp_path / "served"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(
        served.serve(tf.constant(TEXTS)), model(tf.constant(TEXTS)), atol=1e-5
    )


def test_every_kind_of_tokenizer_is_rebuilt_from_its_config():
    unigram = train_unigram(["the red fox and the sun"] * 9, 24, layout="fairseq")
    kinds = [
        kbert.WordPieceTokenizer(WORDS),
        kbert.BytePairTokenizer(["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "<mask>"], []),
        kbert.UnigramTokenizer(unigram, layout="fairseq"),
        kbert.CharacterTokenizer(),
    ]
    for kind in kinds:
        layer = kbert.TextPreprocessor(kind, max_length=16)
        rebuilt = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
        assert rebuilt.tokenizer.checksum == kind.checksum
        assert arrays(rebuilt(["the Sun"])) == arrays(layer(["the Sun"]))


def test_what_is_refused(tokenizer):
    with pytest.raises(ValueError, match="max_length must be at least 3"):
        kbert.TextPreprocessor(tokenizer, max_length=2)
    with pytest.raises(ValueError, match="without pad"):
        kbert.TextPreprocessor(kbert.WordTokenizer(["<S>", "</S>", "<UNK>"]), max_length=8)
    preprocess = kbert.TextPreprocessor(tokenizer, max_length=8)
    labelled = tf.data.Dataset.from_tensor_slices((TEXTS, [0, 1, 0])).batch(3)
    for call in (
        lambda: labelled.map(preprocess),  # labels are no second texts
        lambda: preprocess(TEXTS, np.array([0, 1, 0])),
        lambda: preprocess(keras.Input((), dtype="int32")),
    ):
        with pytest.raises(TypeError, match=r"reads strings; .*\(preprocess\(x\), y\)"):
            call()
