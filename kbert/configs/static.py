"""The configuration of a static encoder: a table of token embeddings."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import (
    check_activation,
    check_choice,
    check_count,
    check_positive,
    check_rate,
)
from kbert.configs.encoder import IDENTITY, EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticConfig(EncoderConfig):
    """Sizes of an encoder without layers: a token has the same embedding in every context.

    A token's weight in a mean is the length of its embedding. So there is one table and no second
    one of weights, as in the folders of model2vec and of sentence-transformers' `StaticEmbedding`.
    Sequences have no [CLS] and [SEP].

    Args:
        vocabulary_size: rows of the table.
        hidden_size: width of an embedding.
        max_positions: longest sequence that the tasks make, in tokens; not the size of a weight.
        dropout: dropout rate on the embeddings; it makes positive pairs of single texts
            (`kbert.tasks.TextEmbedder`).
        uncounted_ids: token ids that a mean leaves out, such as [UNK]; loaded and distilled tables
            have zeros there.
        pooler_activation: activation of a dense layer on the mean, for heads on whole texts; None =
            no such layer.

    Raises:
        ValueError: a value is out of range, or a field that a table does not use is set.

    Example:
        >>> config = StaticConfig(vocabulary_size=32, hidden_size=8, uncounted_ids=(0, 1))
        >>> config.num_layers, config.count_embeddings()
        (0, 256)
    """

    kind = "static"
    told = "a static encoder, which kbert.Encoder loads"

    num_layers: int = 0
    num_heads: int = 1
    intermediate_size: int = 0
    num_segments: int = 0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    pooler_activation: str | None = None
    pooling: str = "mean"
    positions: str = "none"
    embedding_norm: bool = False
    uncounted_ids: tuple[int, ...] = ()

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **EncoderConfig.CHOICES,
        "pooling": ("mean",),
        "positions": ("none",),
    }
    LATER: ClassVar[tuple[str, ...]] = (
        *EncoderConfig.LATER,
        *("num_layers", "num_heads", "intermediate_size", "num_segments", "attention_dropout"),
        *("activation", "layer_norm_epsilon", "uncounted_ids", "embedding_size"),
        *("num_layer_groups",),
    )
    UNUSED: ClassVar[tuple[str, ...]] = (
        *("num_layers", "num_heads", "intermediate_size", "num_segments", "embedding_size"),
        *("num_layer_groups", "part", "edits", "positions", "rotary_base", "local_rotary_base"),
        *("attention_pattern", "feed_forward", "norm", "block", "embedding_norm"),
        *("attention_dropout", "pooling", "pooler_norm", "bias_exceptions", "num_key_value_heads"),
        *("head_activation", "padding_id"),
    )

    def __post_init__(self) -> None:
        if isinstance(self.uncounted_ids, list):  # JSON has no tuples
            object.__setattr__(self, "uncounted_ids", tuple(self.uncounted_ids))
        for name in ("vocabulary_size", "hidden_size", "max_positions"):
            check_count(name, getattr(self, name), minimum=1)
        for name in self.UNUSED:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_unused()
        check_rate("dropout", self.dropout)
        check_positive("initializer_range", self.initializer_range)
        check_choice("output", self.output, self.CHOICES["output"])
        if self.pooler_activation not in (None, IDENTITY):
            check_activation("pooler_activation", self.pooler_activation)
        self._check_uncounted()

    def _check_uncounted(self) -> None:
        """Raises ValueError unless `uncounted_ids` is a tuple of ids of the vocabulary."""
        ids = self.uncounted_ids
        are_integers = isinstance(ids, tuple) and all(type(token_id) is int for token_id in ids)
        if not are_integers or not all(0 <= token_id < self.vocabulary_size for token_id in ids):
            raise ValueError(
                f"`uncounted_ids` must be token ids below vocabulary_size={self.vocabulary_size}. "
                f"Received: {ids!r}"
            )

    def count_embeddings(self) -> int:
        return self.vocabulary_size * self.hidden_size

    def count_blocks(self) -> int:
        return 0
