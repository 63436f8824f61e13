"""Byte-level BPE against Hugging Face's `tokenizers`: any text, on a vocabulary trained here."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer

from kbert.tokenizers import BytePairTokenizer, train_byte_pair

TEXT = (
    "The flightless bird isn't at home; they're 1234 of 56, and we'll see what it'd cost. "
    "Ein größeres Haus für Señor Łódź. Быстрая лиса прыгает. 東京は日本の首都です。 "
    "  def f(x):\n    return x\t# 💡 👩‍🚀\r\n\n\n"
)
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
# Contractions, runs of white space of every kind, digits of other scripts, marks, letters that are
# younger than some tables, and whatever hypothesis finds.
PARTS = st.one_of(
    st.text(max_size=15),
    st.text(st.sampled_from(TEXT), max_size=25),
    st.text(st.sampled_from(" \t\n\r\x0b\x85\xa0\u2003\u2028\u3000\u200b\ufeff\0x"), max_size=8),
    st.text(st.sampled_from("'streldvm ’SD1٣Ⅷ½²\u0301\U00011382\U0002ebf0\U00010d40"), max_size=12),
    st.sampled_from([*SPECIALS, " <mask>", "<mask> ", "<mask", "<|endoftext|>"]),
)
TEXTS = st.lists(PARTS, max_size=5).map("".join)


@pytest.fixture(scope="module")
def model() -> tuple[list[str], list[str]]:
    return train_byte_pair([TEXT] * 3, 500)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="bare", marks=pytest.mark.slow),
        pytest.param(True, id="prefixed"),
    ],
)
def pair(request, model):
    vocabulary, merges = model
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    theirs = ByteLevelBPETokenizer(
        ids, [tuple(m.split(" ")) for m in merges], add_prefix_space=request.param
    )
    plain = Tokenizer.from_str(json.dumps(json.loads(theirs.to_str()) | {"post_processor": None}))
    with_specials = Tokenizer.from_str(plain.to_str())
    with_specials.add_special_tokens(SPECIALS[:-1])
    with_specials.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    options = {"add_prefix_space": request.param}
    return (
        (BytePairTokenizer(vocabulary, merges, **options), plain),
        (
            BytePairTokenizer(vocabulary, merges, special_tokens_in_text=True, **options),
            with_specials,
        ),
    )


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_ids_ranges_and_words(pair, texts):
    for ours, theirs in pair:
        out = {k: v.to_list() for k, v in ours.encode_with_offsets(texts, "character").items()}
        assert ours.encode(texts).to_list() == out["token_ids"]
        for i, expected in enumerate(theirs.encode_batch(texts)):
            assert out["token_ids"][i] == expected.ids, ascii(texts[i])
            ranges = list(zip(out["starts"][i], out["ends"][i], strict=True))
            for piece, ours_is, theirs_is in zip(
                expected.tokens, ranges, expected.offsets, strict=True
            ):
                if piece != "Ġ" or not ours.add_prefix_space:  # see the next test
                    assert ours_is == theirs_is, ascii(texts[i])
            assert out["word_index"][i] == expected.word_ids, ascii(texts[i])


def test_an_added_space_has_no_place(pair):
    """Hugging Face gives it the first character, which has a piece of its own."""
    ours = pair[0][0]
    out = ours.encode_with_offsets("\nx", "character")
    ranges = [(0, 0), (0, 1), (1, 2)] if ours.add_prefix_space else [(0, 1), (1, 2)]
    assert list(zip(out["starts"].numpy(), out["ends"].numpy(), strict=True)) == ranges


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_round_trip_and_cover(pair, texts):
    ours = pair[0][0]
    out = ours.encode_with_offsets(texts)
    spaced = [
        " " + t if ours.add_prefix_space and t and not t.startswith(" ") else t for t in texts
    ]
    assert ours.decode(out["token_ids"]).numpy().tolist() == [t.encode() for t in spaced]
    for text, starts, ends in zip(
        texts, out["starts"].to_list(), out["ends"].to_list(), strict=True
    ):
        assert [*starts, len(text.encode())] == [0, *ends]


@given(data=st.lists(st.binary(max_size=30), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_bytes(pair, data):
    """Bytes that are no UTF-8 are dropped, and ranges count in what was given."""
    ours = pair[0][0]
    valid = [some.decode("utf-8", "ignore") for some in data]
    out = ours.encode_with_offsets(data)
    expected = ours.encode_with_offsets(valid)
    assert out["token_ids"].to_list() == ours.encode(data).to_list()
    assert out["token_ids"].to_list() == expected["token_ids"].to_list()
    assert out["word_index"].to_list() == expected["word_index"].to_list()
    for whole, text, *rows in zip(
        data,
        valid,
        *(x[k].to_list() for x in (out, expected) for k in ("starts", "ends")),
        strict=True,
    ):
        for start, end, first, last in zip(*rows, strict=True):
            piece, taken = text.encode()[first:last], whole[start:end]
            # Invalid bytes inside a piece lie inside its range, those around it do not.
            assert (taken[:1], taken[-1:]) == (piece[:1], piece[-1:])
            assert len(taken) >= len(piece)
