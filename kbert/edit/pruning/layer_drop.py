"""LayerDrop: skips random layers in training, so that layers can be removed afterwards.

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
    """A callback of `fit` that skips each layer with probability `rate` in every update.

    A skipped layer returns its input. After pretraining or fine-tuning with this callback,
    `keep_layers(task, "alternate", …)` loses little: no layer has learned to rely on the previous
    one. Nothing is rescaled, and evaluations run all layers. The same layers are skipped for the
    whole batch, across micro-batches and devices. They depend on the seed and the number of the
    update only, so that an interrupted run resumes exactly. Skipping does not save compute in
    training.

    The rate belongs to the training, not to the model: presets do not contain it.

    Args:
        rate: probability that a layer is skipped. The paper uses 0.2, and 0.5 for a model with a
            quarter of the layers or fewer.
        seed: seed of the random choices.

    Raises:
        ValueError: the rate is out of range; in `fit`: the encoder is not BERT-like, layers share
            weights, or the backend is not TensorFlow.

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
        """Returns the numbers of the layers that are skipped after `step` updates.

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
                "LayerDrop requires the TensorFlow backend: set KERAS_BACKEND=tensorflow. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        encoder = plain_encoder(getattr(self.model, "student", self.model))  # a distiller's student
        if encoder.config.num_blocks < encoder.config.num_layers:
            raise ValueError(
                "LayerDrop requires layers that do not share weights. Received: "
                f"num_layer_groups={encoder.config.num_layer_groups}"
            )
        self._blocks = list(encoder.blocks)
        for layer, block in enumerate(self._blocks):
            block.is_left_out = functools.partial(self._is_left_out_now, layer)
        self.model.make_train_function(force=True)  # the traced one does not skip layers

    def on_train_end(self, logs: Logs = None) -> None:
        self.release()

    def release(self) -> None:
        """Has the model run all layers again; `fit` calls it also if it fails."""
        for block in self._blocks:
            block.is_left_out = None
            self.model.train_function = None  # its graph still skips layers
        self._blocks = []

    def _is_left_out_now(self, layer: int) -> Tensor:
        return self._is_left_out(layer, self.model.optimizer.iterations.value)

    def _is_left_out(self, layer: int, step: Tensor) -> Tensor:
        import tensorflow as tf

        seed = tf.stack([tf.cast(step, tf.int32), tf.constant(self.seed, tf.int32)])
        # Element `layer` of the step's stream: consecutive seeds are as independent as any others.
        return tf.random.stateless_uniform([layer + 1], seed)[layer] < self.rate
