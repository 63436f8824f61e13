"""The head that labels tokens.

Shapes: `B` batch, `T` tokens, `H` hidden width, `C` classes.
"""

from typing import Any

from kbert.configs.base import EncoderConfig
from kbert.heads.linear import LinearHead


class TokenHead(LinearHead):
    """Logits of the classes of each token (B, T, C), from the encoder's "sequence" (B, T, H).

    (BERT, section 5.3, https://arxiv.org/abs/1810.04805.)

    Args:
        config: the encoder's.
        num_classes: C.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> tuple(TokenHead(config, 9)(np.ones((3, 5, 8), "float32")).shape)
        (3, 5, 9)
    """

    def __init__(
        self, config: EncoderConfig, num_classes: int, name: str = "tokens", **kwargs: Any
    ) -> None:
        super().__init__(config, num_classes, name=name, **kwargs)
