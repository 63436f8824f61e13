"""Settings of data augmentation."""

from kbert.core.options import Options, option

# TinyBERT uses the first 100,000 of GloVe's 400,000 words, which are sorted by frequency.
MAX_VECTORS = 100_000


class AugmentationSettings(Options):
    """Settings of TinyBERT's data augmentation, algorithm 1.

    (Jiao et al. 2020, https://arxiv.org/abs/1909.10351; its defaults are M = 15, N = 30, p = 0.4.
    The authors' data_augmentation.py uses other N for some GLUE tasks: 20 for SST-2 and QNLI, 10
    for MNLI and QQP.)

    Args:
        {options}

    Example:
        >>> AugmentationSettings(copies=10).candidates
        15
    """

    copies: int = option(
        30,
        help="Number of copies of each text (N); duplicates are dropped.",
        at_least=1,
    )
    candidates: int = option(15, help="Candidate words for each replaced word (M).", at_least=1)
    replaced_share: float = option(
        0.4,
        help="Probability that a word is replaced in a copy (p).",
        above=0,
        at_most=1,
    )
    with_original: bool | None = option(
        None,
        help="Give the model the original text as a second segment. Default: if it has segments.",
    )
    seed: int = option(0, help="Seed of all random choices.", at_least=0, at_most=2**63 - 1)
