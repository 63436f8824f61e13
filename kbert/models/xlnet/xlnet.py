"""XLNet, an encoder with an arbitrary factorisation order (Yang et al. 2019).

It can have a second stream of queries. Each query has a position, and attends to the tokens before
it in that order, so not to its own token. It can also have a memory of earlier sequences.

Shapes: `B` batch, `T` tokens, `P` queries, `L` layers, `M` tokens of a memory, `S` = M + T, `H`
hidden width.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.configs.xlnet import XlnetConfig
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Dropout, LayerNorm, gather_positions
from kbert.layers.bias import mask_bias
from kbert.layers.dense import kernel_initializer
from kbert.layers.recompute import run_layer
from kbert.models.blocks import Reads, embeddings_of
from kbert.models.encoder import INPUTS, Encoder, Layers
from kbert.models.inputs_and_outputs import output_spec
from kbert.models.pooling import make_pooler
from kbert.models.xlnet.attention import XlnetBlock, distance_vectors


@keras.saving.register_keras_serializable(package="kbert")
class Xlnet(Encoder):
    """`Encoder` for an `XlnetConfig`, with three more inputs and two more outputs.

    - "order_ids" (B, T): factorisation order. A token attends to tokens whose number is not greater
      than its own; tokens with the same number attend to each other. None = all attend to all.
    - "target_positions" (B, P), with "order_ids": positions of the queries. A query attends to the
      tokens whose number is less than that of the token at its position. The output "queries"
      (B, P, H) predicts that token.
    - "memory" (L, B, M, H): inputs of each layer for the sequences before; all tokens attend to it.
      The output "memory" has the same shape and ends with the inputs of this sequence (its first
      `reuse_length` tokens). No gradient flows into either. "attention" is then (B, N, T, M + T).

    "pooled" is computed from the last token that is not padding, on whichever side the padding is:
    XLNet's sequences end in `<cls>`.

    Args:
        config: an `XlnetConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> config = XlnetConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                      intermediate_size=16)
        >>> encoder = Xlnet(config)
        >>> out = encoder({"token_ids": np.array([[4, 5, 3]]), "order_ids": np.array([[1, 2, 0]]),
        ...                "target_positions": np.array([[0, 1]]),
        ...                "memory": np.zeros((2, 1, 4, 8), "float32")})
        >>> {name: tuple(x.shape) for name, x in out.items()}
        {'queries': (1, 2, 8), 'memory': (2, 1, 4, 8), 'sequence': (1, 3, 8), 'pooled': (1, 8)}
    """

    config_class: ClassVar[type[EncoderConfig]] = XlnetConfig
    config: XlnetConfig
    vector_inputs = ("memory",)
    # First key that the first token attends to with `same_length`: the oldest of the memory.
    first_seen: ClassVar[int] = 0
    INPUTS = (
        # `order_ids` replace the first two.
        *(name for name in INPUTS if name not in ("causal_mask", "attention_order")),
        *("order_ids", "target_positions", "memory"),
    )

    def _make_embeddings(self) -> keras.layers.Layer:
        config, policy = self.config, {"dtype": self.dtype_policy}
        return embeddings_of(
            config, positions="none", num_segments=0, norm=None, name="embeddings", **policy
        )

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = self._make_embeddings()
        self.query: Any = _Query(config.initializer_range, name="query", **policy)
        self.dropout = Dropout(config.dropout, name="dropout", **policy)
        self.blocks = [self._make_block(layer) for layer in range(config.num_layers)]
        self.shared = self.norm = None
        self.pooler = make_pooler(config, name="pooler", **policy)

    def _make_block(self, group: int) -> keras.layers.Layer:
        return self._layer_block(f"layers_{group}")

    def _layer_block(self, name: str, **options: Any) -> keras.layers.Layer:
        """Makes a block from the config; `options` are further arguments of `XlnetBlock`."""
        config, policy = self.config, {"dtype": self.dtype_policy}
        return XlnetBlock(
            config.num_heads,
            config.intermediate_size,
            activation=config.activation,
            layer_norms=lambda **x: LayerNorm(config.layer_norm_epsilon, **x, **policy),
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            initializer_range=config.initializer_range,
            max_length=config.max_positions,
            name=name,
            **options,
            **policy,
        )

    def build(self, input_shape: Shape | None = None) -> None:
        super().build(input_shape)
        if self.query is not None:
            self.query.build((None, None, self.config.hidden_size))

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Runs both streams; arguments and result like `Encoder._run_layers`.

        `Layers.more` has "queries" and "memory", if the batch has such inputs.
        """
        targets, memory = inputs.get("target_positions"), inputs.get("memory")
        self._check(inputs)
        length = ops.shape(inputs["token_ids"])[1]
        memory_length = 0 if memory is None else ops.shape(memory)[2]
        distances = distance_vectors(
            length, memory_length, self.config.hidden_size, self.config.clamp_length
        )
        shared = {"distances": self.dropout(distances, training=training)}
        if inputs.get("segment_ids") is not None:
            segments = ops.cast(inputs["segment_ids"], "int32")
            is_other = segments[:, :, None] != _behind(segments, memory_length, 0)[:, None]
            shared["is_other_segment"] = ops.cast(is_other, "int32")
        bias = _bias(self._sees(inputs, memory_length))
        options: dict[str, Any] = {"shared": shared, "training": training}
        x = self.embeddings(inputs["token_ids"], training=training)
        queries = None
        if targets is not None:
            queries = self.dropout(self.query(targets), training=training)
            options["query_bias"] = _bias(self._sees(inputs, memory_length, targets))
            options["query_positions"] = targets
        hidden_states, attention = [x], []
        for layer, block in enumerate(self.blocks):
            layer_options: dict[str, Any] = {}
            if memory is not None:
                layer_options["memory"] = ops.stop_gradient(memory[layer])
            if queries is not None:
                layer_options["queries"] = queries
            elif block is self.blocks[-1] and getattr(block, "takes_positions", False):
                layer_options["positions"], positions = positions, None
            x, weights = run_layer(block, x, bias, select=reads.select, **options, **layer_options)
            if queries is not None:
                x, queries = x
            hidden_states.append(x)
            attention.append(weights)
        further_outputs = {}
        if queries is not None:
            further_outputs["queries"] = self.dropout(queries, training=training)
        if memory is not None:
            further_outputs["memory"] = self._remember(memory, hidden_states[:-1])
        x = self.dropout(x, training=training)
        hidden_states[-1] = x if positions is None else gather_positions(x, positions)
        return Layers(hidden_states, attention, further_outputs)

    def _check(self, inputs: Tensors) -> None:
        """Raises ValueError for targets without an order, or a memory that does not fit."""
        order, targets = inputs.get("order_ids"), inputs.get("target_positions")
        if targets is not None and order is None:
            raise ValueError(
                "`target_positions` require `order_ids`: queries attend to the tokens that come "
                f"before them in this order. Received: {', '.join(inputs)}"
            )
        memory, layers = inputs.get("memory"), self.config.num_layers
        if memory is None:
            return
        if inputs.get("example_ids") is not None:
            raise ValueError(
                "`memory` is not supported with `example_ids`: a sequence of several examples "
                f"continues no other. Received: {', '.join(inputs)}"
            )
        if len(memory.shape) != 4 or memory.shape[0] != layers:
            raise ValueError(
                f"`memory` must be of shape ({layers}, batch, tokens, {self.config.hidden_size}): "
                f"a part for each layer. Received: shape {tuple(memory.shape)}"
            )

    def _sees(self, inputs: Tensors, before: Tensor, targets: Tensor | None = None) -> Any:
        """Returns a mask of the keys that each token, or each query at `targets`, attends to.

        Args:
            inputs: inputs of `call`, by name.
            before: number of tokens of the memory, M.
            targets: (B, P), positions of the queries; None = the mask of the tokens.

        Returns:
            (B or 1, T or 1, S) bool, with P instead of T for queries; None = all keys.
        """
        order, padding = inputs.get("order_ids"), inputs.get("padding_mask")
        examples = inputs.get("example_ids")
        length = ops.shape(inputs["token_ids"])[1]
        keep = []
        if self.config.attention == "causal":
            keys = ops.arange(before + length)[None]
            tokens = ops.arange(length)[:, None]
            sees = keys <= tokens + before
            if self.config.same_length and self._bounds(inputs):
                sees = ops.logical_and(sees, keys >= tokens + self.first_seen)
            keep.append(sees[None] if targets is None else ops.take(sees, targets, axis=0))
        if order is not None:
            order = ops.cast(order, "int32")
            numbers = order if targets is None else ops.take_along_axis(order, targets, axis=1)
            # A token attends to itself, a query not to the token it predicts; all attend to memory.
            numbers = numbers[:, :, None] - (0 if targets is None else 1)
            sees = order[:, None] <= numbers
            if inputs.get("memory") is not None:
                shape = (*ops.shape(sees)[:2], before)
                sees = ops.concatenate([ops.ones(shape, dtype="bool"), sees], axis=-1)
            keep.append(sees)
        if examples is not None:
            query_examples = (
                examples if targets is None else ops.take_along_axis(examples, targets, axis=1)
            )
            keep.append(query_examples[:, :, None] == examples[:, None])
        elif padding is not None:
            keep.append((_behind(ops.cast(padding, "int32"), before, 1) > 0)[:, None])
        if not keep:
            return None
        mask = keep[0]
        for sees in keep[1:]:
            mask = ops.logical_and(mask, sees)
        return mask

    def _bounds(self, inputs: Tensors) -> bool:
        """Returns whether `same_length` limits how far back tokens attend, for these inputs."""
        return True

    def _remember(self, memory: Tensor, states: list) -> Tensor:
        """Returns the new memory (L, B, M, H): the last M inputs of each layer, without gradient.

        They come from the old memory (L, B, M, H) and the first `reuse_length` tokens of `states`,
        the inputs (B, T, H) of the L layers.
        """
        length = ops.shape(memory)[2]
        memories = []
        for old, new in zip(ops.unstack(memory, self.config.num_layers), states, strict=True):
            new = new[:, : self.config.reuse_length]
            joined = ops.concatenate([ops.cast(old, new.dtype), new], axis=1)
            memories.append(joined[:, ops.shape(joined)[1] - length :])
        return ops.stop_gradient(ops.stack(memories))

    def _number_of_keys(self, inputs: Tensors) -> int | None:
        length, memory = inputs["token_ids"].shape[1], inputs.get("memory")
        if memory is None or None in (length, memory.shape[2]):
            return length if memory is None else None
        return memory.shape[2] + length

    def compute_output_spec(self, inputs: Tensors, *args: Any, **kwargs: Any) -> dict[str, Any]:
        inputs = self._named_inputs(inputs)
        spec = super().compute_output_spec(inputs, *args, **kwargs)
        shapes: dict[str, Any] = {}
        targets, memory = inputs.get("target_positions"), inputs.get("memory")
        if targets is not None:
            shapes["queries"] = (*targets.shape, self.config.hidden_size)
        if memory is not None:
            shapes["memory"] = tuple(memory.shape)
        return {**output_spec(shapes, self.compute_dtype), **spec}


class _Query(keras.layers.Layer):
    """Learned initial vector of all queries ("mask_emb" in the original)."""

    def __init__(self, initializer_range: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initializer_range = initializer_range

    def build(self, input_shape: Shape) -> None:
        self.vector = self.add_weight(
            name="vector",
            shape=(input_shape[-1],),
            initializer=kernel_initializer(self.initializer_range),
        )

    def call(self, positions: Tensor) -> Tensor:
        """Repeats the vector for queries at `positions`: (B, P) -> (B, P, H)."""
        return self.vector + ops.zeros((*ops.shape(positions), 1), self.compute_dtype)


def _behind(x: Tensor, before: Tensor, value: int) -> Tensor:
    """Puts `before` = M columns of `value`, for the memory, before x: (B, T) -> (B, M + T)."""
    filled = ops.full((ops.shape(x)[0], before), value, dtype=x.dtype)
    return ops.concatenate([filled, x], axis=-1)


def _bias(sees: Tensor | None) -> Tensor | None:
    """Converts a mask (B or 1, T or 1, S), True where a key is attended to, to a bias of scores.

    The bias is (B or 1, 1, T or 1, S); None stays None.
    """
    return None if sees is None else mask_bias(sees)[:, None]
