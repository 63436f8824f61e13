"""The AWD-LSTM as an encoder: for a language model with a state, and for classifiers (ULMFiT).

Shapes: `B` batch, `T` tokens, `H` width of embeddings and output, `W` numbers of a state.
"""

from typing import Any, ClassVar

import keras
from keras import ops

from kbert.configs.awd_lstm import AwdLstmConfig
from kbert.core.contexts import add_auxiliary_loss
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import gather_positions
from kbert.layers.recompute import run_layer
from kbert.models.awd_lstm.layers import LockedDropout, WeightDroppedLSTM, WordDropoutEmbeddings
from kbert.models.blocks import Reads
from kbert.models.encoder import Encoder, Layers
from kbert.models.inputs_and_outputs import output_spec
from kbert.models.pooling import Unchanged


@keras.saving.register_keras_serializable(package="kbert")
class AwdLstm(Encoder):
    """`Encoder` for an `AwdLstmConfig`: LSTMs that read from left to right, without attention.

    (Merity et al. 2017, https://arxiv.org/abs/1708.02182; Howard & Ruder 2018,
    https://arxiv.org/abs/1801.06146.) "pooled" (B, 3H) concatenates the last, the largest and the
    mean output of a sequence. "hidden_states" are the embeddings and the outputs of the layers,
    which are wider than "sequence" but for the last; "attention" has no entries. Sequences have no
    [CLS] and [SEP]; a pair is one text after the other.

    It has one more input: "memory" (1, B, 1, W), the state of all layers after the text before; and
    one more output, "memory", the state after this text. No gradient flows into either.

    In training two losses are added to a task's: `activation_penalty` times the mean square of the
    outputs after dropout, and `temporal_penalty` times the mean square of the difference between
    the outputs of successive tokens before dropout.

    Args:
        config: an `AwdLstmConfig`.
        **options: further arguments of `Encoder`.

    Example:
        >>> import numpy as np
        >>> config = AwdLstmConfig(vocabulary_size=10, hidden_size=4, intermediate_size=8)
        >>> out = AwdLstm(config)({"token_ids": np.array([[4, 5, 3]]),
        ...                        "memory": np.zeros((1, 1, 1, config.state_size), "float32")})
        >>> {name: tuple(x.shape) for name, x in out.items()}
        {'memory': (1, 1, 1, 40), 'sequence': (1, 3, 4), 'pooled': (1, 12)}
    """

    config_class = AwdLstmConfig
    config: AwdLstmConfig
    INPUTS = ("token_ids", "padding_mask", "memory")
    vector_inputs = ("memory",)
    has_input_tokens: ClassVar[bool] = False

    def memory_shape(self, rows: Any, tokens: int) -> tuple[Any, ...]:
        """Returns the shape of "memory" for a batch; `tokens` do not change it."""
        return (1, rows, 1, self.config.state_size)

    def _make_layers(self) -> None:
        config, policy = self.config, {"dtype": self.dtype_policy}
        self.embeddings = WordDropoutEmbeddings(
            config.vocabulary_size,
            config.hidden_size,
            config.embedding_dropout,
            name="embeddings",
            **policy,
        )
        self.input_dropout = LockedDropout(config.input_dropout, name="input_dropout", **policy)
        self.dropout = LockedDropout(config.dropout, name="dropout", **policy)
        self.output_dropout = LockedDropout(config.output_dropout, name="output_dropout", **policy)
        self.blocks = [self._make_block(layer) for layer in range(config.num_layers)]
        self.shared = self.norm = self.pooler = None
        if config.pooler_activation is not None:
            self.pooler = Unchanged(3 * config.hidden_size, name="pooler", **policy)

    def _make_block(self, group: int) -> keras.layers.Layer:
        return WeightDroppedLSTM(
            self.config.layer_sizes[group][1],
            weight_dropout=self.config.weight_dropout,
            name=f"layers_{group}",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Shape | None = None) -> None:
        self.embeddings.build()
        for block, (width, _) in zip(self.blocks, self.config.layer_sizes, strict=True):
            block.build((None, None, width))

    @property
    def state_widths(self) -> list[int]:
        """Widths of "hidden_states"."""
        return [self.config.hidden_size, *(units for _, units in self.config.layer_sizes)]

    @property
    def token_embedding(self) -> Any:
        """The token table (V, H)."""
        return self.embeddings.tables[0]

    def _run_layers(
        self, inputs: dict[str, Any], training: bool, reads: Reads, positions: Tensor | None
    ) -> Layers:
        """Runs the LSTMs and adds the two losses; arguments and result like `Encoder`'s.

        `Layers.more` has "memory", if the inputs have one.
        """
        ids, mask, memory = (inputs.get(x) for x in ("token_ids", "padding_mask", "memory"))
        sizes = [2 * units for _, units in self.config.layer_sizes]
        if memory is None:
            states = [ops.zeros((ops.shape(ids)[0], size)) for size in sizes]
        else:
            states = self._states(memory, sizes)
        x = self.input_dropout(self.embeddings(ids, training=training), training=training)
        hidden_states = [x]
        for layer, block in enumerate(self.blocks):
            if layer:
                x = self.dropout(x, training=training)
            x, states[layer] = run_layer(block, x, states[layer], mask, training=training)
            hidden_states.append(x)
        hidden_states[-1] = self.output_dropout(x, training=training)
        self._add_penalties(x, hidden_states[-1], mask)
        more = {}
        if memory is not None:
            state = ops.stop_gradient(ops.concatenate(states, axis=-1))
            more["memory"] = ops.cast(state[None, :, None], self.compute_dtype)
        if positions is not None:
            hidden_states[-1] = gather_positions(hidden_states[-1], positions)
        return Layers(hidden_states, [], more)

    def _states(self, memory: Tensor, sizes: list[int]) -> list[Tensor]:
        """Splits a memory (1, B, 1, W) into the states of the layers; ValueError for others."""
        total = sum(sizes)
        shape = tuple(memory.shape)
        if len(shape) != 4 or (shape[0], shape[2], shape[3]) != (1, 1, total):
            raise ValueError(
                f"`memory` must be of shape (1, batch, 1, {total}), the state of all layers. "
                f"Received: shape {shape}"
            )
        ends = [sum(sizes[:n]) for n in range(1, len(sizes))]
        return list(ops.split(ops.stop_gradient(memory)[0, :, 0], ends, axis=-1))

    def _add_penalties(self, raw: Tensor, dropped: Tensor, mask: Tensor | None) -> None:
        """Adds the losses of large and of changing outputs; padding is left out.

        `raw` and `dropped` (B, T, H) are the outputs of the last layer before and after dropout.
        (Merity et al. 2017, section 4.6, with means over the columns.)
        """
        real = ops.ones(ops.shape(raw)[:2]) if mask is None else ops.cast(mask > 0, "float32")
        raw, dropped = (ops.cast(x, "float32") for x in (raw, dropped))
        config, pairs = self.config, real[:, 1:] * real[:, :-1]
        for name, weight, x, counted in (
            ("activation_penalty", config.activation_penalty, dropped, real),
            ("temporal_penalty", config.temporal_penalty, raw[:, 1:] - raw[:, :-1], pairs),
        ):
            if weight:
                squares = ops.mean(ops.square(x), axis=-1) * counted
                add_auxiliary_loss(name, weight * ops.sum(squares), ops.sum(counted))

    def compute_output_spec(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
        return_internals: bool = False,
        output_positions: Tensor | None = None,
    ) -> dict[str, Any]:
        inputs, width = self._named_inputs(inputs), self.config.hidden_size
        batch, length = inputs["token_ids"].shape
        read = length if output_positions is None else output_positions.shape[1]
        shapes: dict[str, Any] = {"sequence": (batch, read, width)}
        if inputs.get("memory") is not None:
            shapes["memory"] = tuple(inputs["memory"].shape)
        if self.pooler is not None:
            shapes["pooled"] = (batch, 3 * width)
        if return_hidden_states:
            shapes["hidden_states"] = [(batch, length, units) for units in self.state_widths]
        asked = (("attention", return_attention), ("internals", return_internals))
        shapes |= {name: [] for name, returns in asked if returns}
        return output_spec(shapes, self.compute_dtype)
