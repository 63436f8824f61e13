"""Kernels with a mask and scores: which weights are kept is trained, and not only what they are.

`kbert.edit.pruning.with_movement` makes such models of others, `apply_movement` plain ones of them.

Shapes: `N` rows, `I` width in, `O` width out.
"""

import math
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.edit.base import Edit, Kernels, products


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
        >>> rows, kernel = layer(ops.ones((1, 1)), ops.array([[3.0, 4.0]]))
        >>> ops.convert_to_numpy(kernel).tolist()
        [[3.0, 0.0]]
    """

    def build(self, kernel_shape: Shape) -> None:
        self.scores = self.add_weight(name="scores", shape=kernel_shape, initializer="zeros")
        self.mask = self.add_weight(
            name="mask", shape=kernel_shape, initializer="ones", trainable=False
        )

    def call(self, rows: Tensor, kernel: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """(N, I) and (I, O) -> the same, the kernel masked."""
        kernel, mask = ops.convert_to_tensor(kernel), ops.convert_to_tensor(self.mask)
        if training:
            # Adds nothing but a gradient: a number less itself is exactly 0.
            scores = ops.convert_to_tensor(self.scores)
            mask = mask + (scores - ops.stop_gradient(scores))
        return rows, kernel * mask


class Movement(Edit):
    """Every kernel in the blocks has a score and a mask for each of its weights.

    Both are saved with the other weights, so that a preset computes what was trained, and a run
    resumes with the same choice. (https://arxiv.org/abs/2005.07683)

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(edits=[{"kind": "movement"}])
        >>> kbert.Encoder(config).count_params() == kbert.describe(config).parameters
        True
    """

    kind = "movement"
    after = ("pruned",)
    takes_adapters = False  # they would train, and be merged into, kernels that are not what runs

    def apply(self, model: keras.Model) -> None:
        for layer in products(model):
            layer.add_edit(
                MovementMask(dtype=layer.dtype_policy, name="movement"), layer.kernel.shape
            )

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        return 2 * sum(math.prod(kernel) for block in kernels for kernel in block)
