"""Training with layers left out, so that any number of them can be left out afterwards.

(Fan et al. 2019, "Reducing Transformer Depth on Demand with Structured Dropout",
https://arxiv.org/abs/1909.11556, section 3.)
"""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Logs, Tensor
from kbert.edit.pruning.rebuilding import plain_encoder


class LayerDrop(keras.callbacks.Callback):
    """A callback of `fit`: in every update each layer is left out with a probability of `rate`.

    A layer that is left out gives back what it is given. After such training, pretraining or
    fine-tuning, `keep_layers(task, "alternate", …)` loses little: no layer has come to rely on the
    one before it. Nothing is scaled, and evaluations run all layers. The whole batch, over
    micro-batches and devices, is without the same layers; which they are follows from the seed and
    the number of the update alone, so that a run which was ended resumes exactly. A step computes
    as much as one without the callback.

    The rate is nothing of the model, and no preset says it.

    Args:
        rate: the paper's is 0.2; for a model of a quarter of the layers and less, 0.5.
        seed: of the draws.

    Raises:
        ValueError: a rate out of range; in `fit`: an encoder that is not of BERT's kin, layers that
            share weights, or another backend than TensorFlow.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=4,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> _ = task.fit(["good", "bad"], ["yes", "no"], epochs=1, verbose=0,
        ...              callbacks=[LayerDrop(0.2)])
        >>> kbert.edit.pruning.keep_layers(task, "alternate", 2).encoder.config.num_layers
        2
    """

    def __init__(self, rate: float, *, seed: int = 0) -> None:
        super().__init__()
        if not 0 < rate < 1:
            raise ValueError(f"`rate` must be above 0 and less than 1. Received: {rate!r}")
        self.rate, self.seed = rate, seed
        self._blocks: list[Any] = []

    def left_out(self, step: int, num_layers: int) -> list[int]:
        """Numbers of the layers that the update after so many others goes around.

        Example:
            >>> [LayerDrop(0.5).left_out(step, 4) for step in (0, 1, 2)]
            [[0], [1, 3], []]
        """
        draws = [
            self._is_left_out(layer, ops.convert_to_tensor(step)) for layer in range(num_layers)
        ]
        return np.flatnonzero([ops.convert_to_numpy(x) for x in draws]).tolist()

    def on_train_begin(self, logs: Logs = None) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Layers are left out by TensorFlow's engine: KERAS_BACKEND=tensorflow. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        encoder = plain_encoder(getattr(self.model, "student", self.model))  # of a distiller
        if encoder.config.num_blocks < encoder.config.num_layers:
            raise ValueError(
                "Layers that share their weights are one block, and are left out together. "
                f"Received: num_layer_groups={encoder.config.num_layer_groups}"
            )
        self._blocks = list(encoder.blocks)
        for layer, block in enumerate(self._blocks):
            block.is_left_out = functools.partial(self._is_left_out_now, layer)
        self._trace_anew()

    def on_train_end(self, logs: Logs = None) -> None:
        for block in self._blocks:
            block.is_left_out = None
        self._blocks = []
        self._trace_anew()

    def _is_left_out_now(self, layer: int) -> Tensor:
        return self._is_left_out(layer, self.model.optimizer.iterations.value)

    def _is_left_out(self, layer: int, step: Tensor) -> Tensor:
        import tensorflow as tf

        seed = tf.stack([tf.cast(step, tf.int32), tf.constant(self.seed, tf.int32)])
        # One draw of a stream for each layer: neighbouring seeds are as independent as any.
        return tf.random.stateless_uniform([layer + 1], seed)[layer] < self.rate

    def _trace_anew(self) -> None:
        """A step that was traced before knows nothing of the draws, or still makes them."""
        self.model.make_train_function(force=True)
