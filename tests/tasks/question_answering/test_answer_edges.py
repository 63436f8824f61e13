"""Pieces and characters: for every kind of tokenizer and any text."""

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

import kbert
from kbert.tasks.question_answering.answer_edges import covering_pieces, find_edges
from kbert.tokenizers import (
    BytePairTokenizer,
    UnigramTokenizer,
    train_byte_pair,
    train_unigram,
    train_wordpiece,
)

TEXTS = [
    "Rollo, the first duke of Normandy, was a Viking.",
    "The 10th and 11th centuries: (2,700 km) — 50.5 %!",
    "한국어는 한국의 말이다. 北京大学 在北京。",  # Hangul is several pieces a syllable in NFD
    "naïve Café déjà-vu 👩‍👩‍👧 tabs\tand  spaces\n\nlines ",
]
ANY_TEXT = st.one_of(
    st.text(max_size=25),
    st.text(st.sampled_from("".join(TEXTS) + "\u0301\u200b\u3000\x00"), max_size=40),
)


def cased():
    return kbert.WordPieceTokenizer(train_wordpiece(TEXTS * 3, 300), lowercase=False)


MAKE = {
    "wordpiece": lambda: kbert.WordPieceTokenizer(train_wordpiece(TEXTS * 3, 300)),
    "cased": cased,
    "bpe": lambda: BytePairTokenizer(*train_byte_pair(TEXTS * 3, 400)),
    "unigram": lambda: UnigramTokenizer(train_unigram(TEXTS * 3, 150)),
    "fairseq": lambda: UnigramTokenizer(
        train_unigram(TEXTS * 3, 150, layout="fairseq"), layout="fairseq"
    ),
}


@pytest.fixture(
    scope="module",
    params=[
        *("wordpiece", "bpe", "unigram"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("cased", "fairseq")),
    ],
)
def tokenizer(request):
    return MAKE[request.param]()


def edges_of(tokenizer, texts):
    texts = tf.convert_to_tensor(texts, tf.string)
    pieces = tokenizer.encode_with_offsets(texts, unit="character")
    return find_edges(texts, pieces["starts"], pieces["ends"]), pieces


def spans(edges, row):
    """[(piece, start)] where answers may begin, [(piece, end)] where they may end."""
    columns = (edges.starts, edges.can_begin), (edges.ends, edges.can_end)
    return [
        [
            (i, x)
            for i, (x, ok) in enumerate(zip(*(c[row].numpy().tolist() for c in pair), strict=True))
            if ok
        ]
        for pair in columns
    ]


def check(tokenizer, texts):
    edges, pieces = edges_of(tokenizer, texts)
    for row, text in enumerate(texts):
        begins, limits = spans(edges, row)
        covered = [pieces[name][row].numpy().tolist() for name in ("starts", "ends")]
        ranges = []
        for start, end in zip(*covered, strict=True):
            inside = text[start:end]
            left = start + len(inside) - len(inside.lstrip())
            if inside.strip():
                ranges.append((left, left + len(inside.strip())))
        assert sorted({start for start, _ in ranges}) == [start for _, start in begins]
        assert sorted({end for _, end in ranges}) == [end for _, end in limits]
        for i, start in begins:
            for j, end in limits:
                if i <= j:
                    assert text[start:end] == text[start:end].strip() != ""


def test_edges_are_those_of_the_texts(tokenizer):
    check(tokenizer, [*TEXTS, "", " \t\n", "\u3000x\u3000", "e\u0301\u0301 a"])


@settings(max_examples=12, deadline=None)
@given(st.lists(ANY_TEXT, min_size=1, max_size=3))
def test_edges_of_any_text(tokenizer, texts):
    check(tokenizer, texts)


@settings(max_examples=12, deadline=None)
@given(st.lists(ANY_TEXT, min_size=1, max_size=3), st.data())
def test_the_pieces_of_an_answer_cover_it(tokenizer, texts, data):
    """Of all spans that cover an answer none is shorter in characters."""
    edges, _ = edges_of(tokenizer, texts)
    text = data.draw(st.integers(0, len(texts) - 1))
    start = data.draw(st.integers(0, len(texts[text])))
    end = data.draw(st.integers(start, len(texts[text])))
    ((first,), (last,)) = covering_pieces(edges, [text], [start], [end])
    begins, limits = map(dict, spans(edges, text))
    if first < 0:
        assert not begins
        return
    found = begins[first], limits[last]
    assert first <= last
    # White space and what the tokenizer drops cannot be covered.
    visible = texts[text][start:end]
    left = start + len(visible) - len(visible.lstrip())
    wanted = {
        place
        for place in range(left, left + len(visible.strip()))
        if any(begin <= place < limit for begin in begins.values() for limit in limits.values())
    }
    before = [b for b in begins.values() if wanted and b <= min(wanted)]
    after = [limit for limit in limits.values() if wanted and limit > max(wanted)]
    if before and after:
        assert found[0] >= max(before)
        assert found[1] <= min(after)


def test_answers_inside_pieces_take_whole_ones():
    tokenizer = kbert.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "golden", "age", "east", "##ern"]
    )
    texts = ["golden age", "eastern"]
    edges, _ = edges_of(tokenizer, texts)
    first, last = covering_pieces(edges, [0, 0, 1, 1], [0, 2, 0, 2], [4, 8, 4, 5])
    assert first.tolist() == [0, 0, 0, 0]
    assert last.tolist() == [0, 1, 0, 1]


def test_a_character_of_several_pieces():
    byte_level = BytePairTokenizer(*train_byte_pair(["a"] * 3, 300))
    text = "a 👍 b"
    edges, _ = edges_of(byte_level, [text])
    begins, limits = spans(edges, 0)
    assert [text[start] for _, start in begins] == ["a", "👍", "b"]
    assert [text[end - 1] for _, end in limits] == ["a", "👍", "b"]
    first, last = covering_pieces(edges, [0], [2], [3])
    assert last[0] - first[0] >= 3  # four bytes, the first one perhaps with the space before
    assert (first[0], 2) in begins
    assert (last[0], 3) in limits


def test_no_text_and_no_answer():
    tokenizer = MAKE["wordpiece"]()
    edges, _ = edges_of(tokenizer, ["", "a"])
    pieces = covering_pieces(edges, [0, 1], [0, 0], [0, 1])
    assert [p.tolist() for p in pieces] == [[-1, 0], [-1, 0]]
    nothing, _ = edges_of(tokenizer, [])
    assert [p.tolist() for p in covering_pieces(nothing, [], [], [])] == [[], []]
    assert nothing.can_begin.to_list() == []


def test_the_same_in_a_graph(tokenizer):
    wanted, _ = edges_of(tokenizer, TEXTS)
    graph = tf.function(
        lambda texts: tf.nest.flatten(vars(edges_of(tokenizer, texts)[0])),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    expected = tf.nest.flatten(vars(wanted))
    for found, ragged in zip(graph(tf.constant(TEXTS)), expected, strict=True):
        np.testing.assert_array_equal(found.flat_values, ragged.flat_values)
