"""Tokenizers are functions of texts, of every kind: eagerly, in `tf.data`, in a Keras model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.tables.inputs import build_inputs
from kbert.tokenizers import SPECIAL_TOKENS
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

TEXTS = ["the red fox", "", "sun"]
WORDS = [*SPECIAL_TOKENS, "the", "red", "fox", "sun"]


@pytest.fixture(scope="module")
def tokenizers(multilingual_model):
    return {
        "wordpiece": kbert.WordPieceTokenizer(WORDS),
        "bpe": kbert.BytePairTokenizer(
            ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "<mask>"], []
        ),
        "unigram": kbert.UnigramTokenizer(multilingual_model),
        "words": kbert.WordTokenizer(["<S>", "</S>", "<UNK>", "the", "red", "fox"]),
        "characters": kbert.CharacterTokenizer(),
    }


KINDS = ("wordpiece", "bpe", "unigram", "words", "characters")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_gives_what_encode_gives(tokenizers, kind):
    tokenizer = tokenizers[kind]
    wanted = tokenizer.encode(TEXTS)
    for texts in (TEXTS, np.array(TEXTS), tf.constant(TEXTS)):
        found = tokenizer(texts)
        assert isinstance(found, tf.RaggedTensor)
        assert found.dtype == tf.int32
        assert found.to_list() == wanted.to_list()
    one = tokenizer(TEXTS[0])
    assert isinstance(one, tf.Tensor)
    assert one.numpy().tolist() == wanted[0].numpy().tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_a_stage_of_a_dataset(tokenizers, kind):
    tokenizer = tokenizers[kind]
    batches = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3).map(tokenizer)
    assert next(iter(batches)).to_list() == tokenizer(TEXTS).to_list()
    rows = tf.data.Dataset.from_tensor_slices(TEXTS).map(tokenizer)
    assert [row.numpy().tolist() for row in rows] == [
        tokenizer(text).numpy().tolist() for text in TEXTS
    ]


@pytest.mark.tensorflow
def test_a_tokenizer_in_a_functional_model(tokenizers):
    tokenizer = tokenizers["wordpiece"]

    class Tokenize(keras.layers.Layer):
        def call(self, texts):
            specials = {"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id}
            return build_inputs(
                tokenizer(texts), **specials, pad_id=tokenizer.pad_id, max_length=16
            )

    config = kbert.EncoderConfig(
        vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16
    )
    encoder = kbert.Encoder(config)
    texts = keras.Input((), dtype="string")
    model = keras.Model(texts, encoder(Tokenize()(texts))["pooled"])
    vectors = model(tf.constant(TEXTS))
    ids = [[2, 5, 6, 7, 3], [2, 3, 0, 0, 0], [2, 8, 3, 0, 0]]
    inputs = {"token_ids": np.array(ids), "padding_mask": np.array(ids) > 0}
    np.testing.assert_allclose(vectors, encoder(inputs)["pooled"], atol=1e-5)
