"""Decoding methods: settings of how the next token is chosen, validated at construction."""

import dataclasses
import math
from typing import Any

from kbert.configs.base import check_choice, check_count, check_positive, check_real
from kbert.decoding.constraints import Constraints

NORMALISATIONS = ("wu", "length")


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Chooses the most likely token at every step; ties go to the lowest id."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Samples a token from the model's distribution, or from its likeliest part.

    The steps are in the usual order. The logits are divided by the temperature. Then only the
    `top_k` likeliest tokens are kept, then only the fewest whose probabilities sum to `top_p`. The
    rest is normalised again.

    Args:
        temperature: divisor of the logits: below 1 sharpens the distribution, above 1 flattens it.
        top_k: number of likeliest tokens to sample from (Fan et al. 2018,
            https://arxiv.org/abs/1805.04833). None, or a number larger than the vocabulary = all.
        top_p: share of the probability to sample from (nucleus sampling, Holtzman et al. 2020,
            https://arxiv.org/abs/1904.09751); None = all of it.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Sampling(temperature=0.7, top_k=40)
        Sampling(temperature=0.7, top_k=40, top_p=None)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        if self.top_k is not None:
            check_count("top_k", self.top_k, minimum=1)
        if self.top_p is not None:
            check_real("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1)


@dataclasses.dataclass(frozen=True)
class Beam:
    """Searches for the best texts with a beam of the likeliest hypotheses.

    A text `y` of log-probability `log P(y)` has a score that depends on its length `|y|`, which
    counts the stop token:

    - "wu": `log P(y) / ((5 + |y|) / 6) ** length_penalty` (Wu et al. 2016,
      https://arxiv.org/abs/1609.08144, formula 14, without coverage);
    - "length": `log P(y) / |y| ** length_penalty`, as in fairseq and transformers.

    `Beam(width, length_penalty, normalisation="length", early_stopping=…)` is the search of
    transformers 5.24 with `num_beams`, `length_penalty` and `early_stopping`. Its width must be at
    least 2: there a width of 1 is greedy search.

    Args:
        width: number of live hypotheses per row. It may exceed the vocabulary: then the beam fills
            up over several steps.
        length_penalty: exponent of the length penalty; 0 compares plain log-probabilities, which
            favours short texts. Below 0 short texts are favoured further, with "length" only.
        num_results: number of texts returned per row, best first; at most `width`.
        normalisation: formula of the score, "wu" or "length".
        early_stopping: when a row is done. "never": when no live hypothesis can beat the worst
            result any more. True: when `width` texts have ended. False: when `width` texts have
            ended, and the best live hypothesis would not beat the worst of them if it ended now.
            True and False are faster and may miss better texts.

    Raises:
        ValueError: a value is out of range, or `num_results` exceeds `width`.

    Example:
        >>> Beam(num_results=2)
        Beam(width=4, length_penalty=0.6, num_results=2, normalisation='wu', early_stopping='never')
    """

    width: int = 4
    length_penalty: float = 0.6
    num_results: int = 1
    normalisation: str = "wu"
    early_stopping: bool | str = "never"

    def __post_init__(self) -> None:
        check_count("width", self.width, minimum=1)
        check_choice("normalisation", self.normalisation, NORMALISATIONS)
        rule, least = ("at least 0", 0) if self.normalisation == "wu" else ("finite", -math.inf)
        check_real("length_penalty", self.length_penalty, rule, lambda x: x >= least)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ValueError(
                '`early_stopping` must be True, False or "never". '
                f"Received: {self.early_stopping!r}"
            )
        check_count("num_results", self.num_results, minimum=1)
        if self.num_results > self.width:
            raise ValueError(
                "`num_results` must not exceed `width`. Received: "
                f"num_results={self.num_results}, width={self.width}"
            )


Method = Greedy | Sampling | Beam
_CLASSES = {kind.__name__: kind for kind in (Greedy, Sampling, Beam, Constraints)}


def to_json(method: Method | Constraints) -> dict[str, Any]:
    """Returns a method or constraints as a JSON-serialisable dict: name of the class and settings.

    Example:
        >>> from_json(to_json(Sampling(top_k=5)))
        Sampling(temperature=1.0, top_k=5, top_p=None)
    """
    return {"method": type(method).__name__, "settings": dataclasses.asdict(method)}


def from_json(content: dict[str, Any]) -> Any:
    """Returns the method or constraints that `to_json` wrote; returns any other dict unchanged."""
    if set(content) != {"method", "settings"}:
        return content
    return _CLASSES[content["method"]](**content["settings"])
