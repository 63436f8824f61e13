"""Attention heads against trees: made-up attention, and an encoder's, word by word."""

from itertools import chain, pairwise

import numpy as np
import pytest

from kbert.analysis import syntactic_heads, syntax, tree_depths

# the dog sleeps; a reddish fox jumps over it
WORDS = [["the", "dog", "sleeps"], ["a", "reddish", "fox", "jumps", "over", "it"]]
HEADS = [[2, 3, 0], [3, 3, 4, 0, 6, 4]]
RELATIONS = [
    ["det", "nsubj", "root"],
    ["det", "amod", "nsubj", "root", "case", "obl"],
]


def test_heads_that_know_the_tree(encoder, tokenizer, monkeypatch):
    """Head 0-0 attends to the next word, 0-1 is attended from the head, 1-0 attends to the head."""

    def attention(*args):
        for number, heads in enumerate(HEADS):
            size = len(heads)
            weights = np.full((2, 2, size, size), 1e-3)
            weights[..., range(size), range(size)] = 0.9  # itself: is left out
            weights[0, 0, range(size - 1), range(1, size)] = 0.1
            for word, head in enumerate(heads):
                if head:
                    weights[0, 1, head - 1, word] = weights[1, 0, word, head - 1] = 0.1
            yield number, weights

    monkeypatch.setattr(syntax, "_word_attention", attention)
    found = syntactic_heads(encoder, tokenizer, WORDS, HEADS, RELATIONS)
    assert found.counts == {"det": 2, "nsubj": 2, "amod": 1, "case": 1, "obl": 1}
    shares = found.correct["det"]  # direction, layer, head
    assert (shares[0, 0, 0], shares[1, 0, 1], shares[0, 1, 0]) == (0.5, 1, 1)
    best = found.best("obl")
    assert (best.accuracy, best.baseline, best.offset, best.count) == (1, 1, -2, 1)
    best = found.best("det")
    assert (best.layer, best.head, best.direction) == (1, 0, "dependent to head")
    assert (best.baseline, best.offset) == (0.5, 1)
    assert found.offsets["det"][2] == 0.5
    lines = str(found).splitlines()
    assert lines[0].split() == ["relation", "words", "head", "accuracy", "offset"]
    row = "det 2 1-0 1.000 0.500 (+1) dependent to head"
    assert row in [" ".join(line.split()) for line in lines]
    with pytest.raises(ValueError, match=r"one of det, nsubj.*Received: 'root'"):
        found.best("root")


def test_attention_between_words_is_that_of_their_tokens(encoder, tokenizer):
    """Batched and padded it is what the encoder has for each sentence alone."""
    found = dict(syntax._word_attention(encoder, tokenizer, WORDS, 2))
    for number, words in enumerate(WORDS):
        pieces = [tokenizer.encode(word).numpy().tolist() for word in words]
        ids = [tokenizer.cls_id, *chain(*pieces), tokenizer.sep_id]
        outputs = encoder({"token_ids": np.array([ids])}, return_attention=True)
        attention = np.stack([np.asarray(x)[0] for x in outputs["attention"]])
        ends = 1 + np.cumsum([0, *map(len, pieces)])
        spans = [range(*x) for x in pairwise(ends)]
        for i, query in enumerate(spans):
            for j, key in enumerate(spans):
                expected = attention[:, :, query][..., key].sum(-1).mean(-1)
                np.testing.assert_allclose(found[number][..., i, j], expected, atol=1e-5)


def test_depths():
    assert tree_depths(HEADS[1]) == [2, 2, 1, 0, 2, 1]
    with pytest.raises(ValueError, match=r"must lead to the root. Received: "):
        tree_depths([2, 1])
    for heads in ([5], [0, -1], [2, 0, 4]):
        with pytest.raises(ValueError, match=r"A head must be .*Received: \[.* a sentence of"):
            tree_depths(heads)


@pytest.mark.parametrize(
    ("heads", "relations", "message"),
    [
        ([[2, 3, 0]], RELATIONS, "Received: 2 sentences with 9, 3, 9 words, heads and relations"),
        ([[2, 4, 0], HEADS[1]], RELATIONS, r"Received: \[2, 4, 0\] for sentence 0 of 3 words"),
    ],
    ids=["lengths", "outside"],
)
def test_what_is_no_tree(encoder, tokenizer, heads, relations, message):
    with pytest.raises(ValueError, match=message):
        syntactic_heads(encoder, tokenizer, WORDS, heads, relations)


def test_a_sentence_without_words(encoder, tokenizer):
    words, heads, relations = ([*x[:1], []] for x in (WORDS, HEADS, RELATIONS))
    with pytest.raises(ValueError, match=r"at least one word. Received: none in sentence 1"):
        syntactic_heads(encoder, tokenizer, words, heads, relations)


def test_a_sentence_that_is_too_long(encoder, tokenizer):
    words = [["the"] * 39]
    with pytest.raises(ValueError, match=r"max_positions=40. Received: 39 tokens in sentence 0"):
        syntactic_heads(encoder, tokenizer, words, [[0] * 39], [["x"] * 39])
