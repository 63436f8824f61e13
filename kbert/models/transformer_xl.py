"""Transformer-XL, a language model with a memory of earlier sequences (Dai et al. 2019).

Shapes: `B` batch, `T` tokens, `L` layers, `M` tokens of a memory, `H` hidden width.
"""

from typing import Any

import keras

from kbert.configs.transformer_xl import TransformerXlConfig
from kbert.core.types import Tensors
from kbert.layers import Dropout
from kbert.layers.adaptive import AdaptiveEmbeddings
from kbert.models.encoder import INPUTS
from kbert.models.xlnet.xlnet import Xlnet


@keras.saving.register_keras_serializable(package="kbert")
class TransformerXl(Xlnet):
    """`Encoder` for a `TransformerXlConfig`: a token attends to earlier tokens and a memory.

    It has one more input: "memory" (L, B, M, H), the inputs of each layer for the sequences before.
    All tokens attend to it. The output "memory" has the same shape and ends with the inputs of this
    sequence (its first `reuse_length` tokens). No gradient flows into either. With `same_length` a
    token attends to itself and the M - 1 tokens before it only.

    (mem_transformer.py of kimiyoung/transformer-xl. There a memory is empty at first. Here, as in
    Hugging Face's class, it is zeros at first, which are attended to.)

    Args:
        config: a `TransformerXlConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> config = TransformerXlConfig(vocabulary_size=10, hidden_size=8, num_layers=2,
        ...                              num_heads=2, intermediate_size=16)
        >>> encoder = TransformerXl(config)
        >>> out = encoder({"token_ids": np.array([[4, 5, 3]]),
        ...                "memory": np.zeros((2, 1, 4, 8), "float32")})
        >>> {name: tuple(x.shape) for name, x in out.items()}
        {'memory': (2, 1, 4, 8), 'sequence': (1, 3, 8)}
    """

    config_class = TransformerXlConfig
    config: TransformerXlConfig
    INPUTS = (
        *(x for x in INPUTS if x not in ("causal_mask", "attention_order", "segment_ids")),
        "memory",
    )
    first_seen = 1

    def memory_shape(self, rows: Any, tokens: int) -> tuple[Any, ...]:
        """Returns the shape of "memory" for a batch of `rows` = B and a memory of `tokens` = M."""
        return (self.config.num_layers, rows, tokens, self.config.hidden_size)

    def _make_embeddings(self) -> keras.layers.Layer:
        config, policy = self.config, {"dtype": self.dtype_policy}
        return AdaptiveEmbeddings(
            config.vocabulary_size,
            config.embedding_width,
            config.hidden_size,
            cutoffs=config.cutoffs,
            divisor=config.divisor,
            dropout=Dropout(config.dropout, name="dropout", **policy),
            initializer_range=config.initializer_range,
            name="embeddings",
            **policy,
        )

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = self._make_embeddings()
        self.dropout = Dropout(config.dropout, name="dropout", **policy)
        self.blocks = [self._make_block(layer) for layer in range(config.num_layers)]
        self.query = self.shared = self.norm = self.pooler = None

    def _layer_block(self, name: str, **options: Any) -> keras.layers.Layer:
        return super()._layer_block(name, has_segments=False, **options)

    def _bounds(self, inputs: Tensors) -> bool:
        return inputs.get("memory") is not None  # a token sees as many tokens as a memory has

    @property
    def token_embedding(self) -> Any:
        """The token table (V, E), if the vocabulary is one cluster.

        Raises:
            ValueError: the vocabulary has several clusters.
        """
        if self.config.cutoffs:
            raise ValueError(
                "`token_embedding` requires a vocabulary of one cluster; with several, "
                f"kbert.tasks.MemoryLM has the softmax. Received: cutoffs={self.config.cutoffs}"
            )
        return self.embeddings.tables[0]
