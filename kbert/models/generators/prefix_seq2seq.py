"""An encoder with a prefix mask as encoder-decoder: one network for source and target.

Shapes: `B` batch, `S` tokens of the source, `T` tokens of the target, `H` hidden width, `N` heads,
`V` vocabulary, `R` rows that are decoded.
"""

from typing import Any

import keras
from keras import ops

from kbert.configs.transformer import GLOBAL
from kbert.core.types import Tensor, Tensors
from kbert.layers import attention_bias, causal_bias
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.blocks import Reads, prefill_blocks, run_blocks, step_blocks
from kbert.models.encoder import Encoder
from kbert.models.generators.seq2seq import check_inputs


class OneNetwork(keras.Model):
    """Encoder whose sequences are a source and a target; the attention mask separates both.

    A token of the source attends to the whole source. A token of the target attends to the source
    and to the target up to itself. Subclasses say which tokens of the target predict which, and
    decode.

    Args:
        encoder: a `kbert.Encoder`.
        name: name of the model.

    Raises:
        ValueError: the encoder's kind, positions, attention pattern, blocks or part differ from
            BERT's.
    """

    def __init__(self, encoder: Encoder, *, name: str, **kwargs: Any) -> None:
        config = encoder.config
        plain = {
            **{"kind": "encoder", "positions": "learned", "attention_pattern": (GLOBAL,)},
            **{"block": "post_norm", "part": None},
        }
        values = {name: getattr(config, name) for name in plain}
        if values != plain:
            raise ValueError(
                "The encoder must have positions='learned', attention_pattern=('global',), "
                f"block='post_norm' and no part, as it also decodes the target. Received: {values}"
            )
        super().__init__(name=name, dtype=encoder.dtype_policy, **kwargs)
        self.encoder = encoder
        self.config = encoder.config
        self.built = True

    def parts(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers with weights, by the first part of the weights' names in a preset."""
        return self.encoder.parts()

    @property
    def token_embedding(self) -> keras.Variable:
        """The token table (V, H)."""
        return self.encoder.token_embedding

    @property
    def segments(self) -> tuple[int, int] | None:
        """Segment ids of sources and of targets; None without segments."""
        last = self.config.num_segments - 1
        return None if last < 0 else (0, last)

    def run(
        self, source: Tensor, target: Tensor, mask: Tensor, training: bool, reads: Reads
    ) -> dict[str, Any]:
        """Encodes sources and targets.

        Args:
            source: (B, S) ids.
            target: (B, T) ids.
            mask: (B, S), 0 for padding in the source; None = no padding.
            training: whether dropout is active.
            reads: which outputs are returned besides the last hidden state.

        Returns:
            The result of `kbert.Seq2Seq.call`.
        """
        mask = ops.ones_like(source) if mask is None else mask
        x = self._embed(source, target, mask, training)
        bias = _prefix_bias(mask, ops.shape(target)[1])
        blocks = self.encoder.layer_blocks
        hidden_states, attention = run_blocks(blocks, x, bias, reads=reads, training=training)
        x, length = hidden_states[-1], ops.shape(source)[1]
        outputs = {"sequence": x[:, length:], "encoder_sequence": x[:, :length]}
        if reads.hidden_states:
            outputs["hidden_states"] = [x[:, length:] for x in hidden_states]
            outputs["encoder_hidden_states"] = [x[:, :length] for x in hidden_states]
        if reads.attention:
            outputs["attention"] = [a[:, :, length:, length:] for a in attention]
            outputs["cross_attention"] = [a[:, :, length:, :length] for a in attention]
            outputs["encoder_attention"] = [a[:, :, :length, :length] for a in attention]
        return outputs

    def _embed_target(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embeds tokens (R, T) of targets at `positions` (R, T)."""
        segments = None if self.segments is None else ops.full_like(ids, self.segments[1])
        return self.encoder.embeddings(ids, segments, positions)

    def _embed(self, source: Tensor, target: Tensor, mask: Tensor, training: bool) -> Tensor:
        """Embeds each source and its target as one sequence: (B, S), (B, T) -> (B, S + T, H).

        The positions of a target follow the last token of its source. `mask` (B, S) is 0 for
        padding in the source.
        """
        columns = ops.arange(ops.shape(source)[1], dtype="int32")
        lengths = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        target_positions = lengths + ops.arange(ops.shape(target)[1], dtype="int32")[None]
        positions = ops.concatenate(
            [ops.zeros_like(lengths) + columns[None], target_positions], axis=1
        )
        segments = None
        if self.segments is not None:
            sides = zip((source, target), self.segments, strict=True)
            segments = ops.concatenate([ops.full_like(ids, number) for ids, number in sides], 1)
        ids = ops.concatenate([source, ops.cast(target, source.dtype)], axis=1)
        return self.encoder.embeddings(ids, segments, positions, training=training)


class PrefixSeq2Seq(OneNetwork):
    """Encoder of sources and targets that predicts each token from those before it.

    A token of the source attends to the whole source. A token of the target attends to the source
    and to the target up to itself. (The sequence-to-sequence mask of UniLM: Dong et al. 2019,
    figure 1, https://arxiv.org/abs/1905.03197. UniLM predicts masked tokens of the target. Here
    each token is predicted from those before it. So training uses all of them at once, and
    decoding has a KV cache.) The model has no weights besides the encoder's. Its calls are those of
    `kbert.Seq2Seq`.

    Args:
        encoder: a `kbert.Encoder`, whose embeddings are as wide as its layers. Sources are in its
            first segment and targets in its last.
        name: name of the model.

    Raises:
        ValueError: the encoder's embeddings have another width than its layers, or its kind,
            positions, attention pattern, blocks or part differ from BERT's.

    Example:
        >>> import numpy as np
        >>> from kbert.configs.encoder import EncoderConfig
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> model = PrefixSeq2Seq(Encoder(config))
        >>> out = model({"encoder_token_ids": np.array([[5, 6, 7, 3]]),
        ...              "decoder_token_ids": np.array([[2, 8]])})
        >>> tuple(out["sequence"].shape), tuple(model.logits(out["sequence"]).shape)
        ((1, 2, 8), (1, 2, 10))
    """

    def __init__(self, encoder: Encoder, *, name: str = "prefix_seq2seq", **kwargs: Any) -> None:
        if encoder.config.embedding_width != encoder.config.hidden_size:
            raise ValueError(
                "`embedding_size` of the encoder must equal its `hidden_size`: the token table is "
                "also the output layer. Received: an encoder with "
                f"embedding_size={encoder.config.embedding_size}, "
                f"hidden_size={encoder.config.hidden_size}"
            )
        super().__init__(encoder, name=name, **kwargs)

    @property
    def max_length(self) -> int:
        """The longest source and the longest target, in tokens: half of the positions each."""
        return self.config.max_positions // 2

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes sources and targets; arguments and result are those of `kbert.Seq2Seq.call`."""
        check_inputs(inputs)
        reads = Reads(return_hidden_states, return_attention)
        ids, mask = inputs["encoder_token_ids"], inputs.get("encoder_padding_mask")
        return self.run(ids, inputs["decoder_token_ids"], mask, training, reads)

    def logits(self, sequence: Tensor) -> Tensor:
        """Computes the logits of the next token: (…, H) -> (…, V) float32, by the token table."""
        return self.token_output(sequence).logits()

    def token_output(self, sequence: Tensor) -> TokenOutput:
        """Returns what `logits` multiplies, for losses that compute them in chunks."""
        return TokenOutput(sequence, self.token_embedding)

    def prefill(
        self,
        encoder_token_ids: Tensor,
        encoder_padding_mask: Tensor,
        max_new_tokens: int,
        start_ids: Tensor,
    ) -> tuple[Any, dict]:
        """Encodes sources and the first tokens of targets, and allocates the KV cache.

        Arguments and result are those of `kbert.Seq2Seq.prefill`.
        """
        mask = encoder_padding_mask
        mask = ops.ones_like(encoder_token_ids) if mask is None else mask
        target = ops.cast(start_ids, encoder_token_ids.dtype)[:, None]
        x = self._embed(encoder_token_ids, target, mask, training=False)
        bias = _prefix_bias(mask, 1)
        blocks = self.encoder.layer_blocks
        x, layers, decoded = prefill_blocks(blocks, x, max_new_tokens, bias)
        prompt_mask = ops.concatenate([mask, ops.ones_like(target, dtype=mask.dtype)], axis=1)
        lengths = ops.sum(ops.cast(mask, "int32"), axis=1)
        prompt = {"layers": layers, "bias": attention_bias(prompt_mask), "lengths": lengths}
        return self.logits(x[:, -1]), {"prompt": prompt, "decoded": decoded}

    def step(self, token_ids: Tensor, cache: dict, t: Tensor) -> tuple[Any, dict]:
        """Decodes one more token of each target.

        Arguments and result are those of `kbert.Seq2Seq.step`.
        """
        positions = (cache["prompt"]["lengths"] + 1 + t)[:, None]  # after source and start
        x = self._embed_target(token_ids[:, None], positions)
        x, cache = step_blocks(self.encoder.layer_blocks, x, cache, t)
        return self.logits(x[:, 0]), cache


def _prefix_bias(mask: Tensor, length: int) -> Tensor:
    """Returns the attention bias (B, 1, S + T, S + T) of sources followed by targets.

    All tokens attend to the source, and those of the target also to the target up to themselves.
    `mask` (B, S) is 0 for padding in the source; `length` is T.
    """
    columns = ops.shape(mask)[1]
    source = attention_bias(mask)  # (B, 1, 1, S), the same for all rows of the scores
    target = causal_bias(columns + length)[:, :, :, columns:]  # (1, 1, S + T, T)
    rows = columns + length
    source = source + ops.zeros((1, 1, rows, 1))
    target = target + ops.zeros_like(source[:, :, :, :1])
    return ops.concatenate([source, target], axis=-1)
