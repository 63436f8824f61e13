"""What a task has for a model where a runtime computes in the place of its layers."""

from typing import Any

import keras


class RuntimeModel(keras.Model):
    """In the place of a model whose layers a runtime has: its config, and no weights.

    Args:
        config: the model's.
        max_length: tokens of the longest row.
    """

    def __init__(self, config: Any, max_length: int) -> None:
        super().__init__(name=config.kind)
        self.config = config
        self.max_length = max_length
        self.weights_from = "the export"
        # What heads ask of an encoder when they are made.
        table = (config.vocabulary_size, getattr(config, "embedding_width", config.hidden_size))
        self.token_embedding = keras.KerasTensor(table, name="token_embedding")
        pooled = getattr(config, "pooler_activation", None)
        self.pooler = keras.layers.Dense(config.hidden_size) if pooled else None

    def build(self, input_shape: Any | None = None) -> None:
        """It has no layers."""

    def call(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(
            "An export has no layers; it does what its task's `predict` and `evaluate` do. The "
            "task itself is loaded from its preset"
        )
