"""Ranges in the text as given: they cover it, piece by piece, whatever normalisation does to it."""

import io
import unicodedata

import hypothesis.strategies as st
import pytest
import sentencepiece
from hypothesis import given, settings

from kbert.tokenizers import UnigramTokenizer
from tests.tokenizers.unigram.sentencepiece_reference import WORDS, original_ids

RANGES = (
    (0x20, 0x17F),  # ASCII, Latin
    (0x2B0, 0x2FF),  # modifier letters, some of which decompose into a space and a mark
    (0x300, 0x36F),  # combining marks
    (0x386, 0x3CE),  # Greek
    (0x410, 0x45F),  # Cyrillic
    (0x621, 0x652),  # Arabic
    (0x905, 0x965),  # Devanagari
    (0x1E00, 0x1EFF),  # Vietnamese
    (0x2000, 0x206F),  # spaces, joiners
    (0x2100, 0x214F),  # letterlike signs
    (0x3000, 0x30FF),  # kana
    (0x3380, 0x33DF),  # squared units: one character, several letters
    (0xAC00, 0xAC80),  # Hangul
    (0xFB00, 0xFB06),  # ligatures
    (0xFDF0, 0xFDFB),  # Arabic ligatures of many letters
    (0xFF01, 0xFF5E),  # full width
    (0x1F600, 0x1F640),  # emoji
)
CHARACTERS = [
    chr(code)
    for first, last in RANGES
    for code in range(first, last + 1)
    if unicodedata.category(chr(code)) != "Cn"
] + ["\0", "\x01", "\t", "\n", "\x0b", "\x1c", "\x85", "\ue000", "\ufffd"]
TEXTS = st.lists(
    st.one_of(
        st.text(st.sampled_from(CHARACTERS), max_size=12),
        st.sampled_from([*WORDS, "2012,", "``", "''", "[MASK]", "<mask>"]),
    ),
    max_size=6,
).map(" ".join)
# What SentencePiece takes for a space besides white space, or drops.
UNSEEN = {chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA1), 0xAD, 0xFEFF, 0xFFFD)}


@pytest.fixture(scope="module")
def tokenizers(cased_model, multilingual_model) -> list[UnigramTokenizer]:
    return [
        UnigramTokenizer(cased_model),
        UnigramTokenizer(cased_model, lowercase=False, keep_accents=True),
        UnigramTokenizer(cased_model, lowercase=False, special_tokens_in_text=True),
        UnigramTokenizer(multilingual_model, layout="fairseq"),
        UnigramTokenizer(multilingual_model, layout="fairseq", special_tokens_in_text=True),
    ]


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
def test_ids_are_those_of_the_original_code(cased_model, multilingual_model, tokenizers, texts):
    processor = sentencepiece.SentencePieceProcessor(model_proto=cased_model)
    assert tokenizers[0].encode(texts).to_list() == [original_ids(processor, t) for t in texts]
    assert tokenizers[1].encode(texts).to_list() == [
        original_ids(processor, text, lowercase=False, keep_accents=True) for text in texts
    ]
    processor = sentencepiece.SentencePieceProcessor(model_proto=multilingual_model)
    assert tokenizers[3].encode(texts).to_list() == [
        [3 if i == 0 else i + 1 for i in row] for row in processor.encode(texts)
    ]


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
@pytest.mark.slow
def test_ranges_cover_the_text(tokenizers, texts):
    for tokenizer in tokenizers:
        out = {k: v.to_list() for k, v in tokenizer.encode_with_offsets(texts, "character").items()}
        assert tokenizer.encode(texts).to_list() == out["token_ids"]
        for text, starts, ends in zip(texts, out["starts"], out["ends"], strict=True):
            ranges = list(zip(starts, ends, strict=True))
            assert ranges == sorted(ranges)
            check_covered(text, ranges)


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=15, deadline=None)
def test_bytes_and_characters_are_the_same_ranges(tokenizers, texts):
    tokenizer = tokenizers[0]
    out = {k: v.to_list() for k, v in tokenizer.encode_with_offsets(texts, "character").items()}
    in_bytes = {k: v.to_list() for k, v in tokenizer.encode_with_offsets(texts).items()}
    assert out["token_ids"] == in_bytes["token_ids"]
    assert out["word_index"] == in_bytes["word_index"]
    for i, text in enumerate(texts):
        ranges = zip(out["starts"][i], out["ends"][i], strict=True)
        byte_ranges = zip(in_bytes["starts"][i], in_bytes["ends"][i], strict=True)
        utf8 = text.encode()
        assert [text[a:z].encode() for a, z in ranges] == [utf8[a:z] for a, z in byte_ranges]


def check_covered(text: str, ranges: list[tuple[int, int]]) -> None:
    """Whatever is in no range is a space, is dropped, or is a mark that became one."""
    covered = {position for start, end in ranges for position in range(start, end)}
    for position in set(range(len(text))) - covered:
        character = text[position]
        normal = unicodedata.normalize("NFKD", character)
        kinds = {unicodedata.category(c) for c in normal}
        assert character in UNSEEN or kinds <= {"Zs", "Zl", "Zp", "Cf", "Mn", "Me"}, ascii(text)


def test_pieces_are_what_their_ranges_hold(tokenizers):
    text = "The ``café'' of 2012, Straße 東京"
    for tokenizer in tokenizers[:3]:
        out = tokenizer.encode_with_offsets(text, "character")
        found = [text[a:z] for a, z in zip(out["starts"], out["ends"], strict=True)]
        pieces = [tokenizer.id_to_token(i) for i in out["token_ids"]]
        assert "".join(found) == text.replace(" ", "")
        by_piece = dict(zip(pieces, found, strict=True))
        assert by_piece[","] == ","
        assert "``" in found
        assert "''" in found


def test_pieces_of_one_character_have_its_range_all(tokenizers):
    out = tokenizers[3].encode_with_offsets("a㎏b", "character")
    ranges = set(zip(out["starts"].numpy(), out["ends"].numpy(), strict=True))
    assert (1, 2) in ranges
    assert ranges <= {(0, 0), (0, 1), (1, 2), (2, 3), (1, 3), (0, 2)}


def test_word_index_counts_what_stands_between_spaces(tokenizers):
    text = "Don't stop, [MASK]now 東京 ."
    out = tokenizers[2].encode_with_offsets(text, "character")
    words = {}
    for word, start, end in zip(out["word_index"], out["starts"], out["ends"], strict=True):
        words[int(word)] = words.get(int(word), "") + text[start:end]
    assert list(words.values()) == ["Don't", "stop,", "[MASK]", "now", "東京", "."]


def test_special_tokens_have_their_own_range(tokenizers):
    for tokenizer, token in ((tokenizers[2], "[MASK]"), (tokenizers[4], "<s>")):
        text = f"é{token}x {token}."
        out = tokenizer.encode_with_offsets(text, "character")
        found = [text[a:z] for a, z in zip(out["starts"], out["ends"], strict=True)]
        assert [x for x in found if x] == ["é", token, "x", token, "."]


@pytest.mark.parametrize("rule", ["nfkc", "identity"])
def test_rules_that_keep_tabs(rule):
    """SentencePiece keeps "\\t" and "\\n" there; the kernel splits at them as at spaces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a red fox and a dog"] * 50),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    )
    tokenizer = UnigramTokenizer(model.getvalue(), layout="t5", num_sentinels=0)
    found = tokenizer.encode_with_offsets(["a\tred \n fox", "a dog▁", "a dog"])
    expected = tokenizer.encode(["a red fox", "a dog", "a dog"]).to_list()
    assert found["token_ids"].to_list() == expected
    assert found["starts"].to_list()[1] == found["starts"].to_list()[2]
    assert found["ends"].to_list()[0][-1] == len("a\tred \n fox")
