"""Attributions as values: scores of tokens, with pictures and a form for JSON.

Shapes: T tokens.
"""

import dataclasses
from typing import Any

import numpy as np

from kbert.core.types import PathLike
from kbert.visualization.report_page import ReportPage
from kbert.visualization.token_scores import scores_html, token_scores

_ARRAYS = ("scores", "sides", "starts", "ends")  # in JSON


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """The score of each token of a text for one answer. A notebook shows it as coloured tokens.

    If the encoder reads a text in several sequences, such as windows, the tokens are those of all
    sequences, one after the other.

    Attributes:
        tokens: T tokens, special tokens included.
        scores: (T,) float64. Positive = the token increases `value`; scores of attention are never
            negative.
        texts: the text; two for a pair; the context and all choices for a choice.
        sides: (T,), number of each token's text; -1 for special tokens.
        starts: (T,), start of each token in characters of its text; 0 for special tokens. A
            tagger's tokens have those of their words.
        ends: (T,), their ends; 0 for special tokens.
        words: (T,), number of each token's word in its text; -1 for special tokens.
        label: the explained answer.
        value: the explained logit, score, or sum of two logits.
        method: name of the method.
        baseline_value: `value` with all tokens of the texts replaced by the baseline; None if the
            method does not compute it.
    """

    tokens: list[str]
    scores: np.ndarray
    texts: tuple[str, ...]
    sides: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray
    label: str
    value: float
    method: str
    baseline_value: float | None = None

    @property
    def completeness_error(self) -> float | None:
        """By how much the scores do not sum to `value - baseline_value`; None without the latter.

        (Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365, section 3.) More `steps` make
        it smaller.
        """
        if self.baseline_value is None:
            return None
        return abs(float(self.scores.sum()) - (self.value - self.baseline_value))

    def word_scores(self) -> list[tuple[str, float]]:
        """Returns the words of the texts with the sums of their tokens' scores, in order."""
        words: dict[tuple[int, int], list[int]] = {}
        for token, (side, word) in enumerate(zip(self.sides, self.words, strict=True)):
            if side >= 0:
                words.setdefault((int(side), int(word)), []).append(token)
        return [
            (
                self.texts[side][self.starts[tokens].min() : self.ends[tokens].max()].strip(),
                float(self.scores[tokens].sum()),
            )
            for (side, _), tokens in words.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns what a program writes to JSON: label, value, tokens and their arrays."""
        names = {"label": self.label, "value": self.value, "method": self.method}
        if self.baseline_value is not None:
            names["baseline_value"] = self.baseline_value
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return {**names, "tokens": self.tokens, **arrays}

    @property
    def caption(self) -> str:
        """A line that describes the scores: answer, value and method."""
        return f"{self.label} ({self.value:.3g}), {self.method.replace('_', ' ')}"

    def plot(self) -> Any:
        """Returns a matplotlib Figure of the tokens, see `kbert.visualization.token_scores`."""
        return token_scores(self.tokens, self.scores, title=self.caption)

    def _repr_html_(self) -> str:
        return scores_html(self.tokens, self.scores, caption=self.caption)

    def __repr__(self) -> str:
        return f"Attribution({self.caption}, {len(self.tokens)} tokens)"


class Attributions(list[Attribution]):
    """The attributions of several texts, as a list; a notebook shows all of them."""

    def _repr_html_(self) -> str:
        return "\n".join(attribution._repr_html_() for attribution in self)

    def save(self, path: PathLike, title: str = "Attributions") -> None:
        """Writes a page to a file that any browser opens, also without a network.

        Args:
            path: path of the file, e.g. "attributions.html"; an existing file is replaced.
            title: title of the page.
        """
        page = ReportPage(title)
        for attribution in self:
            page.token_scores(attribution.tokens, attribution.scores, caption=attribution.caption)
        page.save(path)
