"""Golden values are what evaluate-v1.1.py and evaluate-v2.0.py print for these answers."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kbert.metrics.squad import (
    best_no_answer_threshold,
    exact_match,
    normalize_answer,
    squad_scores,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  U.S.\tOpen,", "us open"),
        ("a.the.b", "atheb"),  # punctuation goes before articles are looked for
        ("A-Team", "ateam"),
        ("An apple a day", "apple day"),
        ("theatre", "theatre"),
        ("“The” — naïve…", "“ ” — naïve…"),  # only ASCII's punctuation is dropped
        ("$1,000", "1000"),
        ("the", ""),
        ("THE É\u00a0b", "é b"),
        ("", ""),
    ],
)
def test_normalised(text, normal):
    assert normalize_answer(text) == normal


def test_the_best_of_several_gold_answers():
    golds = ["Denver Broncos", "the Broncos of Denver, Colorado"]
    assert exact_match("denver broncos!", golds) == 1.0
    assert exact_match("Broncos", golds) == 0.0
    assert token_f1("Broncos", golds) == pytest.approx(2 / 3)
    assert token_f1("Broncos of Denver in Colorado", golds) == pytest.approx(8 / 9)


def test_repeated_words_count_as_often_as_both_have_them():
    assert token_f1("no no no", ["no no yes"]) == pytest.approx(2 / 3)


def test_nothing_against_nothing_differs_between_the_versions():
    assert token_f1("the", ["a"]) == 0.0
    assert token_f1("the", ["a"], can_be_empty=True) == 1.0
    assert exact_match("the", ["a"]) == 1.0
    assert squad_scores(["the"], [["a"]]) == {"exact": 100.0, "f1": 0.0}
    assert squad_scores(["the", "x"], [["a"], []])["f1"] == 50.0


ANSWERS = ["in France", "10th century", "the Normans", "Rollo", "", "gold", ""]
GOLDS = [["France"], ["10th and 11th centuries", "the 10th century"], [], [], [], ["silver"], ["x"]]
NO_ANSWER = [-5.0, -3.5, -1.0, 2.0, 6.0, -4.0, 1.5]


def test_version_2_without_scores():
    with pytest.raises(
        ValueError, match=r"must be a list of strings.*Received: '1066' for question 1"
    ):
        squad_scores(["x", "1066"], [["x"], "1066"])
    assert squad_scores(ANSWERS, GOLDS) == pytest.approx(
        {
            "exact": 28.571428571428573,
            "f1": 38.095238095238095,
            "HasAns_exact": 25.0,
            "HasAns_f1": 41.666666666666664,
            "NoAns_exact": 33.333333333333336,
            "NoAns_f1": 33.333333333333336,
        }
    )


def test_version_2_with_scores_and_a_threshold():
    scores = squad_scores(ANSWERS, GOLDS, no_answer_scores=NO_ANSWER, threshold=0.0)
    assert scores == pytest.approx(
        {
            "exact": 42.857142857142854,
            "f1": 52.38095238095238,
            "HasAns_exact": 25.0,
            "HasAns_f1": 41.666666666666664,
            "NoAns_exact": 66.66666666666667,
            "NoAns_f1": 66.66666666666667,
            "best_exact": 57.142857142857146,
            "best_exact_thresh": -3.5,
            "best_f1": 66.66666666666667,
            "best_f1_thresh": -3.5,
        }
    )


def test_only_questions_without_an_answer():
    scores = squad_scores(["x", ""], [[], []], no_answer_scores=[-1.0, -2.0])
    assert scores["exact"] == scores["NoAns_f1"] == 50.0
    assert "HasAns_exact" not in scores
    assert scores["best_exact"] == 100.0
    assert scores["best_exact_thresh"] == 0.0


def test_a_gold_answer_of_articles_alone_means_no_answer_in_version_2():
    scores = squad_scores(["", "", "x"], [["the"], [], ["x"]])
    assert scores["HasAns_exact"] == 100.0


def loop(scores, no_answer, answerable, empty):
    best = current = sum(not has for has in answerable)
    threshold = 0.0
    for row in sorted(range(len(scores)), key=lambda row: no_answer[row]):
        current += scores[row] if answerable[row] else (0 if empty[row] else -1)
        if current > best:
            best, threshold = current, no_answer[row]
    return 100.0 * best / len(scores), threshold


def test_best_threshold_equals_the_plain_loop():
    rng = np.random.default_rng(0)
    for _ in range(200):
        size = rng.integers(1, 12)
        case = (
            rng.choice([0.0, 0.25, 1.0], size),
            rng.integers(-3, 4, size).astype(float),  # ties
            rng.random(size) < 0.6,
            rng.random(size) < 0.2,
        )
        assert best_no_answer_threshold(*case) == loop(*case)


def test_bad_calls():
    with pytest.raises(ValueError, match=r"at least one question. Received: 0 and 0 entries"):
        squad_scores([], [])
    with pytest.raises(ValueError, match="Received: 1 and 2 entries"):
        squad_scores(["x"], [["x"], ["y"]])
    with pytest.raises(ValueError, match=r"threshold=0.0 without them"):
        squad_scores(["x"], [["x"]], threshold=0.0)
    with pytest.raises(ValueError, match=r"must be a string, .*Received: None for question 1"):
        squad_scores(["x", None], [["x"], ["y"]])
    for golds in (None, 3, [None], b"x"):
        with pytest.raises(ValueError, match=r"a list of strings, .* for question 1 \(from 0\)"):
            squad_scores(["x", "y"], [["x"], golds])
    for score in (np.nan, np.inf):
        with pytest.raises(ValueError, match=rf"no-answer scores must be finite.*{score} at row 1"):
            squad_scores(["x", ""], [["x"], []], no_answer_scores=[0.0, score], threshold=0.0)


def added(scores):
    """`total += score`, question by question, as the official scorers do."""
    total = 0.0
    for score in scores:
        total += score
    return 100.0 * total / len(scores)


WORDS = st.lists(st.sampled_from("norman rock sea gull king fox x y z".split()), max_size=7)
TEXTS = WORDS.map(" ".join)


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=3)), min_size=1, max_size=60),
    version=st.sampled_from([1, 2]),
)
def test_the_last_digit_is_that_of_the_official_scorers(rows, version):
    """Their definition written down plainly; no text here has punctuation or articles."""
    if version == 1:
        rows = [(answer, golds or ["fox"]) for answer, golds in rows]
    rows = [(answer, [gold for gold in golds if gold or version == 1]) for answer, golds in rows]

    def f1(answer, gold):
        found, wanted = answer.split(), gold.split()
        if version == 2 and not (found and wanted):
            return float(found == wanted)
        same = sum(min(found.count(word), wanted.count(word)) for word in set(found))
        if same == 0:
            return 0.0
        precision, recall = 1.0 * same / len(found), 1.0 * same / len(wanted)
        return (2 * precision * recall) / (precision + recall)

    best = [max(f1(answer, gold) for gold in golds or [""]) for answer, golds in rows]
    exact = [float(answer in (golds or [""])) for answer, golds in rows]
    scores = squad_scores(*zip(*rows, strict=True))
    assert (scores["exact"], scores["f1"]) == (added(exact), added(best))
    for name, answered in (("HasAns_f1", True), ("NoAns_f1", False)):
        part = [
            score for score, (_, golds) in zip(best, rows, strict=True) if bool(golds) is answered
        ]
        if name in scores:
            assert scores[name] == added(part)


def test_ten_thousand_questions_are_added_in_their_order():
    """NumPy's mean is another number here."""
    words = "a b c d e f g h i j k".split()[1:]
    answers = [" ".join(words[: 1 + n % 7]) for n in range(10_570)]
    golds = [[" ".join(words[: 1 + n % 9])] for n in range(10_570)]
    scores = [token_f1(*pair) for pair in zip(answers, golds, strict=True)]
    found = squad_scores(answers, golds)["f1"]
    assert found == added(scores)
    assert found != 100.0 * np.mean(scores)
