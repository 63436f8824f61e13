"""Kernels with a mask and scores: training also chooses which weights to keep.

`kbert.edit.pruning.with_movement` adds masks and scores to a model. `apply_movement` applies the
masks to the kernels and removes both.

Shapes: `N` rows, `I` width in, `O` width out.
"""

import math
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.edit.base import Edit, Kernels, products


class MovementMask(keras.layers.Layer):
    """Masks the kernel of a dense layer, `kernel ⊙ mask`, and gives the scores gradients.

    The mask is 0 or 1. `MovementPruning` chooses it by the scores, which never affect the outputs.
    The scores get the gradient of a real-valued mask (a straight-through estimator). If G is the
    gradient of the masked kernel, it is `G ⊙ kernel` for the scores and `G ⊙ mask` for the kernel.
    So a score grows where its weight moves away from zero, and falls where it moves towards zero,
    also while the weight is masked. (Sanh, Wolf & Rush 2020, "Movement Pruning",
    https://arxiv.org/abs/2005.07683, section 4.)

    Scores are initialised with 0 and the mask with 1: nothing is masked.

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
        """(N, I) and (I, O) -> the same rows and the masked kernel."""
        kernel, mask = ops.convert_to_tensor(kernel), ops.convert_to_tensor(self.mask)
        if training:
            # Adds a gradient and changes no value: a number minus itself is exactly 0.
            scores = ops.convert_to_tensor(self.scores)
            mask = mask + (scores - ops.stop_gradient(scores))
        return rows, kernel * mask


class Movement(Edit):
    """An edit that gives each kernel in the blocks one score and one mask entry per weight.

    Both are saved with the other weights. So a preset computes the same as the trained model, and a
    run resumes with the same masks. (https://arxiv.org/abs/2005.07683)

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(edits=[{"kind": "movement"}])
        >>> kbert.Encoder(config).count_params() == kbert.describe(config).parameters
        True
    """

    kind = "movement"
    after = ("pruned",)
    takes_adapters = False  # they would be trained on, and merged into, the unmasked kernels

    def apply(self, model: keras.Model) -> None:
        for layer in products(model):
            layer.add_edit(
                MovementMask(dtype=layer.dtype_policy, name="movement"), layer.kernel.shape
            )

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        return 2 * sum(math.prod(kernel) for block in kernels for kernel in block)
