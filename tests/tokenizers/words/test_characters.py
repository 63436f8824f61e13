"""Characters of words: the rule of bilm-tf, for any Unicode and any bytes, on every way in."""

import json
import pickle
import re

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from kbert.tokenizers import CharacterTokenizer, character_ids, load_tokenizer

BYTES = st.binary(max_size=70)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=70).map(str.encode)
WORDS = st.lists(BYTES | UNICODE | st.sampled_from([b"<S>", b"</S>", b"<UNK>", b""]), max_size=6)


def bilm(word: bytes, max_characters: int = 50) -> list[int]:
    """The rule in words of its own: 261 numbers, as `UnicodeCharsVocabulary` has them."""
    ends = {b"<S>": [256], b"</S>": [257]}
    inside = ends.get(word, list(word[: max_characters - 2]))
    row = [258, *inside, 259]
    return row + [260] * (max_characters - len(row))


def with_padding(words: list[bytes], max_characters: int = 50) -> np.ndarray:
    rows = [bilm(word, max_characters) for word in words]
    return np.array(rows, np.int32).reshape(len(words), max_characters) + 1


@settings(max_examples=200, deadline=None)
@given(WORDS, st.integers(3, 60))
def test_any_words_have_the_characters_of_the_rule(words, max_characters):
    ids = character_ids(tf.constant(words, tf.string), max_characters)
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(ids, with_padding(words, max_characters))
    without = character_ids(tf.constant(words, tf.string), max_characters, padding=False)
    np.testing.assert_array_equal(without, with_padding(words, max_characters) - 1)


@settings(max_examples=30, deadline=None)
@given(WORDS)
def test_eager_graph_and_tf_data_agree(words):
    expected = with_padding(words)
    np.testing.assert_array_equal(GRAPH(tf.constant(words, tf.string)), expected)
    rows = tf.data.Dataset.from_tensor_slices(tf.constant(words, tf.string)).map(character_ids)
    assert [row.tolist() for row in rows.as_numpy_iterator()] == expected.tolist()


GRAPH = tf.function(character_ids, input_signature=[tf.TensorSpec(None, tf.string)])


@pytest.mark.parametrize(
    "word",
    [b"x" * 10_000, b"\0" * 10_000, "é".encode() * 5_000, b"a" * 47, b"a" * 48, b"a" * 49],
    ids=["long", "zeros", "cut in a character", "47", "48", "49"],
)
def test_long_words_lose_their_end(word):
    np.testing.assert_array_equal(character_ids([word])[0], with_padding([word])[0])


def test_shapes_are_kept():
    words = np.array(["a", "bc", "<S>", "</S>", "", "d"], object)
    flat = with_padding([word.encode() for word in words])
    for shape in [(6,), (2, 3), (1, 2, 3), (3, 1, 2, 1)]:
        ids = character_ids(words.reshape(shape).tolist())
        assert ids.shape == (*shape, 50)
        np.testing.assert_array_equal(np.reshape(ids, [6, 50]), flat)
    np.testing.assert_array_equal(character_ids("bc"), flat[1])
    assert character_ids([]).shape == (0, 50)
    assert character_ids([[], []]).shape == (2, 0, 50)


@pytest.mark.parametrize("nested", [[["a", "<S>"], [], ["b"]], [[["a"], []], [["b", "c"]], []]])
def test_ragged_words_keep_their_rows(nested):
    words = tf.ragged.constant(nested, tf.string)
    for ids in (character_ids(words), tf.function(character_ids)(words)):
        assert ids.shape.as_list() == [*words.shape.as_list(), 50]
        assert [s.numpy().tolist() for s in ids.nested_row_splits] == [
            s.numpy().tolist() for s in words.nested_row_splits
        ]
        flat = words.flat_values.numpy().tolist()
        np.testing.assert_array_equal(ids.flat_values, with_padding(flat))


def test_the_ends_of_a_sentence_are_told_from_bytes():
    ids = character_ids([b"\0", b"\1", b"<S>", b"</S>"])[:, :3].numpy().tolist()
    assert ids == [[259, 1, 260], [259, 2, 260], [259, 257, 260], [259, 258, 260]]


@pytest.mark.parametrize("size", [3, 50])
def test_special_tokens_are_words(size):
    tokenizer = CharacterTokenizer(size)
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id]
    assert np.array_equal(special, tokenizer.encode_words(["<S>", "</S>", ""]))
    assert np.array_equal(tokenizer.pad_id, np.zeros(size))


@pytest.mark.parametrize("size", [2, 0, -1])
def test_a_word_needs_three_places(size):
    for make in (lambda: character_ids(["a"], size), lambda: CharacterTokenizer(size)):
        with pytest.raises(ValueError, match=f"must be 3 or more.*Received: {size}"):
            make()


def test_encode_splits_at_white_space():
    texts = ["The  sun\tran\u3000.", "", " \n", "<S> caf\u00e9 </S>"]
    tokenizer = CharacterTokenizer(7)
    expected = [with_padding([w.encode() for w in text.split()], 7).tolist() for text in texts]
    ids = tokenizer.encode(texts)
    assert ids.to_list() == expected
    assert ids.shape.as_list() == [4, None, 7]
    assert tokenizer.encode(texts[0]).numpy().tolist() == expected[0]
    data = tf.data.Dataset.from_tensor_slices(texts).batch(3).map(tokenizer.encode)
    assert [row for batch in data for row in batch.to_list()] == expected
    np.testing.assert_array_equal(
        tokenizer.encode_words(["a b", ""]), with_padding([b"a b", b""], 7)
    )


def test_sentences_are_padded_to_the_longest():
    tokenizer = CharacterTokenizer(6)
    sentences = [["The", "sun"], [], ["It"]]
    begin, end = with_padding([b"<S>", b"</S>"], 6)
    the, sun, it = with_padding([b"The", b"sun", b"It"], 6)
    none = np.zeros(6, np.int32)
    batch = tokenizer.pad_sentences(sentences)
    expected = [[begin, the, sun, end], [begin, end, none, none], [begin, it, end, none]]
    np.testing.assert_array_equal(batch["character_ids"], expected)
    assert batch["padding_mask"].numpy().tolist() == [[1] * 4, [1, 1, 0, 0], [1, 1, 1, 0]]
    bare = tokenizer.pad_sentences(sentences, edges=False)
    np.testing.assert_array_equal(bare["character_ids"], [[the, sun], [none, none], [it, none]])
    assert bare["padding_mask"].numpy().tolist() == [[1, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize("edges", [True, False])
def test_every_form_of_sentences_gives_one_batch(edges):
    texts, words = ["The sun", "", "It"], [["The", "sun"], [], ["It"]]
    tokenizer = CharacterTokenizer()
    expected = tokenizer.pad_sentences(words, edges)
    forms = [texts, tf.constant(texts), np.array(texts), tf.ragged.constant(words, tf.string)]
    found = [tokenizer.pad_sentences(form, edges) for form in forms]
    found.append(tf.function(tokenizer.pad_sentences)(tf.constant(texts), edges))
    for batch in found:
        for name, value in expected.items():
            assert value.dtype == batch[name].dtype == tf.int32
            np.testing.assert_array_equal(batch[name], value)


def test_no_sentences_and_no_words():
    tokenizer = CharacterTokenizer()
    assert tokenizer.pad_sentences([])["padding_mask"].shape[0] == 0
    assert tokenizer.pad_sentences([[], []], edges=False)["character_ids"].shape == (2, 0, 50)


def test_sentences_that_are_none():
    tokenizer = CharacterTokenizer()
    with pytest.raises(TypeError, match="Received: one str; put it in a list"):
        tokenizer.pad_sentences("The sun")
    with pytest.raises(TypeError, match="Received: one int; put it in a list"):
        tokenizer.pad_sentences(7)
    for wrong in ("sun", ["The", 7], [["The"]], 7, None):
        shown = re.escape(f"Received: {wrong!r} among 2")
        with pytest.raises(TypeError, match=f"all texts or all lists of words, .*{shown}"):
            tokenizer.pad_sentences([["The"], wrong])
    with pytest.raises(ValueError, match=r"1-D list or tensor of strings. Received: .*\(1, 2\)"):
        tokenizer.encode([["The", "sun"]])


def test_saved_loaded_and_pickled(tmp_path):
    tokenizer = CharacterTokenizer(30)
    tokenizer.save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert config == {"tokenizer_class": "CharacterTokenizer", "max_characters": 30}
    for copy in (load_tokenizer(tmp_path / "model"), pickle.loads(pickle.dumps(tokenizer))):
        assert (copy.kind, copy.get_config()) == ("characters", {"max_characters": 30})
        assert copy.checksum == tokenizer.checksum != CharacterTokenizer().checksum
    assert load_tokenizer(tmp_path / "model", max_characters=9).max_characters == 9
