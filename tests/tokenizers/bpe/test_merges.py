"""SentencePiece's kernel gives what Hugging Face's BPE gives, on any table of merges."""

import time

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from tokenizers import models

from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.tokenizers.bpe.kernel import BytePairKernel
from kbert.tokenizers.bpe.merges import live_pieces, merge


@st.composite
def tables(draw):
    """Merges in any order, some of the same text, some twice, some that can never come about."""
    pieces, merges = list("abc"), []
    for _ in range(draw(st.integers(1, 14))):
        pair = (draw(st.sampled_from(pieces)), draw(st.sampled_from(pieces)))
        merges.append(pair)
        if len("".join(pair)) <= 6:
            pieces.append("".join(pair))
    return draw(st.permutations(merges))


@given(table=tables(), words=st.lists(st.text("abc", min_size=1, max_size=24), max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_table_of_merges(table, words):
    vocabulary = list(dict.fromkeys([*CHARACTERS, *("".join(pair) for pair in table)]))
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    reference = models.BPE(vocab=ids, merges=table)
    ours = BytePairKernel(ids, table)(tf.constant(words, tf.string))[0].to_list()
    assert ours == [[token.id for token in reference.tokenize(word)] for word in words]


def test_pieces_that_merges_never_make_are_not_live():
    # "bc" is merged first, so that "ab" and "c" never meet.
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    assert live_pieces(merges) == {"bc": 0, "ab": 1}
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    assert merge("abc", ranks) == (["a", "bc"], 0)
    assert merge("d", ranks) == (["d"], None)


def test_words_and_their_first_pieces():
    ids = {piece: index for index, piece in enumerate([*CHARACTERS, "lo", "low", "Ġlow"])}
    kernel = BytePairKernel(ids, [("l", "o"), ("lo", "w"), ("Ġ", "low")])
    pieces, is_first = kernel(tf.constant(["low lowest!", "", "low"]))
    names = [[list(ids)[i] for i in row] for row in pieces.to_list()]
    assert names == [["low", "Ġlow", "e", "s", "t", "!"], [], ["low"]]
    np.testing.assert_array_equal(is_first, [1, 1, 0, 0, 0, 1, 1])


def test_long_words_take_no_longer_than_long_texts():
    """A run of U+0000 once led the normaliser in circles: 47 seconds for a tenth of a megabyte."""
    kernel = BytePairKernel({piece: index for index, piece in enumerate(CHARACTERS)}, [])
    texts = tf.constant(["\0" * 300_000, "x" * 300_000, " " * 300_000])
    start = time.process_time()
    pieces, _ = kernel(texts)
    assert time.process_time() - start < 20
    assert pieces.row_lengths().numpy().tolist() == [300_000] * 3
