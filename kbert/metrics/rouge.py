"""ROUGE-1, -2, -L and -Lsum of summaries.

The numbers are those of Google's package rouge-score 0.1.2 (`rouge_scorer.py`), which replicates
ROUGE-1.5.5. That package has had no release since July 2022 and needs nltk, so it is no dependency.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence

from kbert.metrics.checks import text_rows

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_OTHER = re.compile("[^a-z0-9]+")
_SHORTEST_STEM = 4  # letters of a token that is stemmed

Tokens = list[str]


@dataclasses.dataclass(frozen=True)
class Rouge:
    """Means over the texts of a corpus, 0 to 100.

    Attributes:
        precision: share of the hypothesis that is in the reference.
        recall: share of the reference that is in the hypothesis.
        f1: harmonic mean of precision and recall of each text.
    """

    precision: float
    recall: float
    f1: float


def rouge(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    stem: Callable[[str], str] | None = None,
    tokenize: Callable[[str], Tokens] | None = None,
) -> dict[str, Rouge]:
    """Computes ROUGE-1, -2, -L and -Lsum of summaries (Lin 2004, "ROUGE: a package for …").

    "rouge1" and "rouge2" compare n-grams (section 2), "rougeL" the longest common subsequence of
    tokens (section 3.1), "rougeLsum" for each sentence of the reference the union of its longest
    common subsequences with the sentences of the hypothesis (section 3.2). For "rougeLsum" every
    sentence must be on its own line.

    Papers on summarisation mostly report stemmed scores: pass `nltk.PorterStemmer().stem`.

    Args:
        hypotheses: (N,) summaries.
        references: (N,) reference summaries; or for each hypothesis a list of references, of which
            the one with the best F1 counts, for each kind of score.
        stem: function from a token to its stem, for tokens of at least 4 letters; None = no stems.
        tokenize: function from a text to its tokens. None: lower-case, and each run of letters from
            a to z and digits is a token. Texts in other scripts need another one.

    Returns:
        Kind of score -> means over the texts.

    Raises:
        ValueError: unequal numbers of texts, no texts, values that are not strings, or no reference
            has a token.

    Example:
        >>> scores = rouge(["The cat sat.\\nIt slept."], ["The cat sat down.\\nIt slept."])
        >>> {kind: round(score.f1, 2) for kind, score in scores.items()}
        {'rouge1': 90.91, 'rouge2': 66.67, 'rougeL': 90.91, 'rougeLsum': 90.91}
    """
    rows = text_rows(hypotheses, references)
    if not all(rows):
        raise ValueError(
            "A hypothesis must have at least one reference. Received: none at "
            f"{next(number for number, row in enumerate(rows) if not row)}"
        )

    def tokens(text: str) -> Tokens:
        found = _words(text) if tokenize is None else list(tokenize(text))
        return (
            found
            if stem is None
            else [stem(token) if len(token) >= _SHORTEST_STEM else token for token in found]
        )

    if not any(tokens(text) for row in rows for text in row):
        rule = " of letters a to z or digits; pass `tokenize` for other scripts"
        raise ValueError(
            f"A reference must have tokens{rule if tokenize is None else ''}. Received: "
            f"{len(rows)} rows without, the first {rows[0][0]!r:.60}"
        )
    best = []
    for hypothesis, row in zip(hypotheses, rows, strict=True):
        scores = [_scores(hypothesis, reference, tokens) for reference in row]
        best.append([max(kind, key=lambda score: score[2]) for kind in zip(*scores, strict=True)])
    means = [
        Rouge(*(100 * sum(values) / len(rows) for values in zip(*kind, strict=True)))
        for kind in zip(*best, strict=True)
    ]
    return dict(zip(KINDS, means, strict=True))


_Score = tuple[float, float, float]  # precision, recall, F1; 0 to 1


def _scores(hypothesis: str, reference: str, tokens: Callable[[str], Tokens]) -> list[_Score]:
    """Returns the scores of one hypothesis against one reference, in the order of `KINDS`."""
    found, wanted = tokens(hypothesis), tokens(reference)
    scores = []
    for n in (1, 2):
        ngrams = [Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (found, wanted)]
        sizes = [counts.total() for counts in ngrams]
        scores.append(_score((ngrams[0] & ngrams[1]).total(), *sizes))
    scores.append(_score(_lcs_length(found, wanted), len(found), len(wanted)))
    found_lines, wanted_lines = (
        [tokens(line) for line in text.split("\n")] for text in (hypothesis, reference)
    )
    sizes = [sum(map(len, lines)) for lines in (found_lines, wanted_lines)]
    return [*scores, _score(_union_hits(found_lines, wanted_lines), *sizes)]


def _score(hits: int, found: int, wanted: int) -> _Score:
    """Returns the score of `hits` units that `found` and `wanted` ones have in common."""
    precision, recall = hits / max(found, 1), hits / max(wanted, 1)
    return precision, recall, 2 * precision * recall / (precision + recall) if hits else 0.0


def _words(text: str) -> Tokens:
    return _OTHER.sub(" ", text.lower()).split()


def _lcs_length(first: Tokens, second: Tokens) -> int:
    """Returns the length of the longest common subsequence.

    Bit `i` of a row is 0 where the length grows with token `i` of `first` (Hyyrö 2004, "Bit-
    parallel LCS-length computation revisited").
    """
    positions: dict[str, int] = {}
    for i, token in enumerate(first):
        positions[token] = positions.get(token, 0) | 1 << i
    full = (1 << len(first)) - 1
    row = full
    for token in second:
        matches = row & positions.get(token, 0)
        row = (row + matches | row - matches) & full
    return len(first) - row.bit_count()


def _union_hits(found: list[Tokens], wanted: list[Tokens]) -> int:
    """Returns the number of tokens in the union of common subsequences, over all lines.

    A token counts no more often than it occurs in each text, as in ROUGE-1.5.5.
    """
    left = Counter(token for line in found for token in line)
    hits = 0
    for line in wanted:
        union = sorted({i for other in found for i in _lcs_positions(line, other)})
        for token in (line[i] for i in union):
            if left[token]:
                left[token] -= 1
                hits += 1
    return hits


def _lcs_positions(line: Tokens, other: Tokens) -> list[int]:
    """Returns the positions in `line` of one longest common subsequence: that of rouge-score."""
    lengths = [[0] * (len(other) + 1)]  # row i, column j: of i tokens of `line`, j of `other`
    for token in line:
        above, row = lengths[-1], [0]
        for j, candidate in enumerate(other):
            row.append(above[j] + 1 if token == candidate else max(above[j + 1], row[j]))
        lengths.append(row)
    i, j, positions = len(line), len(other), []
    while i and j:
        if line[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            positions.append(i)
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return positions
