"""The Universal Transformer's encoder: one block that is applied several times to each token.

(Dehghani et al. 2018, https://arxiv.org/abs/1807.03819, section 2 and appendix C; halting is that
of Graves 2016, "Adaptive computation time", https://arxiv.org/abs/1603.08983.)

Shapes: `B` batch, `T` tokens, `P` read tokens, `H` hidden width, `S` steps at most.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.universal_transformer import UniversalTransformerConfig
from kbert.core.contexts import add_auxiliary_loss
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import Dense, gather_positions
from kbert.layers.positions import sinusoids
from kbert.layers.recompute import run_layer
from kbert.models.blocks import Reads, embeddings_of
from kbert.models.encoder import Encoder, Layers
from kbert.models.inputs_and_outputs import output_spec
from kbert.models.pooling import make_pooler


@keras.saving.register_keras_serializable(package="kbert")
class UniversalTransformer(Encoder):
    """`Encoder` for a `UniversalTransformerConfig`, with one more output.

    Each step adds sinusoids of position and step to a token's state, and applies the block. With
    halting, a dense layer predicts the probability that the token halts in this step. The output
    moves towards the new state by that share. Once the probabilities add up to more than the
    threshold, the last share is what is missing to 1, and the output stays fixed. All tokens are
    computed in all steps, halted or not, so shapes are static. "hidden_states" are the outputs
    after each step, the embeddings first.

    "ponder_time" (B, T) float32 is each token's number of steps plus the weight of the last. Its
    mean over tokens times the config's `ponder_weight` is added to the loss of the task that trains
    the encoder, as `ponder_loss`.

    Args:
        config: a `UniversalTransformerConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> config = UniversalTransformerConfig(vocabulary_size=10, hidden_size=8, num_layers=3,
        ...                                     num_heads=2, intermediate_size=16)
        >>> out = UniversalTransformer(config)({"token_ids": np.array([[4, 5, 3]])})
        >>> {name: tuple(x.shape) for name, x in out.items()}
        {'ponder_time': (1, 3), 'sequence': (1, 3, 8), 'pooled': (1, 8)}
    """

    config_class = UniversalTransformerConfig
    config: UniversalTransformerConfig

    def _make_embeddings(self) -> keras.layers.Layer:
        config, policy = self.config, {"dtype": self.dtype_policy}
        # Positions are added in each step.
        return embeddings_of(config, positions="none", name="embeddings", **policy)

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = self._make_embeddings()
        self.blocks = [self._make_block(0)]
        self.shared = self.norm = None
        self.pooler = make_pooler(config, name="pooler", **policy)
        self.halt: Dense | None = None
        if config.halting:
            self.halt = Dense(
                1,
                initializer_range=config.initializer_range,
                dtype=keras.DTypePolicy(self.variable_dtype),
                name="halt",
            )

    def build(self, input_shape: Shape | None = None) -> None:
        super().build(input_shape)
        if self.halt is not None:
            self.halt.build((None, None, self.config.hidden_size))
            # Training begins with few steps (`act_halting_bias_init` of the original code).
            self.halt.weights[1].assign([1.0])

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Applies the block in all steps; arguments and result like `Encoder._run_layers`.

        Also adds the ponder loss, if the config has halting.
        """
        config = self.config
        bias = self._layer_biases(inputs, in_blocks=not reads.weights)[0]
        ids, position_ids = inputs["token_ids"], inputs.get("position_ids")
        embedding_options = {} if position_ids is None else {"places": position_ids}
        state = self.embeddings(
            ids, inputs.get("segment_ids"), training=training, **embedding_options
        )
        signals = ops.cast(self._places(ops.shape(ids)[1], position_ids), state.dtype)
        halting = _Halting(ops.shape(ids), config.halting_threshold)
        hidden_states, attention = [state], []
        outputs = ops.zeros_like(state)
        for step in range(config.num_layers):
            step_signal = ops.convert_to_tensor(sinusoids(step + 1, config.hidden_size)[step])
            state = state + signals + ops.cast(step_signal, state.dtype)
            weight = None
            if self.halt is not None:
                probability = ops.sigmoid(ops.squeeze(self.halt(ops.cast(state, "float32")), -1))
                weight = ops.cast(halting.weigh(probability)[..., None], state.dtype)  # (B, T, 1)
            state, weights = run_layer(
                self.blocks[0], state, bias, training=training, select=reads.select
            )
            outputs = state if weight is None else state * weight + outputs * (1 - weight)
            hidden_states.append(outputs)
            attention.append(weights)
        ponder = halting.time
        if self.halt is None:
            ponder = ops.full(ops.shape(ids), float(config.num_layers))
        else:
            self._add_ponder_loss(ponder, inputs)
        if positions is not None:
            hidden_states[-1] = gather_positions(outputs, positions)
        return Layers(hidden_states, attention, {"ponder_time": ponder})

    def _places(self, length: Tensor, places: Tensor | None) -> Tensor:
        """Returns the sinusoids (1, T, H) of the positions in a sequence of `length` = T tokens.

        For packed rows, `places` (B, T) are the position ids, and the result is (B, T, H).
        """
        table = ops.convert_to_tensor(sinusoids(self.config.max_positions, self.config.hidden_size))
        return table[None, :length] if places is None else ops.take(table, places, axis=0)

    def _add_ponder_loss(self, ponder: Tensor, inputs: Tensors) -> None:
        """Adds the mean of the tokens' ponder times, times `ponder_weight`, to the training loss.

        `ponder` (B, T) are the ponder times; padding, according to `inputs`, is left out.
        """
        mask = inputs.get("padding_mask")
        if inputs.get("example_ids") is not None:
            mask = inputs["example_ids"] > 0
        real = ops.ones_like(ponder) if mask is None else ops.cast(mask, "float32")
        total = self.config.ponder_weight * ops.sum(ponder * real)
        add_auxiliary_loss("ponder_loss", total, ops.sum(real))

    def compute_output_spec(self, inputs: Tensors, *args: Any, **kwargs: Any) -> dict[str, Any]:
        named = self._named_inputs(inputs)
        spec = super().compute_output_spec(inputs, *args, **kwargs)
        return {**output_spec({"ponder_time": named["token_ids"].shape}, "float32"), **spec}


class _Halting:
    """Accumulates the halting probabilities of each token, step by step.

    `shape` is (B, T); `time` (B, T) is the ponder time so far.
    """

    def __init__(self, shape: Any, threshold: float) -> None:
        self.threshold = threshold
        self.runs = ops.ones(shape, "bool")
        self.spent = ops.zeros(shape, "float32")
        self.time = ops.zeros(shape, "float32")

    def weigh(self, probability: Tensor) -> Tensor:
        """Returns the share (B, T) by which each token's output moves to the state of this step.

        `probability` (B, T) are the halting probabilities in this step. The share of a token that
        has halted before is 0.
        """
        halts = ops.logical_and(self.runs, self.spent + probability > self.threshold)
        remainder = 1.0 - self.spent
        weight = ops.where(halts, remainder, ops.where(self.runs, probability, 0.0))
        # One for each step, plus the weight of the last one.
        self.time = self.time + ops.cast(self.runs, "float32") + ops.where(halts, remainder, 0.0)
        self.spent = self.spent + weight
        self.runs = ops.logical_and(self.runs, ops.logical_not(halts))
        return weight
