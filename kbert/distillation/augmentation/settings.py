"""How texts are augmented."""

import dataclasses

COPIES, CANDIDATES, REPLACED_SHARE = 30, 15, 0.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentationSettings:
    """The numbers of algorithm 1 of TinyBERT.

    (Jiao et al. 2020, https://arxiv.org/abs/1909.10351; its defaults are M = 15, N = 30, p = 0.4.
    The authors' data_augmentation.py takes other N for some tasks of GLUE: 20 for SST-2 and QNLI,
    10 for MNLI and QQP.)

    Attributes:
        copies: N, how often a text is copied; copies that are equal count once.
        candidates: M, words that may take a word's place.
        replaced_share: p, the probability that a word is replaced in a copy.
        with_original: whether the language model reads the text as it was beside the masked one,
            as the two segments of a pair. None: where the model has segments.
        seed: of all that is drawn.

    Example:
        >>> AugmentationSettings(copies=10).candidates
        15
    """

    copies: int = COPIES
    candidates: int = CANDIDATES
    replaced_share: float = REPLACED_SHARE
    with_original: bool | None = None
    seed: int = 0

    def __post_init__(self):
        rules = {
            "copies": (_is_whole(self.copies, 1), "a whole number from 1"),
            "candidates": (_is_whole(self.candidates, 1), "a whole number from 1"),
            "seed": (_is_whole(self.seed, 0), "a whole number from 0"),
            "replaced_share": (
                isinstance(self.replaced_share, int | float) and 0 < self.replaced_share <= 1,
                "a number above 0 and at most 1",
            ),
        }
        for name, (good, rule) in rules.items():
            if not good:
                raise ValueError(f"`{name}` is {rule}. Received: {name}={getattr(self, name)!r}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
