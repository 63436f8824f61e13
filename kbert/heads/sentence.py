"""The head on the pooled vector.

Shapes: `B` batch, `H` hidden width, `C` classes.
"""

from typing import Any

from kbert.configs.base import EncoderConfig
from kbert.heads.linear import LinearHead


class SentenceHead(LinearHead):
    """Logits (B, C) of pairs or texts: next-sentence or sentence-order prediction, or any classes.

    Class 1 means a random second sentence for the one (BERT, section 3.1 and
    `get_next_sentence_output` of run_pretraining.py), swapped segments for the other (ALBERT,
    section 3.1, https://arxiv.org/abs/1909.11942). Called with the pooled vectors (B, H).

    Args:
        config: the encoder's.
        num_classes: C.
        name: "sentence" in pretraining, "classifier" in a fine-tuned model.
        width: of the pooled vectors, where it is not H.

    Example:
        >>> import numpy as np
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> tuple(SentenceHead(config)(np.ones((3, 8), "float32")).shape)
        (3, 2)
    """

    def __init__(
        self, config: EncoderConfig, num_classes: int = 2, name: str = "sentence", **kwargs: Any
    ) -> None:
        super().__init__(config, num_classes, name=name, **kwargs)
