"""Words between white space, in any script and among any bytes, against Python's own division."""

import re

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given, settings

from kbert.tokenizers.words.spaces import split_at_spaces

SPACES = [chr(c) for c in range(0x110000) if chr(c).isspace() and not 0x1C <= c <= 0x1F]
PATTERN = re.compile(b"|".join(re.escape(space.encode()) for space in SPACES))
UNICODE = st.text(st.sampled_from([*SPACES, *"ab,é東💡\0\u200b\ufeff\x1c"]), max_size=20)
# Among them pieces of wide white space.
BYTES = st.lists(st.sampled_from([b"\xe3", b"\x80", b"\xc2", b"\xa0", b"\xe2\x80", b"a", b" "]))


@settings(max_examples=200, deadline=None)
@given(st.lists(UNICODE.map(str.encode) | BYTES.map(b"".join) | st.binary(max_size=20), max_size=5))
def test_words_and_their_places(texts):
    words, starts, ends = split_at_spaces(tf.constant(texts, tf.string))
    assert starts.dtype == ends.dtype == tf.int32
    assert words.to_list() == [[word for word in PATTERN.split(text) if word] for text in texts]
    for text, *row in zip(texts, words.to_list(), starts.to_list(), ends.to_list(), strict=True):
        assert [text[start:end] for _, start, end in zip(*row, strict=True)] == row[0]


@pytest.mark.parametrize("space", SPACES, ids=ascii)
def test_every_space_separates_as_in_python(space):
    text = f"an{space}é{space}{space}東{space}"
    expected = [word.encode() for word in text.split()]
    assert split_at_spaces(tf.constant([text]))[0].to_list() == [expected]
