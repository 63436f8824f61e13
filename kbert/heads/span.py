"""The head that finds an answer in a text.

Shapes: `B` batch, `T` tokens, `H` hidden width.
"""

from typing import Any

from keras import ops

from kbert.configs.base import EncoderConfig
from kbert.heads.linear import LinearHead
from kbert.types import Tensor


class SpanHead(LinearHead):
    """Two logits for each token: of being the answer's first, and of being its last.

    (BERT, section 4.2, https://arxiv.org/abs/1810.04805; `create_model` in run_squad.py of
    google-research/bert.)

    Args:
        config: the encoder's.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> start, end = SpanHead(config)(np.ones((3, 5, 8), "float32"))
        >>> tuple(start.shape), tuple(end.shape)
        ((3, 5), (3, 5))
    """

    def __init__(self, config: EncoderConfig, name: str = "span", **kwargs: Any) -> None:
        super().__init__(config, 2, name=name, **kwargs)

    def call(self, sequence: Tensor) -> Tensor:
        """(B, T, H) -> starts (B, T) and ends (B, T), float32."""
        return tuple(ops.unstack(super().call(sequence), 2, axis=-1))
