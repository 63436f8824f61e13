"""Heads of one dense layer; token heads can have a transform before it (`token_transform`).

Shapes: `B` batch, `A` alternatives, `T` tokens, `H` hidden width, `C` classes.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import DType, Shape, Tensor
from kbert.layers import Dense, LayerNorm


def transform_layers(config: EncoderConfig, width: int, dtype: DType) -> tuple[Dense, LayerNorm]:
    """Returns the two layers before token logits, not built: "transform" and "norm".

    "transform" is a dense layer with an activation and `width` columns; "norm" normalises them.
    """
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
    """One dense layer on outputs of the encoder.

    Args:
        config: configuration of the encoder.
        units: width of the logits.
        name: name of the layer, the first part of the names of its weights.
        width: width of the input; None = the config's `hidden_size`.
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
            # The few outputs go straight into a loss: not worth rounding to bfloat16.
            dtype=keras.DTypePolicy(self.variable_dtype),
            name="dense",
        )
        self.width = width or config.hidden_size
        self.transform: Dense | None = None
        # The configs of decoders and ELMo have no such field.
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
        """Maps vectors (..., H) to logits (..., C), float32."""
        if self.transform is not None:
            vectors = self.norm(self.transform(vectors))
        # float32 even with weights in half precision: losses and predictions are computed from it.
        return ops.cast(self.dense(vectors), "float32")


class SentenceHead(LinearHead):
    """Logits (B, C) of pairs or texts: next-sentence or sentence-order prediction, or any classes.

    In next-sentence prediction class 1 means a random second sentence (BERT, section 3.1 and
    `get_next_sentence_output` of run_pretraining.py). In sentence-order prediction it means
    swapped segments (ALBERT, section 3.1, https://arxiv.org/abs/1909.11942). The input is the
    encoder's pooled output (B, H).

    Args:
        config: configuration of the encoder.
        num_classes: number of classes, C.
        name: "sentence" in pretraining, "classifier" in a fine-tuned model.
        width: width of the pooled input, if it is not H.

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
    """Class logits of each token (B, T, C), from the encoder's "sequence" (B, T, H).

    (BERT, section 5.3, https://arxiv.org/abs/1810.04805.)

    Args:
        config: configuration of the encoder.
        num_classes: number of classes, C.

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
    """Two logits for each token: that it starts the answer, and that it ends the answer.

    (BERT, section 4.2, https://arxiv.org/abs/1810.04805; `create_model` in run_squad.py of
    google-research/bert.)

    Args:
        config: configuration of the encoder.

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
        """Maps a sequence (B, T, H) to logits of starts (B, T) and ends (B, T), float32."""
        return tuple(ops.unstack(super().call(sequence), 2, axis=-1))


class ChoiceHead(LinearHead):
    """One logit for each alternative, all scored by the same weights.

    (BERT, section 4.4, https://arxiv.org/abs/1810.04805.)

    Args:
        config: configuration of the encoder.

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
        """Maps pooled outputs of alternatives (B, A, H) to logits (B, A), float32."""
        return ops.squeeze(super().call(pooled), axis=-1)
