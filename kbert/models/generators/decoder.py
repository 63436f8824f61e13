"""The decoder alone: a left-to-right language model like GPT and GPT-2.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `V` vocabulary, `P` tokens of a prompt,
`R` rows that are decoded.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.decoder import DecoderConfig
from kbert.core.types import DType, Shape, Tensor, Tensors
from kbert.layers import (
    Dense,
    Dropout,
    LayerNorm,
    TokenEmbeddings,
    attention_bias,
)
from kbert.layers.bias import layer_biases
from kbert.layers.positions import check_length
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.blocks import (
    Reads,
    last_norm,
    layer_block,
    normed,
    positions_of,
    prefill_blocks,
    run_blocks,
    step_blocks,
)
from kbert.models.from_config import FromConfig
from kbert.models.inputs_and_outputs import check_rank, named_inputs, output_spec


@keras.saving.register_keras_serializable(package="kbert")
class Decoder(FromConfig, keras.Model):
    """Encodes each token with the tokens before it, and computes logits of the next token.

    (Radford et al. 2018 and 2019; https://github.com/openai/gpt-2, src/model.py.) Its blocks are
    the encoder's with a causal bias. The constructor builds the model, so it has weights at once.

    Args:
        config: sizes and options of the decoder.
        name: first part of the weights' paths.
        dtype: a Keras dtype policy or its name, e.g. "mixed_bfloat16".

    Raises:
        TypeError: the config is not a `DecoderConfig`.

    Example:
        >>> import numpy as np
        >>> config = DecoderConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16, max_positions=12)
        >>> decoder = Decoder(config)
        >>> out = decoder(np.array([[2, 5, 3]]))
        >>> tuple(out["sequence"].shape), tuple(decoder.logits(out["sequence"]).shape)
        ((1, 3, 8), (1, 3, 10))
        >>> logits, cache = decoder.prefill(np.array([[2, 5, 3]]), None, max_new_tokens=4)
        >>> logits, cache = decoder.step(ops.argmax(logits, axis=-1), cache, 0)
        >>> tuple(logits.shape)
        (1, 10)
    """

    config_class = DecoderConfig
    prefix = "decoder"
    config: DecoderConfig

    def __init__(
        self, config: DecoderConfig, *, name: str = "decoder", dtype: DType = None, **kwargs: Any
    ) -> None:
        self.check_config(config)
        super().__init__(name=name, dtype=dtype, autocast=False, **kwargs)
        self.config = config
        common = {"initializer_range": config.initializer_range, "dtype": self.dtype_policy}
        self.embeddings = TokenEmbeddings(
            config.vocabulary_size, config.hidden_size, name="embeddings", **common
        )
        policy = {"dtype": self.dtype_policy}
        # None if positions are in the attention.
        self.positions: Any = positions_of(config, name="positions", **common)
        self.embedding_norm = None
        if config.embedding_norm:
            self.embedding_norm = LayerNorm(
                config.layer_norm_epsilon, kind=config.norm, name="embedding_norm", **policy
            )
        self.dropout = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        self.blocks = [
            layer_block(config, layer=i, name=f"layers_{i}", **policy)
            for i in range(config.num_layers)
        ]
        self.norm = last_norm(config, kind=config.norm, name="norm", **policy)
        self.head = self.pooler = None
        if config.output == "transformed":
            self.head = _OutputHead(config, name="head", **policy)
        self.build()
        self.apply_edits()

    def build(self, input_shape: Shape | None = None) -> None:
        width = self.config.hidden_size
        self.embeddings.build((None, None))
        for part in (self.positions, self.embedding_norm, *self.blocks, self.norm, self.head):
            if part is not None:
                part.build((None, None, width))

    @property
    def id_rows(self) -> dict[str, int]:
        return {"token_ids": self.config.vocabulary_size}

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        return dict.fromkeys(("token_ids", "padding_mask"), (None, None))

    def _named_inputs(self, inputs: Any) -> dict[str, Any]:
        named = named_inputs(inputs, "token_ids", ("padding_mask",), "A decoder")
        return self.integers(named)

    @property
    def token_embedding(self) -> keras.Variable:
        """The token table (V, H)."""
        return self.embeddings.token

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
            inputs: token ids (B, T), or a dict with "token_ids" and optionally "padding_mask" (1 =
                token, 0 = padding), both (B, T) integers. Padding must follow the tokens.
            training: whether dropout is active.
            return_hidden_states: whether "hidden_states" is returned.
            return_attention: whether "attention" is returned.

        Returns:
            A dict: "sequence" (B, T, H), after the last norm if the model has one;
            "hidden_states", a list of num_layers + 1 tensors (B, T, H): the embeddings, the outputs
            of all blocks but the last, and "sequence"; "attention", a list of num_layers tensors
            (B, N, T, T), probabilities before dropout.

        Raises:
            ValueError: an input is unknown, missing or too long.
        """
        inputs = self._named_inputs(inputs)
        x = self._embed(inputs["token_ids"], training=training)
        biases = layer_biases(
            self._windows,
            ops.shape(inputs["token_ids"])[1],
            inputs.get("padding_mask"),
            causal=True,
            in_blocks=not return_attention,
        )
        reads = Reads(return_hidden_states, return_attention)
        hidden_states, attention = run_blocks(
            self.blocks, x, biases, reads=reads, training=training
        )
        hidden_states[-1] = normed(hidden_states[-1], self.norm)
        outputs: dict[str, Any] = {"sequence": hidden_states[-1]}
        if return_hidden_states:
            outputs["hidden_states"] = hidden_states
        if return_attention:
            outputs["attention"] = attention
        return outputs

    def logits(self, sequence: Tensor) -> Tensor:
        """Computes the logits of the next token: (…, H) -> (…, V) float32.

        They are products with the token table. An output head, if the model has one, transforms the
        hidden states first and adds its bias.
        """
        return self.token_output(sequence).logits()

    def token_output(self, sequence: Tensor) -> TokenOutput:
        """Returns what `logits` multiplies, for losses that compute them in chunks."""
        if self.head is None:
            return TokenOutput(sequence, self.token_embedding)
        return TokenOutput(self.head(sequence), self.token_embedding, self.head.bias)

    def prefill(
        self, token_ids: Tensor, padding_mask: Tensor, max_new_tokens: int
    ) -> tuple[Any, dict]:
        """Encodes prompts and allocates the KV cache for new tokens.

        Args:
            token_ids: (B, P), with padding after the tokens.
            padding_mask: (B, P), 1 for a token; None = no padding. Each row has at least one token.
            max_new_tokens: largest number of tokens to decode.

        Returns:
            The logits (B, V) of the token after each prompt, and the KV cache for `step`: a dict of
            "prompt" and "decoded" tensors, whose first axis is rows.

        Raises:
            ValueError: prompt and new tokens together exceed `max_positions`.
        """
        check_rank("token_ids", token_ids)
        self._check_length(token_ids.shape[1], max_new_tokens)
        if padding_mask is None:
            padding_mask = ops.ones_like(token_ids)
        x = self._embed(token_ids)
        length = ops.shape(token_ids)[1]
        biases = layer_biases(self._windows, length, causal=True, in_blocks=False)
        x, layers, decoded = prefill_blocks(self.blocks, x, max_new_tokens, biases)
        lengths = ops.sum(ops.cast(padding_mask, "int32"), axis=1)  # (B,)
        last = ops.take_along_axis(x, lengths[:, None, None] - 1, axis=1)[:, 0]  # (B, H)
        bias = attention_bias(padding_mask)
        prompt = {"layers": layers, "bias": bias, "lengths": lengths}
        return self.logits(normed(last, self.norm)), {"prompt": prompt, "decoded": decoded}

    def step(self, token_ids: Tensor, cache: dict, t: Tensor) -> tuple[Any, dict]:
        """Decodes one more token of each row.

        Args:
            token_ids: (R,), decoded token `t` of each row.
            cache: KV cache from `prefill` or the previous step.
            t: index of the token after the prompt, a scalar integer from 0.

        Returns:
            The logits (R, V) float32 of the next token, and the KV cache for the next step.
        """
        position_ids = (cache["prompt"]["lengths"] + t)[:, None]  # (R, 1)
        x = self._embed(token_ids[:, None], position_ids)
        options = [{"position_ids": position_ids, "window": window} for window in self._windows]
        x, cache = step_blocks(self.blocks, x, cache, t, options=options)
        return self.logits(normed(x, self.norm)[:, 0]), cache

    def compute_output_spec(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        inputs = self._named_inputs(inputs)
        batch, length = inputs["token_ids"].shape
        hidden = (batch, length, self.config.hidden_size)
        layers = self.config.num_layers
        shapes: dict[str, Any] = {"sequence": hidden}
        if return_hidden_states:
            shapes["hidden_states"] = [hidden] * (layers + 1)
        if return_attention:
            shapes["attention"] = [(batch, self.config.num_heads, length, length)] * layers
        return output_spec(shapes, self.compute_dtype)

    def _embed(
        self, token_ids: Tensor, places: Tensor | None = None, training: bool = False
    ) -> Tensor:
        """Returns the embeddings (B, T, H) of tokens (B, T), with positions, norm and dropout.

        `places` (B, T) are the positions of the tokens; None = 0 to T - 1, with ValueError if T
        exceeds `max_positions`.
        """
        x = self.embeddings(token_ids)
        if self.positions is not None:
            x = self.positions(x, places)
        elif places is None:
            check_length(ops.shape(token_ids)[1], self.config.max_positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, training=training)
        return self.dropout(x, training=training)

    @property
    def _windows(self) -> list[int | None]:
        return [self.config.window(layer) for layer in range(self.config.num_layers)]

    def _check_length(self, length: int, max_new_tokens: int) -> None:
        """Raises ValueError if prompt and new tokens together exceed `max_positions`.

        `length` is the number of tokens in the prompt; None = unknown, which is not checked.
        """
        most = self.config.max_positions
        if length is not None and length + max_new_tokens > most:
            raise ValueError(
                f"The prompt and `max_new_tokens` together must not exceed max_positions={most}. "
                f"Received: {length} tokens in the prompt, max_new_tokens={max_new_tokens}"
            )


class _OutputHead(keras.layers.Layer):
    """Transform between the last layer and the token table, and the bias of the logits."""

    def __init__(self, config: DecoderConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = config.vocabulary_size
        self.transform = Dense(
            config.hidden_size,
            activation=config.transform_activation,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("heads"),
            dtype=self.dtype_policy,
            name="transform",
        )
        self.norm = LayerNorm(
            config.layer_norm_epsilon, kind=config.norm, dtype=self.dtype_policy, name="norm"
        )

    def build(self, input_shape: Shape) -> None:
        self.transform.build(input_shape)
        self.norm.build(input_shape)
        self.bias = self.add_weight(
            name="bias", shape=(self.rows,), initializer="zeros", autocast=False
        )

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Transforms hidden states before the token table: (…, H) -> (…, H)."""
        return self.norm(self.transform(x, training=training), training=training)
