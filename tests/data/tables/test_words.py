import functools
import operator

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given, settings

from kbert.data.tables.words import split_at_white_space, word_windows

WHITE = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
)
TEXTS = st.text(st.one_of(st.sampled_from(WHITE + "aé\u200b\0💡"), st.characters(codec="utf-8")))
# Pieces in each word of each sentence.
SENTENCES = st.lists(st.lists(st.integers(1, 9), max_size=30), max_size=5)


# As in a pipeline, and traced once for many examples.
traced_split = tf.function(
    split_at_white_space, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
)
traced_windows = tf.function(
    lambda *arguments: vars(word_windows(*arguments)),
    input_signature=[
        tf.RaggedTensorSpec([None, None, None], tf.int32),
        *[tf.TensorSpec([], tf.int64)] * 2,
    ],
    autograph=False,
)


def in_python(text):
    """(word, start, end) of a text."""
    words, start = [], None
    for place, character in enumerate(text + " "):
        if not character.isspace() and start is None:
            start = place
        elif character.isspace() and start is not None:
            words.append((text[start:place].encode(), start, place))
            start = None
    assert [word.decode() for word, _, _ in words] == text.split()
    return words


@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=60, deadline=None)
def test_words_and_their_places(texts):
    columns = [x.to_list() for x in traced_split(tf.constant(texts, tf.string))]
    found = [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]
    assert found == [in_python(text) for text in texts]


def test_all_white_space_splits():
    words, starts, _ = split_at_white_space(tf.constant([WHITE.join("ab")]))
    assert words.to_list() == [[b"a", b"b"]]
    assert starts.to_list() == [[0, len(WHITE) + 1]]


def test_bytes_that_are_not_utf8_belong_to_words():
    words, starts, ends = split_at_white_space(tf.constant([b"\xff\xfe a\xc3 b"]))
    assert words.to_list() == [[b"\xff\xfe", b"a\xc3", b"b"]]
    assert starts.to_list() == [[0, 3, 6]]
    assert ends.to_list() == [[2, 5, 7]]


def numbered(sentences):
    """Every piece of every word with an id of its own."""
    ids = iter(range(10**6))
    rows = [[[next(ids) for _ in range(size)] for size in row] for row in sentences]
    return rows, tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=2)


def one_by_one(rows, length, overlap):
    """The same windows, word after word: (ids, places, words, sentence)."""
    windows, before = [], 0
    for sentence, row in enumerate(rows):
        row = [word[:length] for word in row]
        begin = 0
        while begin < len(row):
            end = begin
            while end < len(row) and sum(map(len, row[begin : end + 1])) <= length:
                end += 1
            words = row[begin:end]
            places = [sum(map(len, words[:i])) for i in range(len(words))]
            numbers = list(range(before + begin, before + end))
            windows.append((functools.reduce(operator.iadd, words, []), places, numbers, sentence))
            if end == len(row):
                break
            # Back over the words of the overlap, as long as the word behind fits too.
            begin = end
            while (
                sum(map(len, row[begin - 1 : end])) <= overlap
                and sum(map(len, row[begin - 1 : end + 1])) <= length
            ):
                begin -= 1
        before += len(row)
    return windows


@given(sentences=SENTENCES, length=st.integers(1, 12), overlap=st.integers(0, 11))
@settings(max_examples=100, deadline=None)
def test_windows_are_those_found_word_by_word(sentences, length, overlap):
    overlap = min(overlap, length - 1)
    rows, pieces = numbered(sentences)
    found = traced_windows(pieces, length, overlap)
    columns = [found[name].to_list() for name in ("ids", "places", "words")]
    columns += [found["sentences"].numpy().tolist()]
    assert list(zip(*columns, strict=True)) == one_by_one(rows, length, overlap)
    held = [word for window in columns[2] for word in window]
    assert sorted(set(held)) == list(range(sum(map(len, sentences))))  # every word is in one
    assert all(len(ids) <= length for ids in columns[0])


@pytest.mark.parametrize("sentences", [[], [[]], [[3], [], [3, 3]]])
def test_in_a_graph(sentences):
    _, pieces = numbered(sentences)
    graph = tf.function(
        lambda pieces: word_windows(pieces, 4, 1).ids,
        input_signature=[tf.RaggedTensorSpec([None, None, None], tf.int32)],
        autograph=False,
    )
    assert graph(pieces).to_list() == word_windows(pieces, 4, 1).ids.to_list()


def test_a_thousand_windows_of_one_text():
    ids = tf.range(100_000)
    pieces = tf.RaggedTensor.from_tensor(tf.reshape(ids, [1, -1, 1]), ragged_rank=2)
    windows = word_windows(pieces, 100, 0)
    assert windows.ids.nrows() == 1000
    assert windows.ids[-1][-1] == 99_999
