"""Settings of the masking schemes; the functions are in `kbert.data.masking.masking`."""

import dataclasses
import math
from collections.abc import Callable


def max_predictions(sequence_length: int, masked_share: float = 0.15) -> int:
    """Returns P, the maximum number of predictions in a row of `sequence_length` tokens.

    It is the masked share of the row rounded up, plus 1. For a share of 0.15 it is Google's 20 at
    length 128, and 80 at 512.

    >>> max_predictions(128), max_predictions(512), max_predictions(256)
    (20, 80, 40)
    """
    if masked_share == 0.15 and sequence_length in (128, 512):
        return {128: 20, 512: 80}[sequence_length]
    return math.ceil(masked_share * sequence_length) + 1


def independent_columns(sequence_length: int, masked_share: float = 0.15) -> int:
    """Returns P, the maximum number of predictions in a row of `sequence_length` tokens.

    It is ELECTRA's `max_predictions_per_seq`: the masked share plus 0.005, rounded down.

    >>> independent_columns(128), independent_columns(512), independent_columns(512, 0.25)
    (19, 79, 130)
    """
    return max(1, int((masked_share + 0.005) * sequence_length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingScheme:
    """A way to choose the tokens that are predicted.

    Attributes:
        choose: name in `kbert.data.masking.masking.CHOOSE` of the function that chooses positions.
        units: unit of choice: "tokens", "words", or "phrases" (and words outside of them).
        columns: function (sequence length, largest share) -> P.
        counts: name in `kbert.data.masking.masking.COUNTS` of the function that gives the number of
            predictions of a row.
        counts_text: whether that function gets the length of the text without special tokens.
        replacement: shares of [MASK] and of random tokens, as published.
        by_span: whether the tokens of a span share their kind of replacement, and the spans are
            features.
        repeats: whether a position may be drawn twice.
        permutes: whether rows have a random factorisation order, see `reading_order`; [CLS] then
            comes after the texts.
    """

    choose: str
    units: str = "words"
    columns: Callable[[int, float], int] = max_predictions
    counts: str = "rounded"
    counts_text: bool = False
    replacement: tuple[float, float] = (0.8, 0.1)
    by_span: bool = False
    repeats: bool = False
    permutes: bool = False


MASKING_SCHEMES = {
    "token": MaskingScheme(choose="tokens", units="tokens"),
    "whole_word": MaskingScheme(choose="words"),
    "ngram": MaskingScheme(choose="ngrams"),
    "token_ngram": MaskingScheme(choose="token_ngrams", units="tokens"),
    "span": MaskingScheme(choose="spans", counts="whole", counts_text=True, by_span=True),
    "phrase": MaskingScheme(choose="words", units="phrases"),
    "independent": MaskingScheme(
        choose="independent",
        units="tokens",
        columns=independent_columns,
        counts="independent",
        replacement=(0.85, 0.0),
        repeats=True,
    ),
    "permutation": MaskingScheme(choose="permuted", replacement=(0.0, 0.0), permutes=True),
}
