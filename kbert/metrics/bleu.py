"""BLEU and chrF of translations, computed by sacrebleu so that papers can be compared."""

import dataclasses
from collections.abc import Sequence

from kbert.metrics.checks import text_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bleu:
    """BLEU of a corpus and its components.

    Attributes:
        score: 0 to 100, the geometric mean of `precisions` times `brevity_penalty`.
        brevity_penalty: below 1 where the hypotheses are shorter than the references.
        precisions: precision of 1-, 2-, 3- and 4-grams, in per cent.
        length_ratio: tokens of the hypotheses over tokens of the references.
        signature: sacrebleu's settings; scores with the same signature can be compared.
    """

    score: float
    brevity_penalty: float
    precisions: tuple[float, ...]
    length_ratio: float
    signature: str

    def __str__(self) -> str:
        precisions = "/".join(f"{x:.1f}" for x in self.precisions)
        return (
            f"BLEU {self.score:.2f} ({precisions}, brevity penalty {self.brevity_penalty:.3f}; "
            f"{self.signature})"
        )


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Bleu:
    """Computes the BLEU of a corpus of translations (Papineni et al. 2002) with sacrebleu.

    Pass raw, untokenised texts: sacrebleu tokenises both sides alike, which makes scores comparable
    (Post 2018, "A call for clarity in reporting BLEU scores").

    Args:
        hypotheses: (N,) translations.
        references: (N,) reference translations; or for each hypothesis a list of references, all
            lists of the same length.
        lowercase: whether to ignore case.
        tokenize: name of a sacrebleu tokenizer: "13a" (WMT's), "intl", "zh", "ja-mecab",
            "char", "none" ….

    Raises:
        ValueError: unequal numbers of texts, no texts, values that are not strings, or an unknown
            tokenizer.

    Example:
        >>> result = bleu(["The cat sits on a mat."], ["The cat sits on the mat."])
        >>> round(result.score, 2), result.brevity_penalty, result.precisions[0]
        (48.89, 1.0, 85.71428571428571)
    """
    from sacrebleu.metrics import BLEU

    streams = _streams(hypotheses, references)
    tokenizers = sorted(BLEU.TOKENIZERS)
    if tokenize not in tokenizers:
        raise ValueError(f"tokenize must be one of {', '.join(tokenizers)}. Received: {tokenize!r}")
    # `force`: no warning for each text that looks tokenised already.
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    result = metric.corpus_score(list(hypotheses), streams)
    return Bleu(
        score=float(result.score),
        brevity_penalty=float(result.bp),
        precisions=tuple(map(float, result.precisions)),
        length_ratio=float(result.ratio),
        signature=str(metric.get_signature()),
    )


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    word_order: int = 0,
) -> float:
    """Computes the chrF2 or the chrF2++ of a corpus, 0 to 100, with sacrebleu.

    chrF2 is the F score of character 1- to 6-grams (Popović 2015), which counts recall twice as
    much as precision. chrF2++ also counts word 1- and 2-grams (Popović 2017).

    Args:
        hypotheses: (N,) translations.
        references: (N,) reference translations; or for each hypothesis a list of references, all
            lists of the same length.
        word_order: longest n-grams of words that count too: 0 for chrF2, 2 for chrF2++.

    Raises:
        ValueError: unequal numbers of texts, no texts, values that are not strings, or a
            `word_order` that is not an integer of at least 0.

    Example:
        >>> texts = ["The cat sits on a mat."], ["The cat sits on the mat."]
        >>> round(chrf(*texts), 2), round(chrf(*texts, word_order=2), 2)
        (68.04, 70.11)
    """
    from sacrebleu.metrics import CHRF

    if not isinstance(word_order, int) or isinstance(word_order, bool) or word_order < 0:
        raise ValueError(f"word_order must be an integer of at least 0. Received: {word_order!r}")
    streams = _streams(hypotheses, references)
    metric = CHRF(word_order=word_order)
    return float(metric.corpus_score(list(hypotheses), streams).score)


def _streams(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[list[str]]:
    """Returns lists of N references for sacrebleu: the first of every hypothesis, the second, ….

    Raises ValueError for no texts, unequal numbers of texts, or values that are not strings.
    """
    rows = text_rows(hypotheses, references)
    sizes = sorted({len(row) for row in rows})
    if len(sizes) > 1 or sizes == [0]:
        raise ValueError(
            "Every hypothesis must have as many references as the others, and at least one. "
            f"Received: {sizes} of them"
        )
    return [list(stream) for stream in zip(*rows, strict=True)]
