"""Heads of one dense layer, on tokens' vectors with a transform before it where the config says so.

Shapes: `B` batch, `A` alternatives, `T` tokens, `H` hidden width, `C` classes.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import DType, Shape, Tensor
from kbert.layers import Dense, LayerNorm


def transform_layers(config: EncoderConfig, width: int, dtype: DType) -> tuple[Dense, LayerNorm]:
    """What stands before the logits of tokens: "transform", with the activation, and "norm"."""
    transform = Dense(
        width,
        activation=config.transform_activation,
        initializer_range=config.initializer_range,
        use_bias=config.has_bias("heads"),
        dtype=dtype,
        name="transform",
    )
    norm = LayerNorm(config.layer_norm_epsilon, kind=config.norm, dtype=dtype, name="norm")
    return transform, norm


class LinearHead(keras.layers.Layer):
    """One dense layer on vectors of the encoder.

    Args:
        config: the encoder's.
        units: width of the logits.
        name: of the layer, the first part of its weights' names.
        width: of the vectors; None = the config's `hidden_size`.
    """

    of_tokens: ClassVar[bool] = False

    def __init__(
        self,
        config: EncoderConfig,
        units: int,
        *,
        name: str,
        width: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.dense = Dense(
            units,
            initializer_range=config.initializer_range,
            # Few numbers that go straight into a loss: not worth rounding to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="dense",
        )
        self.width = width or config.hidden_size
        self.transform: Dense | None = None
        # A decoder's config and ELMo's have no such field.
        if self.of_tokens and getattr(config, "token_transform", False):
            layers = transform_layers(config, self.width, self.dtype_policy)
            self.transform, self.norm = layers
        self.build()

    def build(self, *shapes: Shape) -> None:
        self.dense.build((None, self.width))
        if self.transform is not None:
            self.transform.build((None, None, self.width))
            self.norm.build((None, None, self.width))

    def call(self, vectors: Tensor) -> Tensor:
        """(..., H) -> logits (..., C), float32."""
        if self.transform is not None:
            vectors = self.norm(self.transform(vectors))
        # Also where the weights themselves are in half precision: sums and answers are of these.
        return ops.cast(self.dense(vectors), "float32")


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

    of_tokens = True

    def __init__(
        self, config: EncoderConfig, num_classes: int, name: str = "tokens", **kwargs: Any
    ) -> None:
        super().__init__(config, num_classes, name=name, **kwargs)


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

    of_tokens = True

    def __init__(self, config: EncoderConfig, name: str = "span", **kwargs: Any) -> None:
        super().__init__(config, 2, name=name, **kwargs)

    def call(self, sequence: Tensor) -> Tensor:
        """(B, T, H) -> starts (B, T) and ends (B, T), float32."""
        return tuple(ops.unstack(super().call(sequence), 2, axis=-1))


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
