"""Ids without TensorFlow are those of the graph."""

import unicodedata

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from kbert.export.text_graphs import HARD_TEXTS
from kbert.tokenizers import SPECIAL_TOKENS, BytePairTokenizer, WordPieceTokenizer, WordTokenizer
from kbert.tokenizers.arrays import NeedsTensorFlow, encode_each
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.tokenizers.wordpiece.characters import _CODES, character_rules
from kbert.tokenizers.wordpiece.without_tensorflow import WordSpacing

pytestmark = pytest.mark.tensorflow
LETTERS = "abcdefghijklmnopqrstuvwxyzéßσςαβ語東日"
VOCABULARY = [
    *SPECIAL_TOKENS,
    *LETTERS,
    *("##" + x for x in LETTERS),
    *"ab ##ing the ! , ' [ ]".split(),
]
TEXT = st.one_of(
    st.text(max_size=40),
    st.text("thing ab'!,Σσ\u0301\u00ad\u200b\t\r\n\u2028[]\ufffd東日\U0001d165\u0345", max_size=40),
)
# What Unicode 14 and 15 added, which Python 3.11 and the two tables of TensorFlow know in part.
YOUNG = (range(0x10570, 0x105C0), (0x2C2F, 0xA7C0, 0xA7D0, 0xA7D6, 0xA7D8))


def assert_alike(tokenizer, texts):
    wanted, found = tokenizer.encode(texts), tokenizer.array_encoder(texts)
    assert found.to_list() == wanted.to_list()
    assert found.dtype == np.int32


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_word_pieces(lowercase, strip_accents):
    options = {"strip_accents": strip_accents, "max_word_characters": 20}
    tokenizer = WordPieceTokenizer(VOCABULARY, lowercase, **options)
    assert_alike(
        tokenizer, [*HARD_TEXTS, "a" * 20, "a" * 21, "Σ ΑΣ ΑΣ\u0301 Α\u200bΣ", b"caf\xff\xc3\xa9"]
    )

    @settings(max_examples=150, deadline=None)
    @given(st.lists(TEXT, max_size=4))
    def check(texts):
        known = [
            "".join(x for x in text if unicodedata.category(x) not in ("Cn", "Cs") and not young(x))
            for text in texts
        ]
        assert_alike(tokenizer, known)

    check()


def young(character):
    return any(ord(character) in codes for codes in YOUNG)


@pytest.mark.parametrize(
    "options", [(True, True, True), (False, False, True), (True, False, False)]
)
def test_every_character(options):
    """The rules of the graph, but for what one side's Unicode does not know yet."""
    rules, words = character_rules(*options), WordSpacing(*options)
    alone = set(rules.alone)
    for code in _CODES:
        character = chr(code)
        if unicodedata.category(character) == "Cn" or young(character):
            continue
        become = rules.changed.get(character, character)
        wanted = "".join(f" {x} " if x in alone else x for x in become)
        found = words[code]
        assert (found.split(), not found) == (wanted.split(), not wanted), hex(code)


@pytest.mark.parametrize("prefix", [True, False])
def test_byte_pairs(prefix):
    vocabulary = [*CHARACTERS, "lo", "low", "Ġlow", "Ġt", "Ġth"]
    merges = ["l o", "lo w", "Ġ low", "Ġ t", "Ġt h"]
    tokenizer = BytePairTokenizer(vocabulary, merges, add_prefix_space=prefix)
    assert_alike(tokenizer, [*HARD_TEXTS, "low  lower, low's the 12 lowlow\n", b"lo\xffw"])

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.text("low th'sé語 \n\t1²😀", max_size=30), max_size=4))
    def check(texts):
        assert_alike(tokenizer, texts)

    check()


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("normalization", ["nfc", None])
@pytest.mark.parametrize("late", [None, ["low", "é!"]])
def test_byte_pairs_with_tokens_in_the_text(prefix, normalization, late):
    """Added ones, of which one begins as another; a mask that takes white space; NFC."""
    vocabulary = [*CHARACTERS, "Ġt", "  ", "   ", "low", "lowest", "é!", "<s>", "</s>", "<mask>"]
    tokenizer = BytePairTokenizer(
        vocabulary,
        ["Ġ t"],
        added_tokens=["  ", "   ", "low", "lowest", "é!"],
        normalized_tokens=late,
        special_tokens={"cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<s>"},
        special_tokens_in_text=True,
        mask_takes_space=True,
        normalization=normalization,
        add_prefix_space=prefix,
    )
    known = [x for x in HARD_TEXTS if all(unicodedata.category(y) != "Cn" for y in x)]
    spaces = "low\x1c \u2003\x85<mask> t<mask>"
    assert_alike(tokenizer, [*known, spaces, "<mask>", "<s><s>low", "e\u0301! é! lowe\u0301st"])

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.text("lowest é!\u0301<mask/>\n\u2003\x1c", max_size=30), max_size=4))
    def check(texts):
        assert_alike(tokenizer, texts)

    check()


def test_what_only_the_graph_knows_is_refused():
    added = [*VOCABULARY, "<url>"]
    for tokenizer in (
        WordPieceTokenizer(added, added_tokens=["<url>"]),
        WordPieceTokenizer(VOCABULARY, special_tokens_in_text=True),
        BytePairTokenizer(CHARACTERS, [], words="llama3"),
        WordTokenizer(["</S>", "<S>", "<UNK>", "a"]),
    ):
        with pytest.raises(NeedsTensorFlow, match=r"Without TensorFlow, .* Received: a \w+ with"):
            tokenizer.array_encoder(["a"])


def test_what_is_no_text_is_refused():
    tokenizer = WordPieceTokenizer(VOCABULARY)
    wanted = tokenizer.encode("ab").numpy().tolist()
    assert encode_each(tokenizer.array_encoder, "ab").tolist() == wanted
    with pytest.raises(TypeError, match=r"a str or bytes\. Received: None as number 1"):
        encode_each(tokenizer.array_encoder, ["a", None])
