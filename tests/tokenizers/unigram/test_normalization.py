"""What is done to a text before SentencePiece, against Python's own Unicode."""

import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from kbert.tokenizers.normalization import IS_MARK
from kbert.tokenizers.unigram.normalization import TextPreparation
from tests.tokenizers.unigram.sentencepiece_reference import preprocess

OPTIONS = {"albert": True, "stand_ins": {}, "neutral": "\ue000"}


def prepared(text: TextPreparation, given: list[str]) -> list[str]:
    return [out.decode() for out in text(text.hide(tf.constant(given))).numpy()]


@pytest.mark.parametrize(
    ("keep_accents", "lowercase"),
    [
        (True, False),
        (False, True),
        *(pytest.param(x, x, marks=pytest.mark.slow) for x in (True, False)),
    ],
)
def test_every_assigned_character_as_in_the_original_code(lowercase, keep_accents):
    text = TextPreparation(**OPTIONS, lowercase=lowercase, keep_accents=keep_accents)
    # U+0000 and U+0001 are told apart in the next test; later Unicode than the kernels' 14 is not.
    characters = [
        chr(code)
        for code in range(2, sys.maxunicode + 1)
        if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")
    ]
    expected = [preprocess(f"a{c}b", lowercase, keep_accents) for c in characters]
    found = prepared(text, [f"a{c}b" for c in characters])
    differing = {
        unicodedata.category(c)
        for c, x, y in zip(characters, found, expected, strict=True)
        if " ".join(x.split()) != y
    }
    assert differing <= ({"Lu"} if lowercase else set())  # cased letters of Unicode 15
    table = text.byte_table.numpy()
    codes = np.array([ord(c) for c in characters if c != "Σ"])
    sizes = np.array([len(out.encode()) - 2 for out in found])[[c != "Σ" for c in characters]]
    entries = table[np.minimum(codes, len(table) - 1)]
    assert (np.where(entries >= IS_MARK, 0, entries) == sizes).all()


def test_hiding_keeps_every_offset():
    stand_ins = {"[MASK]": "\ue001", "<s>": "\ue002"}
    options = {**OPTIONS, "stand_ins": stand_ins, "lowercase": True, "keep_accents": False}
    text = TextPreparation(**options)
    given = ["a``b''c```", "[MASK]<s> \ue001", "plain", "\0A\x01"]
    hidden = text.hide(tf.constant(given)).numpy()
    assert [len(x) for x in hidden] == [len(x.encode()) for x in given]
    assert prepared(text, given) == ['a"b"c"`', " \ue001  \ue002  \ue000", "plain", "\ue000a"]


def test_without_preparation_only_invalid_bytes_go():
    options = {**OPTIONS, "albert": False, "lowercase": False, "keep_accents": True}
    text = TextPreparation(**options)
    given = [b"``A\xff\tB\0\x01'' \xc3\xa9", "ＡＢ".encode()]
    assert text(text.hide(tf.constant(given))).numpy().tolist() == [
        b"``A\tB\0\x01'' \xc3\xa9", given[1]
    ]  # fmt: skip
