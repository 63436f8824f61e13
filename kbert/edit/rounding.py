"""8 bits in training: numbers are rounded as a runtime stores them, and gradients pass through.

Shapes: `N` rows, `I` width in, `O` width out.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.contexts import is_rounded
from kbert.core.types import Shape, Tensor
from kbert.edit.base import Edit, Kernels, products

LEVELS = 127  # of either sign: 8 bits, symmetric, so that zero stays zero
# How much of a moving range an update keeps (Q8BERT's `ema_decay`, of runs a hundred times as long,
# is 0.9999; a range that follows in a hundred updates is right within one epoch of any GLUE task).
DECAY = 0.99


def fake_quantize(x: Tensor, axis: int) -> Tensor:
    """Weights as 8 bits hold them: multiples of a scale, `max |x| / 127` along an axis.

    The gradient is that of the identity (a straight-through estimator; Bengio et al. 2013,
    https://arxiv.org/abs/1308.3432).

    Args:
        x: of any shape.
        axis: along which numbers share a scale: 0 of a kernel (I, O), whose columns have their own.

    Example:
        >>> x = fake_quantize(ops.array([[1.0], [0.3]]), axis=0)
        >>> [round(float(v), 4) for v in x[:, 0]]
        [1.0, 0.2992]
    """
    if not is_rounded():
        return x
    return _rounded(x, ops.max(ops.abs(ops.cast(x, "float32")), axis=axis, keepdims=True))


def _rounded(x: Tensor, largest: Tensor) -> Tensor:
    """x between -largest and largest, in 127 steps to either side; computed in float32."""
    wide = ops.cast(x, "float32")
    scale = ops.where(largest > 0, largest, 1.0) / LEVELS
    clipped = ops.clip(wide, -LEVELS * scale, LEVELS * scale)
    steps = ops.round(clipped / scale) * scale
    return ops.cast(clipped + ops.stop_gradient(steps - clipped), x.dtype)


class FakeQuantization(keras.layers.Layer):
    """What a dense layer multiplies, as an 8-bit product has it.

    Kernels have a scale for each column, by their largest numbers now. Inputs have one scale, by a
    moving average of their largest numbers in training; before the first update there is none, and
    they stay as they are. (Zafrir et al. 2019, "Q8BERT", https://arxiv.org/abs/1910.06188, section
    2; there kernels have one scale too, while runtimes of today have one for each column.)

    On several devices each one's average moves by its own rows, and the mean of them is kept.

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
        """(N, I) and (I, O) -> the same, rounded."""
        if not is_rounded():
            return rows, kernel
        kept = ops.convert_to_tensor(self.range)
        if training:
            largest = ops.stop_gradient(ops.max(ops.abs(ops.cast(rows, "float32"))))
            kept = ops.where(kept > 0, DECAY * kept + (1 - DECAY) * largest, largest)
            self.range.assign(kept)
        rows = ops.where(kept > 0, _rounded(rows, kept), rows)
        return rows, fake_quantize(kernel, axis=0)


class FakeQuantizedRows(keras.layers.Layer):
    """Vectors of a table as 8 bits hold them, each with a scale of its own."""

    def call(self, rows: Tensor) -> Tensor:
        """(…, W) -> (…, W)."""
        return fake_quantize(rows, axis=-1)


class Rounding(Edit):
    """What the dense layers of the blocks multiply is rounded to 8 bits, and so are token vectors.

    Those of encoders: a decoder's table gives its logits too, and stays as it is.

    Norms, softmax, activations and the products of queries, keys and values stay as they are, as in
    Q8BERT (https://arxiv.org/abs/1910.06188) and in the runtimes. Each dense layer has one number
    more: its moving range. `kbert.edit.quantization` makes such models of others, and plain ones of
    them again.

    Example:
        >>> import kbert
        >>> config = kbert.family("bert-tiny").replace(edits=[{"kind": "rounding"}])
        >>> kbert.Encoder(config).count_params() == kbert.describe(config).parameters
        True
    """

    kind = "rounding"
    after = ("pruned", "movement")
    mergeable = False  # an adapter's weights would be rounded with the kernel's: other answers

    def apply(self, model: keras.Model) -> None:
        for layer in products(model):
            made = FakeQuantization(dtype=layer.dtype_policy, name="fake_quantization")
            layer.add_edit(made, layer.kernel.shape)
        embeddings: Any = model.embeddings
        if hasattr(embeddings, "add_edit"):
            made = FakeQuantizedRows(dtype=embeddings.dtype_policy, name="fake_quantization")
            embeddings.add_edit(made, embeddings.token.shape)

    def count_parameters(self, config: Any, kernels: Kernels) -> int:
        return sum(map(len, kernels))
