"""The encoder-decoder: the original Transformer, BART, T5 and their kin.

Shapes: `B` batch, `S` tokens of the source, `T` tokens of the target, `H` hidden width, `N` heads,
`V` vocabulary, `R` rows that are decoded.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.configs.seq2seq import RELATIVE, Seq2SeqConfig
from kbert.core.types import DType, Shape, Tensor, Tensors
from kbert.layers import (
    Dropout,
    LayerNorm,
    RelativeBiases,
    TokenEmbeddings,
    attention_bias,
    causal_bias,
)
from kbert.layers.positions import check_length
from kbert.layers.recompute import run_layer
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.blocks import (
    Reads,
    last_norm,
    normed,
    positions_of,
    prefill_blocks,
    run_blocks,
    seq2seq_block,
    step_blocks,
)
from kbert.models.encoder import Encoder
from kbert.models.from_config import FromConfig
from kbert.models.generators.warm_start import arrays_of_encoder, config_of_encoder
from kbert.models.inputs_and_outputs import check_rank, check_shapes, output_spec
from kbert.models.weights import get_arrays, set_arrays

INPUTS = (
    *("encoder_token_ids", "encoder_padding_mask"),
    *("decoder_token_ids", "decoder_padding_mask"),
)
POSITIONS = "decoder_position_ids"  # an input that only some batches have


@keras.saving.register_keras_serializable(package="kbert")
class Seq2Seq(FromConfig, keras.Model):
    """Encodes a source bidirectionally, and decodes a target that attends to it left to right.

    (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762; Lewis et al. 2020, BART,
    https://arxiv.org/abs/1910.13461; Raffel et al. 2020, T5, https://arxiv.org/abs/1910.10683.)
    One token table serves source, target and output, unless the config says otherwise. The
    constructor builds the model, so it has weights at once.

    Args:
        config: sizes and options of the model.
        name: first part of the weights' paths.
        dtype: a Keras dtype policy or its name, e.g. "mixed_bfloat16".

    Raises:
        TypeError: the config is not a `Seq2SeqConfig`.

    Example:
        >>> import numpy as np
        >>> config = Seq2SeqConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> seq2seq = Seq2Seq(config)
        >>> out = seq2seq({"encoder_token_ids": np.array([[5, 6, 7, 3]]),
        ...                "decoder_token_ids": np.array([[2, 8]])})
        >>> tuple(out["encoder_sequence"].shape), tuple(seq2seq.logits(out["sequence"]).shape)
        ((1, 4, 8), (1, 2, 10))
    """

    config_class = Seq2SeqConfig
    prefix = "seq2seq"
    config: Seq2SeqConfig

    def __init__(
        self, config: Seq2SeqConfig, *, name: str = "seq2seq", dtype: DType = None, **kwargs: Any
    ) -> None:
        self.check_config(config)
        super().__init__(name=name, dtype=dtype, autocast=False, **kwargs)
        self.config = config
        policy = {"dtype": self.dtype_policy}
        self.embeddings = self._token_table(config.vocabulary_size, "embeddings")
        self.target_embeddings = self.output_table = self.output_bias = None
        if config.target_vocabulary_size is not None:
            self.target_embeddings = self._token_table(config.target_rows, "target_embeddings")
        if config.output == "untied":
            sigma = config.initializer_range or config.hidden_size**-0.5
            self.output_table = self._token_table(config.target_rows, "output_table", sigma)
        if config.output_bias:
            self.output_bias = _FixedBias(config.target_rows, name="output_bias", **policy)
        table = {"initializer_range": config.table_range, **policy}
        self.encoder_positions: Any = positions_of(config, name="encoder_positions", **table)
        self.decoder_positions: Any = positions_of(config, name="decoder_positions", **table)
        self.encoder_embedding_norm = _embedding_norm(
            config, name="encoder_embedding_norm", **policy
        )
        self.decoder_embedding_norm = _embedding_norm(
            config, name="decoder_embedding_norm", **policy
        )
        self.encoder_bias = self.decoder_bias = None
        if config.positions == RELATIVE:
            buckets = (config.num_heads, config.num_buckets, config.max_distance)
            self.encoder_bias = RelativeBiases(*buckets, name="encoder_bias", **table)
            self.decoder_bias = RelativeBiases(*buckets, causal=True, name="decoder_bias", **table)
        self.dropout = Dropout(config.dropout, name="dropout", **policy)
        self.encoder_blocks = [
            seq2seq_block(config, name=f"encoder_layers_{i}", **policy)
            for i in range(config.num_layers)
        ]
        self.encoder_norm = last_norm(config, kind=config.norm, name="encoder_norm", **policy)
        self.decoder_blocks: list[Any] = [
            seq2seq_block(config, crossed=True, name=f"decoder_layers_{i}", **policy)
            for i in range(config.decoder_layers)
        ]
        self.decoder_norm = last_norm(config, kind=config.norm, name="decoder_norm", **policy)
        self.build()

    def _token_table(self, rows: int, name: str, sigma: float | None = None) -> TokenEmbeddings:
        return TokenEmbeddings(
            rows,
            self.config.hidden_size,
            scale=self.config.embedding_scale,
            initializer_range=sigma or self.config.table_range,
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape: Shape | None = None) -> None:
        hidden = (None, None, self.config.hidden_size)
        self.embeddings.build((None, None))
        for layer in (
            *(self.encoder_positions, self.encoder_embedding_norm),
            *(*self.encoder_blocks, self.encoder_norm),
            *(self.decoder_positions, self.decoder_embedding_norm),
            *(*self.decoder_blocks, self.decoder_norm),
            *(self.encoder_bias, self.decoder_bias),
            *(self.target_embeddings, self.output_table, self.output_bias),
        ):
            if layer is not None:
                layer.build(hidden)

    @classmethod
    def from_encoder(
        cls, encoder: Encoder, *, num_decoder_layers: int | None = None, dtype: DType = None
    ) -> "Seq2Seq":
        """Builds an encoder-decoder initialised from a pretrained encoder.

        (Rothe, Narayan & Severyn 2020, https://arxiv.org/abs/1907.12461.) The source side is the
        encoder, with all tokens in its first segment. The target side has the same embeddings, with
        all tokens in its last segment, and as many of the same layers as there are. Only the
        cross-attention, and further layers, are newly initialised.

        Args:
            encoder: a `kbert.Encoder`, whose embeddings are as wide as its layers.
            num_decoder_layers: number of layers of the target side; None = as many as the encoder
                has.
            dtype: a Keras dtype policy or its name; None = the encoder's.

        Raises:
            ValueError: the encoder's embeddings have another width than its layers (ALBERT,
                ELECTRA-small), or the encoder is not of BERT's kind.
        """
        config = config_of_encoder(encoder.config, num_decoder_layers)
        model = cls(config, dtype=encoder.dtype_policy if dtype is None else dtype)
        learned = arrays_of_encoder(encoder.config, get_arrays(encoder, "encoder"), config)
        set_arrays(model, cls.prefix, get_arrays(model, cls.prefix) | learned, "the encoder")
        return model

    @property
    def max_length(self) -> int:
        """The longest source and the longest target, in tokens."""
        return self.config.max_positions

    @property
    def id_rows(self) -> dict[str, int]:
        config = self.config
        return {
            "encoder_token_ids": config.vocabulary_size,
            "decoder_token_ids": config.target_rows,
        }

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        return dict.fromkeys(INPUTS, (None, None))

    @property
    def token_embedding(self) -> keras.Variable:
        """The token table (V, H) of the source."""
        return self.embeddings.token

    @property
    def _inputs(self) -> tuple[str, ...]:
        """Names of all inputs of `call`."""
        return INPUTS if self.config.positions == RELATIVE else (*INPUTS, POSITIONS)

    @property
    def _target_table(self) -> TokenEmbeddings:
        """The token table of the target: that of the source unless it has its own."""
        return self.embeddings if self.target_embeddings is None else self.target_embeddings

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes sources and targets.

        Args:
            inputs: a dict with "encoder_token_ids" (B, S) and "decoder_token_ids" (B, T), and
                optionally "encoder_padding_mask" and "decoder_padding_mask" of the same shapes (1 =
                token, 0 = padding), all integers. Padding must follow the tokens.
                "decoder_position_ids" (B, T) are the targets' positions, if these do not begin at 0
                (MASS); not with relative positions.
            training: whether dropout is active.
            return_hidden_states: whether "hidden_states" and "encoder_hidden_states" are returned.
            return_attention: whether "attention", "cross_attention" and "encoder_attention" are
                returned.

        Returns:
            A dict: "sequence" (B, T, H) of the decoder; "encoder_sequence" (B, S, H); lists of the
            embeddings and each block's output, the last one after the last norm: "hidden_states"
            (B, T, H), "encoder_hidden_states" (B, S, H); lists of each block's probabilities before
            dropout: "attention" (B, N, T, T), "cross_attention" (B, N, T, S), "encoder_attention"
            (B, N, S, S).

        Raises:
            ValueError: an input is unknown, missing or too long.
        """
        check_inputs(inputs, self._inputs)
        inputs = self.integers(inputs)
        reads = Reads(return_hidden_states, return_attention)
        memory, memory_bias, encoder_outputs = self._encode(inputs, training, reads)
        places = inputs.get(POSITIONS)
        x = self._embed_target(inputs["decoder_token_ids"], places, training=training)
        bias = causal_bias(ops.shape(inputs["decoder_token_ids"])[1])
        shared = None if self.decoder_bias is None else self.decoder_bias(x, training=training)
        if inputs.get("decoder_padding_mask") is not None:
            bias = bias + attention_bias(inputs["decoder_padding_mask"])
        hidden_states, attention, cross_attention = [x], [], []
        for block in self.decoder_blocks:
            x, probabilities, crossed = run_layer(
                block,
                x,
                memory,
                bias,
                memory_bias,
                training=training,
                select=reads.select,
                shared=shared,
            )
            hidden_states.append(x)
            attention.append(probabilities)
            cross_attention.append(crossed)
        x = hidden_states[-1] = self._finished(x, self.decoder_norm, training)
        outputs = {"sequence": x, "encoder_sequence": memory}
        if return_hidden_states:
            outputs["hidden_states"] = hidden_states
            outputs["encoder_hidden_states"] = encoder_outputs["hidden_states"]
        if return_attention:
            outputs["attention"] = attention
            outputs["cross_attention"] = cross_attention
            outputs["encoder_attention"] = encoder_outputs["attention"]
        return outputs

    def encode(self, token_ids: Tensor, padding_mask: Tensor | None = None) -> list[Any]:
        """Returns the hidden states of sources: the embeddings and the output of each layer.

        The last one is after the last norm, as the decoder reads it.

        Args:
            token_ids: (B, S) integers, with padding after the tokens.
            padding_mask: (B, S), 1 for a token; None = no padding.

        Returns:
            Number of layers + 1 tensors (B, S, H).

        Raises:
            ValueError: an id is not in the token table, or the sources are too long.
        """
        check_rank("token_ids", token_ids)
        inputs = {"encoder_token_ids": token_ids}
        if padding_mask is not None:
            inputs["encoder_padding_mask"] = padding_mask
        _, _, outputs = self._encode(self.integers(inputs), False, Reads(hidden_states=True))
        return outputs["hidden_states"]

    def logits(self, sequence: Tensor) -> Tensor:
        """Computes the logits of the next token: (…, H) -> (…, V) float32.

        They are products with the target's token table, or with the table of the output.
        """
        return self.token_output(sequence).logits()

    def token_output(self, sequence: Tensor) -> TokenOutput:
        """Returns what `logits` multiplies, for losses that compute them in chunks."""
        if self.config.output == "tied_scaled":
            sequence = ops.cast(sequence, "float32") * self.config.hidden_size**-0.5
        table = self._target_table if self.output_table is None else self.output_table
        bias = None if self.output_bias is None else self.output_bias.bias
        return TokenOutput(sequence, table.token, bias)

    def prefill(
        self,
        encoder_token_ids: Tensor,
        encoder_padding_mask: Tensor,
        max_new_tokens: int,
        start_ids: Tensor,
    ) -> tuple[Any, dict]:
        """Encodes sources and the first tokens of targets, and allocates the KV cache.

        Args:
            encoder_token_ids: (B, S), with padding after the tokens.
            encoder_padding_mask: (B, S), 1 for a token; None = no padding.
            max_new_tokens: largest number of tokens to decode, without the first.
            start_ids: (B,), first token of each target.

        Returns:
            The logits (B, V) of the second token, and the KV cache for `step`: a dict of "prompt"
            and "decoded" tensors, whose first axis is rows.

        Raises:
            ValueError: a source, or first and new tokens together, exceed `max_positions`.
        """
        check_rank("encoder_token_ids", encoder_token_ids)
        if max_new_tokens + 1 > self.config.max_positions:
            raise ValueError(
                "A target, including its start token, must not be longer than "
                f"max_positions={self.config.max_positions}. Received: {max_new_tokens} tokens "
                "after the start token"
            )
        if encoder_padding_mask is None:
            encoder_padding_mask = ops.ones_like(encoder_token_ids)
        inputs = {
            "encoder_token_ids": encoder_token_ids,
            "encoder_padding_mask": encoder_padding_mask,
        }
        memory, memory_bias, _ = self._encode(inputs, False, Reads())
        x = self._embed_target(start_ids[:, None])
        bias = attention_bias(ops.ones_like(start_ids[:, None]))
        # Relative biases change nothing yet: the first token attends only to itself.
        context = (bias, memory, memory_bias)
        x, layers, decoded = prefill_blocks(self.decoder_blocks, x, max_new_tokens, *context)
        prompt = {"layers": layers, "bias": bias, "memory_bias": memory_bias}
        logits = self.logits(normed(x, self.decoder_norm)[:, 0])
        return logits, {"prompt": prompt, "decoded": decoded}

    def step(self, token_ids: Tensor, cache: dict, t: Tensor) -> tuple[Any, dict]:
        """Decodes one more token of each target.

        Args:
            token_ids: (R,), decoded token `t` of each target.
            cache: KV cache from `prefill` or the previous step.
            t: index of the token after the first, a scalar integer from 0.

        Returns:
            The logits (R, V) float32 of the next token, and the KV cache for the next step.
        """
        positions = ops.ones_like(token_ids)[:, None] * (1 + t)  # after the start
        x = self._embed_target(token_ids[:, None], positions)
        options = None
        if self.decoder_bias is not None:
            length = 1 + ops.shape(cache["decoded"][0]["key"])[2]  # the start and all new tokens
            biases = {"bias": self.decoder_bias.row(1 + t, length)}
            options = [{"shared": biases}] * len(self.decoder_blocks)
        memory_bias = cache["prompt"]["memory_bias"]
        x, cache = step_blocks(self.decoder_blocks, x, cache, t, memory_bias, options=options)
        return self.logits(normed(x, self.decoder_norm)[:, 0]), cache

    def compute_output_spec(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        check_inputs(inputs, self._inputs)
        batch, source = inputs["encoder_token_ids"].shape
        target = inputs["decoder_token_ids"].shape[1]
        width, heads = self.config.hidden_size, self.config.num_heads
        above, below = self.config.decoder_layers, self.config.num_layers
        hidden, memory = (batch, target, width), (batch, source, width)
        shapes: dict[str, Any] = {"sequence": hidden, "encoder_sequence": memory}
        if return_hidden_states:
            shapes["hidden_states"] = [hidden] * (above + 1)
            shapes["encoder_hidden_states"] = [memory] * (below + 1)
        if return_attention:
            shapes["attention"] = [(batch, heads, target, target)] * above
            shapes["cross_attention"] = [(batch, heads, target, source)] * above
            shapes["encoder_attention"] = [(batch, heads, source, source)] * below
        return output_spec(shapes, self.compute_dtype)

    def _encode(self, inputs: Tensors, training: bool, reads: Reads) -> Any:
        """Encodes the sources in a batch.

        Returns the hidden states (B, S, H) after the last norm, the bias of padding for the decoder
        (None without a mask), and a dict of the lists "hidden_states" and "attention".
        """
        x = self._placed(self.embeddings(inputs["encoder_token_ids"]), self.encoder_positions)
        x = self.dropout(normed(x, self.encoder_embedding_norm), training=training)
        bias = None
        if inputs.get("encoder_padding_mask") is not None:
            bias = attention_bias(inputs["encoder_padding_mask"])
        shared = None if self.encoder_bias is None else self.encoder_bias(x, training=training)
        hidden_states, attention = run_blocks(
            self.encoder_blocks, x, bias, reads=reads, training=training, shared=shared
        )
        x = self._finished(hidden_states[-1], self.encoder_norm, training)
        hidden_states[-1] = x
        return x, bias, {"hidden_states": hidden_states, "attention": attention}

    def _embed_target(
        self, token_ids: Tensor, places: Tensor | None = None, training: bool = False
    ) -> Tensor:
        x = self._placed(self._target_table(token_ids), self.decoder_positions, places)
        return self.dropout(normed(x, self.decoder_embedding_norm), training=training)

    def _placed(self, x: Tensor, positions: Any, places: Tensor | None = None) -> Tensor:
        """Adds positions to embeddings x (B, T, H); without position embeddings it checks T."""
        if positions is not None:
            return positions(x, places)
        if places is None:
            check_length(ops.shape(x)[1], self.config.max_positions)
        return x

    def _finished(self, x: Tensor, norm: Any, training: bool) -> Tensor:
        """Returns x (B, T, H) after the last norm of a side, and any dropout behind it."""
        x = normed(x, norm)
        return self.dropout(x, training=training) if self.config.output_dropout else x


class _FixedBias(keras.layers.Layer):
    """A bias (V,) of the logits that is not trained: a value of the model, like its positions."""

    def __init__(self, rows: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = rows

    def build(self, input_shape: Shape | None = None) -> None:
        self.bias = self.add_weight(
            name="bias", shape=(self.rows,), initializer="zeros", trainable=False, autocast=False
        )


def _embedding_norm(config: Seq2SeqConfig, **kwargs: Any) -> keras.layers.Layer | None:
    normalised = config.embeddings == "normalised"
    return LayerNorm(config.layer_norm_epsilon, **kwargs) if normalised else None


def check_inputs(inputs: Tensor, known_names: Sequence[str] = INPUTS) -> None:
    """Raises ValueError unless names and shapes of the inputs are those of `Seq2Seq.call`.

    `known_names` are the names of all inputs that the model has.
    """
    needed = ("encoder_token_ids", "decoder_token_ids")
    names = list(inputs) if isinstance(inputs, dict) else [type(inputs).__name__]
    if not set(needed) <= set(names) <= set(known_names):
        optional = [f"`{name}`" for name in known_names if name not in needed]
        raise ValueError(
            "The inputs of an encoder-decoder must be `encoder_token_ids` and "
            f"`decoder_token_ids`, and optionally {', '.join(optional[:-1])} and {optional[-1]}. "
            f"Received: {', '.join(names)}"
        )
    for name in needed:
        check_shapes(inputs, name, (name.replace("token_ids", "padding_mask"),))
