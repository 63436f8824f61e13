"""ROUGE: rouge-score's numbers, and its formulas by hand."""

import functools
import math
import random

import pytest

from kbert.metrics import rouge
from kbert.metrics.rouge import KINDS

HYPOTHESES = [
    "The police, killed the gunman.\nA cat sat on the mat; the cat slept.\n\nthe end",
    "the cat was found under the bed",
    "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5",
]
REFERENCES = [
    "Police killed the gunman\nThe cat slept on a mat, the mat slept.\nThe end of the cat",
    "the cat was under the bed",
    "w1 w2 w3 w4 w5",
]
# (hits, tokens of the hypothesis, tokens of the reference) of rouge-score 0.1.2.
HITS = [
    ((15, 16, 18), (9, 15, 17), (11, 16, 18), (14, 16, 18)),
    ((6, 7, 6), (4, 6, 5), (6, 7, 6), (6, 7, 6)),
    ((4, 10, 5), (1, 9, 4), (4, 10, 5), (4, 10, 5)),
]


def values(score):
    return score.precision, score.recall, score.f1


@pytest.mark.parametrize("number", range(3))
def test_equal_to_rouge_score(number):
    scores = rouge([HYPOTHESES[number]], [REFERENCES[number]])
    assert tuple(scores) == KINDS
    for score, (hits, found, wanted) in zip(scores.values(), HITS[number], strict=True):
        precision, recall = hits / found, hits / wanted
        f1 = 2 * precision * recall / (precision + recall)
        assert values(score) == pytest.approx((100 * precision, 100 * recall, 100 * f1))


def random_text(rng, longest):
    words = ("the", "a", "cat", "Dog", "sat", "on", "mat,", "run-down", "é", "x1")
    spaces = (" ", " ", " ", "\n", ". ")
    return "".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(longest)))


def test_equal_to_rouge_score_where_it_is_installed():
    """With stub files for nltk it was equal for 600 pairs (see the module's head)."""
    scorer_module = pytest.importorskip("rouge_score.rouge_scorer")
    scorer, rng = scorer_module.RougeScorer(list(KINDS)), random.Random(0)
    for _ in range(100):
        hypothesis = random_text(rng, 25)
        references = [random_text(rng, 25) + "cat", random_text(rng, 9) + "dog"]
        expected = scorer.score_multi(references, hypothesis)
        for kind, score in rouge([hypothesis], [references]).items():
            theirs = expected[kind]
            wanted = (theirs.precision, theirs.recall, theirs.fmeasure)
            assert values(score) == pytest.approx([100 * x for x in wanted])


def longest_common(first, second):
    @functools.cache
    def length(i, j):
        if i == len(first) or j == len(second):
            return 0
        if first[i] == second[j]:
            return 1 + length(i + 1, j + 1)
        return max(length(i + 1, j), length(i, j + 1))

    return length(0, 0)


def test_the_longest_common_subsequence_by_recursion():
    rng = random.Random(1)
    for _ in range(100):
        first = [rng.choice("abcde") for _ in range(rng.randrange(1, 70))]
        second = [rng.choice("abcde") for _ in range(rng.randrange(1, 70))]
        score = rouge([" ".join(first)], [" ".join(second)])["rougeL"]
        length = longest_common(first, second)
        assert score.precision == pytest.approx(100 * length / len(first))
        assert score.recall == pytest.approx(100 * length / len(second))


def test_a_corpus_has_the_mean_of_its_texts():
    alone = [rouge([a], [b]) for a, b in zip(HYPOTHESES, REFERENCES, strict=True)]
    together = rouge(HYPOTHESES, REFERENCES)
    for kind in KINDS:
        each = [values(scores[kind]) for scores in alone]
        means = [math.fsum(column) / 3 for column in zip(*each, strict=True)]
        assert values(together[kind]) == pytest.approx(means)


def test_the_reference_with_the_best_f1_counts_for_each_kind():
    references = ["cat the", "the dog", "the cat"]  # the first has both words, not in order
    scores = rouge(["the cat"], [references])
    assert [score.f1 for score in scores.values()] == [100.0] * 4
    scores = rouge(["the cat"], [references[:2]])
    assert [score.f1 for score in scores.values()] == [100.0, 0.0, 50.0, 50.0]


def test_sentences_are_lines():
    scores = rouge(["b c.\na"], ["a\nb c"])
    assert scores["rougeLsum"].f1 == 100
    assert scores["rougeL"].f1 == pytest.approx(200 / 3)


def test_stems_and_tokens_may_be_given():
    stem = {"sitting": "sit", "sits": "sit", "hats": "hat", "the": "THE"}.get
    scores = rouge(["the hats sits"], ["the hat sitting"], stem=lambda token: stem(token, token))
    assert scores["rouge1"].f1 == 100  # "hat" has 3 letters; "the", too, is left as it is
    assert rouge(["the hats sits"], ["the hat sitting"])["rouge1"].f1 == pytest.approx(100 / 3)
    scores = rouge(["猫坐在"], ["猫在坐"], tokenize=list)
    assert scores["rouge1"].f1 == 100
    assert scores["rouge2"].f1 == 0


def test_no_text_scores_nothing():
    for score in rouge(["", "..."], ["a cat", "a"]).values():
        assert values(score) == (0, 0, 0)
    assert values(rouge(["a", "b"], ["", "b"])["rouge1"]) == (50, 50, 50)


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "as many references as hypotheses.*2 hypotheses and 1 references"),
        ("ab", ["a", "b"], "lists of texts. Received: one text"),
        (["a"], [None], "a string or a list of strings. Received: 'a' and None at 0"),
        (["a", "b"], [["a"], []], "at least one reference. Received: none at 1"),
        (
            ["猫", "坐"],
            ["猫", "。"],
            "A reference must have tokens of letters a to z or digits; pass `tokenize` for other "
            "scripts. Received: 2 rows without, the first '猫'",
        ),
    ],
)
def test_bad_input(hypotheses, references, message):
    with pytest.raises(ValueError, match=message):
        rouge(hypotheses, references)
