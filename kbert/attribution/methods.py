"""The methods of attribution: a function for each, from a batch to a score for each token.

Shapes: B rows of a batch, K sequences of a row, T tokens, E width of the token table.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from kbert.attribution.attention_graph import attention_flow, attention_rollout
from kbert.attribution.gate import GatedTask
from kbert.core.types import Arrays
from kbert.tasks.fine_tuning.options import ATTRIBUTION_METHODS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of rows to explain.

    Attributes:
        gated: the task.
        features: features of the B rows.
        index: index of the explained logits, see `GatedTask.logits`.
        is_real: (B, K, T) bool, whether a position is a token and not padding.
        is_text: (B, K, T) bool, whether a position is a token of a text and not a special token.
        read: (B, K, T), weights of the positions that the head reads in the last
            layer; those of a row sum to 1.
        baseline: (E,), embedding that replaces those of text tokens.
        steps: points of the quadrature of integrated gradients.
        at_once: rows computed together.
    """

    gated: GatedTask
    features: Arrays
    index: Arrays
    is_real: np.ndarray
    is_text: np.ndarray
    read: np.ndarray
    baseline: np.ndarray
    steps: int
    at_once: int

    def run(
        self, function: Callable, rows: np.ndarray, keep: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (numbers of items, results of `function` for these items), part by part.

        Args:
            function: `logits` or `gradients` of the task.
            rows: (n,), the row of each item.
            keep: function from numbers of items to their gates, (items, K, T).
        """
        for start in range(0, len(rows), self.at_once):
            items = np.arange(start, min(start + self.at_once, len(rows)))
            features, index = (
                {name: np.asarray(x)[rows[items]] for name, x in arrays.items()}
                for arrays in (self.features, self.index)
            )
            yield items, function(features, index, keep(items), self.baseline)

    def logits(self, keep: np.ndarray) -> np.ndarray:
        """Returns the explained logits (B,) with gates (B, K, T)."""
        rows = np.arange(len(keep))
        parts = self.run(self.gated.logits, rows, lambda items: keep[items])
        return np.concatenate([found for _, found in parts])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of the tokens of a batch.

    Attributes:
        scores: (B, K, T) float64, 0 for padding.
        values: (B,), explained logits.
        baseline_values: (B,), the same with all text tokens replaced by the baseline; None if the
            method does not compare with it.
    """

    scores: np.ndarray
    values: np.ndarray
    baseline_values: np.ndarray | None = None


def integrated_gradients(batch: Batch) -> Scores:
    """Integrates the gradients along the line from the baseline to the embeddings.

    (Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365, equation 1.) The integral is a
    Gauss-Legendre quadrature.
    """
    points, weights = np.polynomial.legendre.leggauss(batch.steps)
    points, weights = (points + 1) / 2, weights / 2  # from [-1, 1] to [0, 1]
    rows = np.repeat(np.arange(len(batch.is_text)), batch.steps)

    def keep(items: np.ndarray) -> np.ndarray:
        point = points[items % batch.steps][:, None, None]
        return np.where(batch.is_text[rows[items]], point, 1.0)

    scores = np.zeros(batch.is_text.shape)
    for items, found in batch.run(batch.gated.gradients, rows, keep):
        weight = weights[items % batch.steps][:, None, None]
        np.add.at(scores, rows[items], weight * found)
    return Scores(
        scores=scores * batch.is_text,
        values=batch.logits(np.ones(scores.shape)),
        baseline_values=batch.logits(1.0 - batch.is_text),
    )


def gradient_x_input(batch: Batch) -> Scores:
    """Multiplies gradient and embedding (Shrikumar et al. 2016, https://arxiv.org/abs/1605.01713).

    The batch's baseline is zero, so special tokens have scores too.
    """
    ones = np.ones(batch.is_text.shape)
    rows = np.arange(len(ones))
    parts = batch.run(batch.gated.gradients, rows, lambda items: ones[items])
    scores = np.concatenate([found for _, found in parts]).astype("float64")
    return Scores(scores=scores * batch.is_real, values=batch.logits(ones))


def occlusion(batch: Batch) -> Scores:
    """Replaces each text token by the baseline: the score is by how much the logit falls.

    (Zeiler & Fergus 2014, https://arxiv.org/abs/1311.2901, section 4.2, for tokens.)
    """
    ones = np.ones(batch.is_text.shape)
    values = batch.logits(ones)
    places = np.argwhere(batch.is_text)  # (tokens, 3)

    def keep(items: np.ndarray) -> np.ndarray:
        gates = ones[places[items, 0]]
        gates[np.arange(len(items)), places[items, 1], places[items, 2]] = 0.0
        return gates

    scores = np.zeros(ones.shape)
    for items, found in batch.run(batch.gated.logits, places[:, 0], keep):
        scores[tuple(places[items].T)] = values[places[items, 0]] - found
    return Scores(scores=scores, values=values)


def rollout(batch: Batch) -> Scores:
    """Attention rollout, see `attention_rollout`."""
    return _by_attention(batch, attention_rollout)


def flow(batch: Batch) -> Scores:
    """Attention flow, see `attention_flow`."""
    return _by_attention(batch, attention_flow)


def _by_attention(batch: Batch, share: Callable[..., np.ndarray]) -> Scores:
    """Returns the scores of a function from attention (L, T, T) and read weights to shares (T,)."""
    scores = np.zeros(batch.is_text.shape)
    for start in range(0, len(scores), batch.at_once):
        part = slice(start, start + batch.at_once)
        attention = batch.gated.attention(
            {k: np.asarray(x)[part] for k, x in batch.features.items()}
        )
        for row, matrices in enumerate(attention, start):
            for k, layers in enumerate(matrices):
                real = np.flatnonzero(batch.is_real[row, k])
                read = batch.read[row, k, real]
                if (total := read.sum()) > 0:
                    shares = share(layers[:, real][:, :, real], read / total)
                    scores[row, k, real] = total * shares
    return Scores(scores=scores, values=batch.logits(np.ones(scores.shape)))


_FUNCTIONS = (integrated_gradients, gradient_x_input, occlusion, rollout, flow)
METHODS: dict[str, Callable[[Batch], Scores]] = dict(
    zip(ATTRIBUTION_METHODS, _FUNCTIONS, strict=True)
)
# The methods that replace text tokens by a baseline, and those that need gradients.
WITH_BASELINE = (integrated_gradients.__name__, occlusion.__name__)
WITH_GRADIENTS = (integrated_gradients.__name__, gradient_x_input.__name__)
