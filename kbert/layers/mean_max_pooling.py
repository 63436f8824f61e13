"""Pooling of all tokens of a sequence by their mean and their maximum.

Shapes: `B` batch, `T` tokens, `H` hidden width.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Tensor


@keras.saving.register_keras_serializable(package="kbert")
class MeanMaxPooling(keras.layers.Layer):
    """Concatenated mean and maximum over the words of each sequence; has no weights.

    (The "concat pooling" of Howard & Ruder 2018, https://arxiv.org/abs/1801.06146, section 3.3,
    over all words.)

    Args:
        hidden_size: width of the input, H.

    Example:
        >>> pooled = MeanMaxPooling(1)(ops.array([[[1.0], [3.0], [9.0]]]), ops.array([[1, 1, 0]]))
        >>> ops.convert_to_numpy(pooled).tolist()
        [[2.0, 3.0]]
    """

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.units = 2 * hidden_size  # output width

    def call(self, sequence: Tensor, padding_mask: Tensor) -> dict[str, Any]:
        """Pools `sequence` over words: (B, T, H) -> (B, 2H), zeros for a row without words.

        `padding_mask` (B, T) is 1 for a word.
        """
        real = ops.cast(padding_mask, sequence.dtype)[:, :, None]  # (B, T, 1)
        total = ops.sum(real, axis=1)  # (B, 1)
        mean = ops.sum(sequence * real, axis=1) / ops.maximum(total, 1)
        largest = ops.max(ops.where(real > 0, sequence, -np.inf), axis=1)
        return ops.concatenate([mean, ops.where(total > 0, largest, 0)], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hidden_size": self.hidden_size}
