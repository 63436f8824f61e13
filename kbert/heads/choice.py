"""The head that chooses between texts.

Shapes: `B` batch, `A` alternatives, `H` hidden width.
"""

from typing import Any

from keras import ops

from kbert.configs.base import EncoderConfig
from kbert.heads.linear import LinearHead
from kbert.types import Tensor


class ChoiceHead(LinearHead):
    """One logit for each alternative, all weighed by the same vector.

    (BERT, section 4.4, https://arxiv.org/abs/1810.04805.)

    Args:
        config: the encoder's.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> tuple(ChoiceHead(config)(np.ones((3, 4, 8), "float32")).shape)
        (3, 4)
    """

    def __init__(self, config: EncoderConfig, name: str = "choice", **kwargs: Any) -> None:
        super().__init__(config, 1, name=name, **kwargs)

    def call(self, pooled: Tensor) -> Tensor:
        """Pooled vectors of the alternatives (B, A, H) -> logits (B, A), float32."""
        return ops.squeeze(super().call(pooled), axis=-1)
