"""BERTScore: precision, recall and F1 of texts by the cosines of their tokens.

Shapes: `N` pairs of texts, `T` tokens of a candidate, `S` tokens of a reference, `D` width.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np

from kbert.core.late import tf
from kbert.core.types import Values
from kbert.extraction.extract import features
from kbert.inference import BATCH_SIZE, as_rows, as_texts
from kbert.io.progress import Progress
from kbert.metrics.checks import text_rows
from kbert.search.exact import unit
from kbert.tasks.input_form import input_form
from kbert.tokenizers.base import Tokenizer

_PAIRS = 256  # candidates whose hidden states are in memory together


class BertScore(NamedTuple):
    """Scores of N candidates, float64; cosines, so mostly from 0 to 1.

    Attributes:
        precision: (N,), mean over the candidate's tokens of the best cosine in the reference.
        recall: (N,), mean over the reference's tokens of the best cosine in the candidate.
        f1: (N,), harmonic mean of both.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray


def bert_score(
    encoder: keras.Model,
    tokenizer: Tokenizer,
    candidates: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    layer: int,
    idf: bool = False,
    rescale: float | Sequence[float] | None = None,
    batch_size: int = BATCH_SIZE,
    verbose: str | int = "auto",
) -> BertScore:
    """Computes BERTScore (Zhang et al. 2020, https://arxiv.org/abs/1904.09675, section 3).

    Each token is matched with the token of the other text whose hidden state has the largest
    cosine. As in the package bert-score, [CLS] and [SEP] can be matched but do not count
    themselves. A text without tokens, or whose tokens all have the weight 0, has the scores 0.
    Texts that are longer than the encoder's `max_positions` are truncated, with a warning.

    Scores depend on the model and its layer, so they are comparable for the same ones only.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        candidates: N texts.
        references: N texts; or for each candidate a list of references, of which the highest
            precision, recall and F1 count, each by itself.
        layer: index of the hidden state, 0 (embeddings) to L, negative from the last.
        idf: whether tokens are weighted by their inverse document frequency in the references.
        rescale: scores of unrelated texts with this model, so that these become 0: one number, or
            those of precision, recall and F1 ("baseline rescaling"). None = raw cosines.
        batch_size: sequences of a batch.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if the work takes over 2 seconds.

    Raises:
        ValueError: unequal numbers of texts, no texts, a text with half a surrogate pair, a
            candidate without a reference, the encoder has no such layer, or `rescale` is not one
            number or three below 1.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "it", "rains", "snows"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=8))
        >>> scores = bert_score(encoder, tokenizer, ["It rains"], ["It rains"], layer=1)
        >>> scores.f1.round(4).tolist()
        [1.0]
    """
    rows = text_rows(candidates, references)
    candidates = list(candidates)  # by position: a series has an index of its own
    for name, texts in (("candidates", candidates), ("references", itertools.chain(*rows))):
        as_texts(texts, name)  # raises for half a surrogate pair
    if not all(rows):
        raise ValueError(
            "A candidate must have at least one reference. Received: none at "
            f"{next(number for number, row in enumerate(rows) if not row)}"
        )
    floor = _floor(rescale)
    weigh = _Weights(encoder, tokenizer, [text for row in rows for text in row] if idf else None)
    scores = []
    with Progress("bert_score", len(rows), " texts", verbose=verbose) as bar:
        for start in range(0, len(rows), _PAIRS):
            part = slice(start, start + _PAIRS)
            texts = list(dict.fromkeys(itertools.chain(candidates[part], *rows[part])))
            states = features(
                *(encoder, tokenizer, texts),
                layers=layer,
                pooling=None,
                batch_size=batch_size,
                verbose=0,
            )
            sides = dict(zip(texts, zip(map(unit, states), weigh(texts), strict=True), strict=True))
            for candidate, row in zip(candidates[part], rows[part], strict=True):
                found = [_score(sides[candidate], sides[reference]) for reference in row]
                scores.append(np.max(found, axis=0))
            bar.show(min(start + _PAIRS, len(rows)))
    return BertScore(*((np.array(scores) - floor) / (1 - floor)).T)


class _Weights:
    """Weights of the tokens of texts: 0 for special tokens, 1 or inverse frequencies for others.

    The inverse document frequency of a token in d of n texts is log((n + 1) / (d + 1)), section 3.

    Args:
        encoder: the encoder.
        tokenizer: tokenizer of the encoder.
        texts: the n texts that are counted; None = all weights are 1.
    """

    def __init__(
        self, encoder: keras.Model, tokenizer: Tokenizer, texts: Sequence[str] | None
    ) -> None:
        self.tokenizer = tokenizer
        form = input_form(encoder, tokenizer)
        specials = form.specials(1)
        self.padding = (form.begin, specials - form.begin)
        self.budget = encoder.config.max_positions - specials
        self.frequencies: Counter[int] = Counter()
        self.count = None if texts is None else len(texts)
        for ids in self._ids(texts or []):
            self.frequencies.update(set(ids))

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the weights of each text's tokens, (T,) each, special tokens included."""
        weights = [[self._weight(token) for token in ids] for ids in self._ids(texts)]
        return [np.pad(np.array(x, "float64"), self.padding) for x in weights]

    def _weight(self, token: int) -> float:
        if self.count is None:
            return 1.0
        return math.log((self.count + 1) / (self.frequencies[token] + 1))

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = as_rows(self.tokenizer.encode(tf.constant(list(texts), tf.string)))
        return [ids[: self.budget].tolist() for ids in encoded]


def _floor(rescale: float | Sequence[float] | None) -> np.ndarray:
    """Returns the scores (3,) of unrelated texts; ValueError unless they are below 1."""
    floor = np.broadcast_to(0.0, 3)
    if rescale is not None:
        floor = np.asarray(rescale, "float64")
        if floor.shape not in ((), (3,)) or not ((floor < 1) & np.isfinite(floor)).all():
            raise ValueError(
                "`rescale` must be one number below 1, or those of precision, recall and F1. "
                f"Received: rescale={rescale!r}"
            )
    return np.broadcast_to(floor, 3)


def _score(candidate: tuple[Values, Values], reference: tuple[Values, Values]) -> list[float]:
    """Returns precision, recall and F1 of a pair; each side has vectors (T, D) and weights (T,)."""
    (found, found_weights), (wanted, wanted_weights) = candidate, reference
    cosines = np.asarray(found) @ np.asarray(wanted).T  # (T, S)
    best = (cosines.max(1), found_weights), (cosines.max(0), wanted_weights)
    if not (np.any(found_weights) and np.any(wanted_weights)):
        return [0.0] * 3
    precision, recall = (float(np.average(x, weights=weights)) for x, weights in best)
    total = precision + recall
    return [precision, recall, 2 * precision * recall / total if total else 0.0]
