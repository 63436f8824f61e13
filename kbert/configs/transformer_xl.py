"""The configuration of Transformer-XL."""

import dataclasses
import itertools
from typing import ClassVar

from kbert.configs.base import check_count
from kbert.configs.xlnet import XlnetConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerXlConfig(XlnetConfig):
    """Sizes and options of a Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860).

    Each layer has its own biases for content and distance ("untied" in the original).

    Args:
        cutoffs: first token ids of the clusters after the first one, in a vocabulary sorted by
            falling frequency; see `kbert.layers.adaptive`.
        divisor: factor by which embeddings become narrower from one cluster to the next.
        embedding_size: embedding width of the first cluster; None = `hidden_size`.

    Raises:
        ValueError: a value is out of range, or a field that the model does not use is set.

    Example:
        >>> config = TransformerXlConfig(vocabulary_size=100, hidden_size=8, num_layers=2,
        ...                              num_heads=2, intermediate_size=16, cutoffs=(20, 50),
        ...                              divisor=2)
        >>> config.count_embeddings()  # 20 x 8 + 30 x 4 + 50 x 2, and (8 + 4 + 2) x 8
        492
    """

    kind = "transformer_xl"
    told = "a Transformer-XL, which kbert.Encoder loads"

    num_segments: int = 0
    attention: str = "causal"
    activation: str = "relu"
    pooler_activation: str | None = None
    layer_norm_epsilon: float = 1e-5
    cutoffs: tuple[int, ...] = ()
    divisor: int = 1

    LATER: ClassVar[tuple[str, ...]] = (*XlnetConfig.LATER, "cutoffs", "divisor")
    UNUSED: ClassVar[tuple[str, ...]] = (
        *(name for name in XlnetConfig.UNUSED if name != "embedding_size"),
        *("attention", "pooler_activation"),
    )

    def __post_init__(self) -> None:
        if isinstance(self.cutoffs, list):  # JSON has no tuples
            object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        if not isinstance(self.cutoffs, tuple):
            raise ValueError(
                "`cutoffs` must be a tuple of entries of the vocabulary. Received: "
                f"{self.cutoffs!r}"
            )
        super().__post_init__()
        check_count("divisor", self.divisor, minimum=1)
        bounds = (0, *self.cutoffs, self.vocabulary_size)
        for bound in self.cutoffs:
            check_count("cutoffs", bound, minimum=1)
        if any(b <= a for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                "`cutoffs` must be in ascending order and less than the vocabulary size. Those of "
                "a published model are for its own vocabulary: pass others with another one. "
                f"Received: cutoffs={self.cutoffs}, vocabulary_size={self.vocabulary_size}"
            )
        if self.embedding_width // self.divisor ** len(self.cutoffs) < 1:
            raise ValueError(
                "The embeddings of every cluster must have at least one column. Received: "
                f"{self.embedding_width} columns in the first, divisor={self.divisor}, "
                f"cutoffs={self.cutoffs}"
            )

    @property
    def cluster_sizes(self) -> list[tuple[int, int]]:
        """(number of tokens, embedding width) of each cluster, from the most frequent tokens on."""
        bounds = (0, *self.cutoffs, self.vocabulary_size)
        return [
            (end - begin, self.embedding_width // self.divisor**n)
            for n, (begin, end) in enumerate(itertools.pairwise(bounds))
        ]

    def count_embeddings(self) -> int:
        sizes = self.cluster_sizes
        has_projection = self.divisor > 1 or self.embedding_width != self.hidden_size
        projection_weights = sum(width for _, width in sizes) * self.hidden_size
        return sum(entries * width for entries, width in sizes) + (
            projection_weights if has_projection else 0
        )

    def count_blocks(self) -> int:
        # A bias, and embeddings of the same and another segment.
        segment_weights = 3 * self.hidden_size
        return super().count_blocks() - self.num_layers * segment_weights
