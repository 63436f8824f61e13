"""8 bits in training: numbers are rounded as in an int8 runtime, and gradients pass through.

Shapes: `N` rows, `I` width in, `O` width out.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.contexts import is_rounded
from kbert.core.types import Shape, Tensor
from kbert.edit.base import Edit, Kernels, products

LEVELS = 127  # levels of either sign: 8 bits, symmetric, so that zero stays zero
# Decay of the moving range per update. Q8BERT's `ema_decay` is 0.9999, for runs a hundred times as
# long. A range that adapts within a hundred updates is right within one epoch of any GLUE task.
DECAY = 0.99


def fake_quantize(x: Tensor, axis: int) -> Tensor:
    """Rounds weights to 8 bits: to multiples of a scale, `max |x| / 127` along an axis.

    The gradient is that of the identity (a straight-through estimator; Bengio et al. 2013,
    https://arxiv.org/abs/1308.3432). In a context `without_rounding`, x is returned unchanged.

    Args:
        x: weights of any shape.
        axis: axis along which numbers share a scale: 0 for a kernel (I, O), one scale per column.

    Example:
        >>> x = fake_quantize(ops.array([[1.0], [0.3]]), axis=0)
        >>> [round(float(v), 4) for v in x[:, 0]]
        [1.0, 0.2992]
    """
    if not is_rounded():
        return x
    return _rounded(x, ops.max(ops.abs(ops.cast(x, "float32")), axis=axis, keepdims=True))


def _rounded(x: Tensor, largest: Tensor) -> Tensor:
    """Clips x to [-largest, largest] and rounds it to 127 steps per sign.

    `largest` (float32) broadcasts against x. The result is computed in float32 and has the dtype of
    x; the gradient passes through the rounding.
    """
    wide = ops.cast(x, "float32")
    scale = ops.where(largest > 0, largest, 1.0) / LEVELS
    clipped = ops.clip(wide, -LEVELS * scale, LEVELS * scale)
    steps = ops.round(clipped / scale) * scale
    return ops.cast(clipped + ops.stop_gradient(steps - clipped), x.dtype)


class FakeQuantization(keras.layers.Layer):
    """Rounds both factors of a dense layer's product to 8 bits.

    Kernels have one scale per column, from their current largest absolute values. Inputs have one
    scale, from a moving average of their largest absolute values in training. Before the first
    update there is no average, and inputs are not rounded. (Zafrir et al. 2019, "Q8BERT",
    https://arxiv.org/abs/1910.06188, section 2. Its kernels have a single scale; today's runtimes
    have one per column.)

    On several devices, each updates the average with its own rows, and the mean of these is stored.

    Example:
        >>> layer = FakeQuantization()
        >>> rows, kernel = layer(ops.array([[0.5, -2.0]]), ops.array([[1.0], [0.3]]), training=True)
        >>> [round(float(v), 3) for v in rows[0]], float(layer.range)
        ([0.504, -2.0], 2.0)
    """

    def build(self, *input_shapes: Shape) -> None:
        self.range = self.add_weight(
            name="range",
            shape=(),
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation="mean",
        )

    def call(self, rows: Tensor, kernel: Tensor, training: bool = False) -> tuple[Tensor, Tensor]:
        """(N, I) and (I, O) -> the same shapes, rounded (unchanged in `without_rounding`).

        In training, the range is updated by the rows first.
        """
        if not is_rounded():
            return rows, kernel
        current_range = ops.convert_to_tensor(self.range)
        if training:
            largest = ops.stop_gradient(ops.max(ops.abs(ops.cast(rows, "float32"))))
            current_range = ops.where(
                current_range > 0, DECAY * current_range + (1 - DECAY) * largest, largest
            )
            self.range.assign(current_range)
        rows = ops.where(current_range > 0, _rounded(rows, current_range), rows)
        return rows, fake_quantize(kernel, axis=0)


class FakeQuantizedRows(keras.layers.Layer):
    """Rounds the embeddings of a table to 8 bits, with one scale per row."""

    def call(self, rows: Tensor) -> Tensor:
        """(…, W) -> (…, W), rounded; one scale for each embedding of width W."""
        return fake_quantize(rows, axis=-1)


class Rounding(Edit):
    """An edit that rounds factors of the blocks' dense layers and token embeddings to 8 bits.

    Only encoders' token embeddings are rounded: a decoder's table also computes its logits.

    Norms, softmax, activations and the products of queries, keys and values are not rounded, as in
    Q8BERT (https://arxiv.org/abs/1910.06188) and in the runtimes. Each dense layer has one
    additional number: its moving range. `kbert.edit.quantization` adds this edit to a model and
    removes it.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(edits=[{"kind": "rounding"}])
        >>> kbert.Encoder(config).count_params() == kbert.describe(config).parameters
        True
    """

    kind = "rounding"
    after = ("pruned", "movement")
    mergeable = False  # merged adapter weights would be rounded too, and outputs would change

    def apply(self, model: keras.Model) -> None:
        for layer in products(model):
            quantizer = FakeQuantization(dtype=layer.dtype_policy, name="fake_quantization")
            layer.add_edit(quantizer, layer.kernel.shape)
        embeddings: Any = model.embeddings
        if hasattr(embeddings, "add_edit") and not hasattr(embeddings, "logits"):
            quantizer = FakeQuantizedRows(dtype=embeddings.dtype_policy, name="fake_quantization")
            embeddings.add_edit(quantizer, embeddings.token.shape)

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        return sum(map(len, kernels))
