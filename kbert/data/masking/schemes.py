"""Ways to choose the tokens that are predicted, as values; `masking` has the functions."""

import dataclasses
import math
from collections.abc import Callable


def max_predictions(sequence_length: int, masked_share: float = 0.15) -> int:
    """Columns of `mask_positions`: Google's 20 at length 128 and 80 at 512, else just enough.

    >>> max_predictions(128), max_predictions(512), max_predictions(256)
    (20, 80, 40)
    """
    if masked_share == 0.15 and sequence_length in (128, 512):
        return {128: 20, 512: 80}[sequence_length]
    return math.ceil(masked_share * sequence_length) + 1


def independent_columns(sequence_length: int, masked_share: float = 0.15) -> int:
    """ELECTRA's `max_predictions_per_seq`.

    >>> independent_columns(128), independent_columns(512), independent_columns(512, 0.25)
    (19, 79, 130)
    """
    return max(1, int((masked_share + 0.005) * sequence_length))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingScheme:
    """A way to choose the tokens that are predicted.

    Attributes:
        choose: what chooses positions among units, a name of `kbert.data.masking.masking.CHOOSE`.
        units: what is chosen: "tokens", "words", or "phrases" (and words outside of them).
        columns: P, by sequence length and the largest share.
        counts: what says how many a row predicts, a name of `kbert.data.masking.masking.COUNTS`.
        counts_text: whether the length is that of the text, without special tokens.
        replacement: shares of [MASK] and of random tokens, as published.
        by_span: whether neighbours share their kind of replacement, and spans are features.
        repeats: whether a position may be drawn twice.
        permutes: whether the rows are read in an order of their own, see `reading_order`; [CLS] is
            behind the texts then.
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
