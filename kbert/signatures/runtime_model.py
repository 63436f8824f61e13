"""A stand-in for the model of a task whose layers run in another runtime."""

from typing import Any

import keras


class RuntimeModel(keras.Model):
    """A model with a config and without weights, for a task that a runtime computes.

    Args:
        config: config of the exported model.
        max_length: maximum number of tokens in a row.
    """

    def __init__(self, config: Any, max_length: int) -> None:
        super().__init__(name=config.kind)
        self.config = config
        self.max_length = max_length
        self.weights_from = "the export"
        # Attributes of an encoder that heads read when they are created.
        table = (config.vocabulary_size, getattr(config, "embedding_width", config.hidden_size))
        self.token_embedding = keras.KerasTensor(table, name="token_embedding")
        # A classifier's encoder-decoder has one, of which its config says nothing.
        pooled = getattr(config, "pooler_activation", None) or config.kind == "seq2seq"
        self.pooler = keras.layers.Dense(config.hidden_size) if pooled else None

    def build(self, input_shape: Any | None = None) -> None:
        """Does nothing: there are no layers."""

    def call(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "An export has no layers: use its task's `predict` and `evaluate`, or load the task "
            "itself from its preset"
        )
