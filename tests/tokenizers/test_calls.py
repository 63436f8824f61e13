"""Tokenizers are functions of texts, of every kind: eagerly, in `tf.data`, in a Keras model."""

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.tokenizers import SPECIAL_TOKENS, train_unigram
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


def arrays(features):
    return {name: np.asarray(x).tolist() for name, x in features.items()}


def test_texts_to_a_padded_batch(tokenizers):
    tokenizer = tokenizers["wordpiece"]
    batch = arrays(tokenizer(TEXTS, padding=True))
    assert batch == {
        "token_ids": [[2, 5, 6, 7, 3], [2, 3, 0, 0, 0], [2, 8, 3, 0, 0]],
        "segment_ids": [[0] * 5] * 3,
        "padding_mask": [[1] * 5, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    }
    assert arrays(tokenizer(tf.constant(TEXTS), padding="longest", max_length=64)) == batch
    assert arrays(tokenizer(TEXTS, padding=True, max_length=4))["token_ids"][0] == [2, 5, 6, 3]
    assert arrays(tokenizer("sun", padding="max_length", max_length=4))["token_ids"] == [
        [2, 8, 3, 0]
    ]
    pairs = arrays(tokenizer("sun", "the fox", padding=True))
    assert pairs["token_ids"] == [[2, 8, 3, 5, 7, 3]]
    assert pairs["segment_ids"] == [[0, 0, 0, 1, 1, 1]]


def test_padded_batches_of_other_kinds(tokenizers):
    """RoBERTa has two separators, XLNet's [CLS] is last, ELMo's words are characters."""
    bpe = tokenizers["bpe"]
    pair = arrays(bpe("s", "s", padding=True))["token_ids"][0]
    assert pair == [0, pair[1], 2, 2, pair[1], 2]
    model = train_unigram(["the red fox"] * 9, 40, layout="xlnet")
    xlnet = kbert.UnigramTokenizer(model, layout="xlnet")
    row = xlnet("a", padding=True)
    assert row["token_ids"].numpy()[0, -2:].tolist() == [xlnet.sep_id, xlnet.cls_id]
    assert row["segment_ids"].numpy()[0, -1] == 2
    elmo = tokenizers["characters"]
    characters = elmo(["the sun", ""], padding=True)["token_ids"]
    assert characters.shape == (2, 4, 50)
    np.testing.assert_array_equal(characters, elmo.pad_sentences(["the sun", ""])["character_ids"])
    with pytest.raises(ValueError, match=r"padding, a first and a separator token.*without pad"):
        tokenizers["words"](TEXTS, padding=True)


def test_a_fixed_width_is_known_to_a_dataset(tokenizers):
    texts = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3)
    batches = texts.map(lambda x: tokenizers["wordpiece"](x, padding="max_length", max_length=8))
    assert {tuple(spec.shape) for spec in batches.element_spec.values()} == {(None, 8)}
    assert next(iter(batches))["token_ids"].shape == (3, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 8}, r"pass padding=True. Received: second=None, max_length=8"),
        ({"second": ["a"] * 3}, "pass padding=True"),
        ({"padding": "max_length"}, "needs max_length. Received: max_length=None"),
        ({"padding": "left"}, "padding must be .* Received: padding='left'"),
        ({"padding": True, "max_length": 1}, "max_length must be at least 2"),
        ({"padding": True, "max_length": 8.5}, "must be an integer. Received: 8.5"),
    ],
)
def test_what_a_padded_batch_refuses(tokenizers, options, message):
    with pytest.raises(ValueError, match=message):
        tokenizers["wordpiece"](TEXTS, **options)
