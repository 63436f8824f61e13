"""Canonical composition in the graph, and ranges in the text before it."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from kbert.tokenizers.bpe.nfc import _GROUP, _JOINING, _PLAIN, nfc, ranges_before_nfc
from kbert.tokenizers.token_segments import split_at


@pytest.fixture(scope="module")
def characters() -> tf.Tensor:
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    return tf.constant([chr(code).encode() for code in codes])


def holds(pattern: str, characters: tf.Tensor) -> np.ndarray:
    return tf.strings.regex_full_match(characters, f"[{pattern}]").numpy()


def test_every_character_that_can_join_others_is_known(characters):
    """By the tables of the operator itself: parts of what is composed, and marks that move."""
    decomposed = tf_text.normalize_utf8(characters, "NFD")
    joining = holds(_JOINING, characters)
    known = {c.decode() for c in characters.numpy()[joining]}
    assert {c for text in decomposed.numpy() for c in text.decode()[1:]} <= known
    starts = {c.decode()[0] for c in decomposed.numpy()[~joining]}
    assert not starts & known

    def moves(texts: tf.Tensor) -> np.ndarray:
        return (tf_text.normalize_utf8(texts, "NFD") != texts).numpy()

    moving = moves("\u0345" + characters) | moves(characters + "\u0334")
    moving &= (decomposed == characters).numpy()  # a composed letter is taken apart there
    assert moving.sum() > 800
    assert not (moving & ~joining).any()


def test_plain_characters_stay(characters):
    plain = tf.boolean_mask(characters, holds(_PLAIN, characters))
    np.testing.assert_array_equal(nfc(plain), plain)
    assert not holds(_JOINING, plain).any()


def test_groups_compose_by_themselves():
    texts = tf.constant(
        ["xe\u0301 \u1112\u1161\u11ab\u212b\0", "\u0323\u0307q\u0307\u0323", "", "plain"]
    )
    groups = split_at(texts, _GROUP)
    assert [len(row) // 2 for row in groups.to_list()] == [3, 2, 0, 0]
    composed = tf.strings.reduce_join(groups.with_flat_values(nfc(groups.flat_values)), 1)
    np.testing.assert_array_equal(composed, nfc(texts))


def test_ranges():
    text = "xe\u0301y\u1112\u1161\u11abz"  # NFC: x, é of 2 bytes, y, a syllable of 3, z
    starts = tf.ragged.constant([[0], [0, 1, 2, 3, 3, 4, 7, 5, 6]], tf.int32)
    ends = tf.ragged.constant([[2], [1, 2, 3, 3, 4, 7, 8, 6, 8]], tf.int32)
    texts = tf.constant(["xy", text])
    first, last = ranges_before_nfc(texts, nfc(texts), starts, ends)
    assert first.to_list() == [[0], [0, 1, 1, 4, 4, 5, 14, 5, 5]]
    assert last.to_list() == [[2], [1, 4, 4, 4, 5, 14, 15, 14, 15]]


def test_nothing():
    none = tf.ragged.constant([], ragged_rank=1, dtype=tf.int32)
    texts = tf.constant([], tf.string)
    assert nfc(texts).shape == [0]
    assert ranges_before_nfc(texts, nfc(texts), none, none)[0].to_list() == []
