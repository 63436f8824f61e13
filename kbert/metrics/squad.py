"""Exact match and F1 of answers, as the official scorers of SQuAD 1.1 and 2.0 compute them.

Scores are percentages, as in these scorers (evaluate-v1.1.py and evaluate-v2.0.py of
https://rajpurkar.github.io/SQuAD-explorer).

Shapes: N questions.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from kbert.core.types import Values
from kbert.metrics.checks import array

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# The values of `squad_scores` that are percentages; thresholds are in logits.
PERCENTAGES = frozenset(
    f"{kind}{name}" for kind in ("", "HasAns_", "NoAns_", "best_") for name in ("exact", "f1")
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only, as in the scorers


def normalize_answer(text: str) -> str:
    """Lowercases, removes ASCII punctuation and English articles, and normalises spaces.

    Example:
        >>> normalize_answer("The  U.S. Open,")
        'us open'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """Returns 1 if the normalised answer is one of the normalised gold answers, else 0.

    Args:
        answer: predicted answer; "" = no answer in the context.
        golds: gold answers; empty if the context does not answer the question.

    Example:
        >>> exact_match("the Normans", ["Normans", "Norman people"]), exact_match("", [])
        (1.0, 1.0)
    """
    normalized = normalize_answer(answer)
    return float(any(normalized == normalize_answer(gold) for gold in golds or [""]))


def token_f1(answer: str, golds: Sequence[str], *, can_be_empty: bool = False) -> float:
    """Returns the best F1 between the words of the answer and those of a gold answer.

    Args:
        answer: predicted answer; "" = no answer in the context.
        golds: gold answers; empty if the context does not answer the question.
        can_be_empty: whether two texts without words score 1 (SQuAD 2.0) instead of 0 (1.1).

    Example:
        >>> round(token_f1("the old Normans", ["Normans", "Norman people"]), 3)
        0.667
    """
    words = normalize_answer(answer).split()
    return max(_f1(words, normalize_answer(gold).split(), can_be_empty) for gold in golds or [""])


def _f1(found: Sequence[str], gold: Sequence[str], can_be_empty: bool) -> float:
    """Returns the F1 of the words of an answer and of a gold answer, counted with repetitions.

    `can_be_empty` says whether two texts without words score 1 instead of 0.
    """
    if can_be_empty and not (found and gold):
        return float(found == gold)
    num_common = (Counter(found) & Counter(gold)).total()
    if not num_common:
        return 0.0
    precision, recall = num_common / len(found), num_common / len(gold)
    return 2 * precision * recall / (precision + recall)


def squad_scores(
    answers: Sequence[str],
    golds: Sequence[Sequence[str]],
    *,
    no_answer_scores: Values | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """Returns the scores of a whole set of questions.

    If every question has an answer, these are the scores of SQuAD 1.1 (Rajpurkar et al. 2016,
    https://arxiv.org/abs/1606.05250), otherwise those of 2.0 (Rajpurkar et al. 2018,
    https://arxiv.org/abs/1806.03822).

    Args:
        answers: (N,) predicted answers; "" = no answer in the context.
        golds: (N,) lists of gold answers; an empty list if the context has no answer.
        no_answer_scores: (N,) scores that there is no answer: in BERT the score of [CLS] minus
            that of the best span. Pass the best spans as `answers` with them.
        threshold: no-answer score above which a question counts as answered with ""; None leaves
            the answers as they are.

    Returns:
        `exact` and `f1`, 0 to 100. If some question has no answer, also `HasAns_exact` and
        `HasAns_f1`, `NoAns_exact` and `NoAns_f1`, each pair only if such questions occur. With
        `no_answer_scores` in that case also `best_exact`, `best_exact_thresh`, `best_f1` and
        `best_f1_thresh`, see `best_no_answer_threshold`.

    Raises:
        ValueError: there are no questions, numbers of entries differ, an answer is no string, gold
            answers are no list of strings, a score is not finite, or a threshold comes without
            scores.

    Example:
        >>> squad_scores(["in 1066", "Rollo"], [["1066", "in the year 1066"], ["Hastings"]])
        {'exact': 0.0, 'f1': 40.0}
        >>> squad_scores(["Rollo", ""], [["Rollo"], []])["NoAns_exact"]
        100.0
    """
    sizes = [len(x) for x in (answers, golds, no_answer_scores) if x is not None]
    if not sizes[0] or len(set(sizes)) > 1:
        raise ValueError(
            "Every question must have an answer and gold answers, and there must be at least one "
            f"question. Received: {' and '.join(map(str, sizes))} entries"
        )
    for number, (answer, question_golds) in enumerate(zip(answers, golds, strict=True)):
        if not isinstance(answer, str):
            raise ValueError(
                'An answer must be a string, "" for no answer. Received: '
                f"{answer!r:.80} for question {number} (from 0)"
            )
        is_text = isinstance(question_golds, str | bytes)
        is_list = isinstance(question_golds, Iterable) and not is_text
        if not is_list or not all(isinstance(gold, str) for gold in question_golds):
            raise ValueError(
                "The gold answers of a question must be a list of strings, empty if there is no "
                f"answer. Received: {question_golds!r:.80} for question {number} (from 0)"
            )
    if threshold is not None and no_answer_scores is None:
        raise ValueError(
            f"A threshold requires no_answer_scores. Received: threshold={threshold} without them"
        )
    if no_answer_scores is not None:
        no_answer_scores = array("no-answer scores", no_answer_scores)
    answerable = np.array([bool(gold) for gold in golds])
    is_first_version = bool(answerable.all())
    if not is_first_version:  # a gold that normalises to nothing means that there is no answer
        golds = [
            [gold for gold in question_golds if normalize_answer(gold)] for question_golds in golds
        ]
    pairs = list(zip(answers, golds, strict=True))
    raw = {
        "exact": np.array([exact_match(*pair) for pair in pairs]),
        "f1": np.array([token_f1(*pair, can_be_empty=not is_first_version) for pair in pairs]),
    }
    effective = raw
    if threshold is not None:
        abstains = np.asarray(no_answer_scores) > threshold
        effective = {name: np.where(abstains, ~answerable, x) for name, x in raw.items()}
    scores = {name: _percent(x) for name, x in effective.items()}
    if is_first_version:
        return scores
    for kind, rows in (("HasAns", answerable), ("NoAns", ~answerable)):
        if rows.any():
            scores |= {f"{kind}_{name}": _percent(x[rows]) for name, x in effective.items()}
    if no_answer_scores is not None:
        empty = np.array([not answer for answer in answers])
        for name, x in raw.items():
            best = best_no_answer_threshold(x, no_answer_scores, answerable, empty)
            scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best
    return scores


def _percent(scores: Values) -> float:
    # Summed one by one, as in the official scorers: np.mean adds in another order, and the last
    # digits differ.
    return float(100.0 * np.add.accumulate(scores, dtype=np.float64)[-1] / len(scores))


def best_no_answer_threshold(
    scores: Values,
    no_answer_scores: Values,
    answerable: Values,
    empty: Values,
) -> tuple[float, float]:
    """Finds the threshold on no-answer scores with the highest mean score.

    Starts with no question answered and adds answers one by one, from the lowest no-answer score
    up (`find_best_thresh` of evaluate-v2.0.py).

    Args:
        scores: (N,) score of each answer if it is given.
        no_answer_scores: (N,) score of each question that there is no answer.
        answerable: (N,) whether the context has an answer.
        empty: (N,) whether the predicted answer is "".

    Returns:
        The highest mean score in percent, and the threshold. An answer is kept if its no-answer
        score is not above the threshold. The threshold is 0, as in the official scorer, if
        answering no question is best.

    Example:
        >>> best_no_answer_threshold([1, 0, 1], [-5.0, 2.0, 3.0], [True, False, True], [False] * 3)
        (66.66666666666667, -5.0)
    """
    answerable, empty = np.asarray(answerable, bool), np.asarray(empty, bool)
    gains = np.where(answerable, np.asarray(scores, np.float64), np.where(empty, 0.0, -1.0))
    no_answer_scores = np.asarray(no_answer_scores, np.float64)
    order = np.argsort(no_answer_scores, kind="stable")
    sums = np.cumsum(np.concatenate([[float((~answerable).sum())], gains[order]]))
    best = int(np.argmax(sums))  # the first of equally good ones
    threshold = float(no_answer_scores[order[best - 1]]) if best else 0.0
    return float(100.0 * sums[best] / len(gains)), threshold
