"""An encoder that is a table: a token has the same embedding in every context.

Shapes: `B` batch, `T` tokens, `H` width of an embedding, `V` vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.static import StaticConfig
from kbert.core.types import Tensor, Tensors
from kbert.layers import Dropout, gather_positions
from kbert.layers.token_embeddings import TokenEmbeddings
from kbert.models.blocks import Reads
from kbert.models.encoder import Encoder, Layers
from kbert.models.inputs_and_outputs import output_spec
from kbert.models.pooling import make_pooler


@keras.saving.register_keras_serializable(package="kbert")
class Static(Encoder):
    """`Encoder` for a `StaticConfig`, with one more output.

    "counted" (B, T) int32 is 1 for the tokens that a mean includes, and 0 for padding and the
    config's `uncounted_ids`. There are no layers, so "hidden_states" has one entry and "attention"
    none.

    Args:
        config: a `StaticConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> encoder = Static(StaticConfig(vocabulary_size=10, hidden_size=8, uncounted_ids=(1,)))
        >>> out = encoder({"token_ids": np.array([[4, 1, 3]])})
        >>> tuple(out["sequence"].shape), ops.convert_to_numpy(out["counted"]).tolist()
        ((1, 3, 8), [[1, 0, 1]])
    """

    config_class = StaticConfig
    config: StaticConfig
    has_input_tokens = False  # sequences have no [CLS] and [SEP]

    def _make_embeddings(self) -> keras.layers.Layer:
        config, policy = self.config, {"dtype": self.dtype_policy}
        return TokenEmbeddings(
            config.vocabulary_size,
            config.hidden_size,
            initializer_range=config.initializer_range,
            name="embeddings",
            **policy,
        )

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = self._make_embeddings()
        self.dropout = Dropout(config.dropout, name="dropout", **policy)
        self.blocks: list[keras.layers.Layer] = []
        self.shared = self.norm = None
        self.pooler = make_pooler(config, name="pooler", **policy)

    def call(  # type: ignore[override]  # Keras looks for `training`, and hands the rest on
        self, inputs: Tensors, training: bool = False, **options: Any
    ) -> dict[str, Any]:
        inputs = self._named_inputs(inputs)
        counted = self._counted(inputs)
        inputs = {**inputs, "padding_mask": counted}
        outputs = super().call(inputs, training=training, **options)
        return {**outputs, "counted": counted}

    def _counted(self, inputs: Tensors) -> Tensor:
        """Returns the mask (B, T) int32: 0 for padding and the config's `uncounted_ids`, else 1."""
        ids, mask = inputs["token_ids"], inputs.get("padding_mask")
        counted = ops.ones_like(ids) > 0 if mask is None else mask > 0
        for number in self.config.uncounted_ids:
            counted = ops.logical_and(counted, ids != number)
        return ops.cast(counted, "int32")

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Looks up the embeddings of all tokens, or of those at `positions` (B, P).

        ValueError if there are segment ids.
        """
        if inputs.get("segment_ids") is not None:
            raise ValueError(
                "A static encoder does not support segments. Received: segment_ids of shape "
                f"{tuple(inputs['segment_ids'].shape)}"
            )
        ids = inputs["token_ids"]
        if positions is not None:
            ids = gather_positions(ids[..., None], positions)[..., 0]
        return Layers([self.dropout(self.embeddings(ids), training=training)], [])

    def compute_output_spec(self, inputs: Tensors, *args: Any, **kwargs: Any) -> dict[str, Any]:
        named = self._named_inputs(inputs)
        spec = super().compute_output_spec(inputs, *args, **kwargs)
        return {**spec, **output_spec({"counted": named["token_ids"].shape}, "int32")}
