"""Kernels with a mask and scores: which weights are kept is trained, and not only what they are.

Shapes: `I` width in, `O` width out.
"""

import keras
from keras import ops

from kbert.core.types import Shape, Tensor


class MovementMask(keras.layers.Layer):
    """What a dense layer multiplies with: `kernel ⊙ mask`, and gradients for the scores.

    The mask is 0 or 1 and chosen from outside by the scores, which never enter what is computed.
    Their gradient is that of a mask which could be any number (a straight-through estimator): for
    the gradient G of the masked kernel the scores have `G ⊙ kernel`, the kernel `G ⊙ mask`. So
    updates add to a score where a weight moves away from zero, and take from it where it moves
    towards zero, also while it is masked. (Sanh, Wolf & Rush 2020, "Movement Pruning",
    https://arxiv.org/abs/2005.07683, section 4.)

    Scores begin at 0 and the mask at 1: nothing is masked.

    Example:
        >>> layer = MovementMask()
        >>> layer.build((1, 2))
        >>> _ = layer.mask.assign([[1.0, 0.0]])
        >>> ops.convert_to_numpy(layer(ops.array([[3.0, 4.0]]))).tolist()
        [[3.0, 0.0]]
    """

    def build(self, kernel_shape: Shape) -> None:
        self.scores = self.add_weight(name="scores", shape=kernel_shape, initializer="zeros")
        self.mask = self.add_weight(
            name="mask", shape=kernel_shape, initializer="ones", trainable=False
        )

    def call(self, kernel: Tensor, training: bool = False) -> Tensor:
        """(I, O) -> (I, O)."""
        kernel, mask = ops.convert_to_tensor(kernel), ops.convert_to_tensor(self.mask)
        if training:
            # Adds nothing but a gradient: a number less itself is exactly 0.
            scores = ops.convert_to_tensor(self.scores)
            mask = mask + (scores - ops.stop_gradient(scores))
        return kernel * mask
