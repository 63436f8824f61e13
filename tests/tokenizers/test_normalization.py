"""Normalisation: what is dropped, kept and folded, in any locale."""

import os

import numpy as np
import pytest
import tensorflow as tf

from kbert.tokenizers import normalize
from kbert.tokenizers.normalization import IS_MARK, byte_table
from tests.processes import run_code

UNCASED = {
    "Señor ŁÓDŹ": "senor łodz",
    "İstanbul": "istanbul",
    "ΟΔΟΣ": "οδος",
    "½ … ™ ﬁ ß ² ＡＢ": "½ … ™ ﬁ ß ² ａｂ",  # NFD, not NFKC; width stays
    "a\u0000b\ufffdc\u200dd\u00ade\u0007": "abcde",
    "a\tb\nc\rd\u00a0e": "a\tb\nc\rd\u00a0e",
    "a\u2028b\u2029c": "a b c",
    "각": "\u1100\u1161\u11a8",
    "हिन्दी": "हिनदी",  # vowel signs (Mc) stay, marks (Mn) go
}


@pytest.mark.parametrize("text", UNCASED, ids=ascii)
def test_uncased(text):
    assert normalize(tf.constant(text)).numpy().decode() == UNCASED[text]


def test_cased_cleans_only():
    text = tf.constant("Señor\u200b İ e\u0301 각\u2028!")
    assert normalize(text, lowercase=False).numpy().decode() == "Señor İ e\u0301 각 !"


def test_any_shape_and_tf_data():
    texts = tf.constant([["É", "é"], ["E", "e\u0301"]])
    assert normalize(texts).numpy().tolist() == [[b"e", b"e"]] * 2
    data = tf.data.Dataset.from_tensors(texts).map(normalize)
    assert next(iter(data)).numpy().tolist() == [[b"e", b"e"]] * 2


def test_invalid_utf8_is_dropped_and_joins_nothing():
    texts = [b"a\xffb", b"\xe4\xc2\xad\xbd\xa0", b"\xed\xa0\x80", b"\xf0\x9f\x98", "é".encode()]
    assert normalize(tf.constant(texts)).numpy().tolist() == [b"ab", b"", b"", b"", b"e"]


@pytest.mark.slow
def test_a_turkish_locale_changes_nothing():
    """TensorFlow's Unicode lower-casing follows the locale of the process: I becomes ı there."""
    code = (
        "import tensorflow as tf; from kbert.tokenizers import normalize;"
        "print(ascii(tf.strings.lower('TITLE', encoding='utf-8').numpy().decode()),"
        "normalize(tf.constant('TITLE İI')).numpy().decode())"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    out = run_code(code, environment=environment, LANG="tr_TR.UTF-8", PYTHONUTF8="1")
    assert out.split("\n")[0] == r"'t\u0131tle' title ii"


@pytest.mark.parametrize("lowercase", [True, False])
def test_byte_table_holds_for_every_character_in_context(lowercase):
    codes = np.r_[0:0xD800, 0xE000:0xF0000:7].astype(np.int32)
    texts = tf.strings.unicode_encode(np.c_[np.full_like(codes, 0x41), codes, codes], "UTF-8")
    table = byte_table(lowercase, lowercase)
    expected = 1 + 2 * (table[np.minimum(codes, len(table) - 1)] % IS_MARK).astype(int)
    lengths = tf.strings.length(normalize(texts, lowercase=lowercase)).numpy()
    assert np.array_equal(lengths, expected)


def test_byte_table_tells_marks_from_controls():
    table = byte_table(True, True)
    assert table[0x301] == IS_MARK
    assert table[0x200B] == 0
    assert table[ord("é")] == 1
    assert byte_table(False, False)[0x301] == 2
