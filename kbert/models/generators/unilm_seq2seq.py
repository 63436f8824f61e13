"""UniLM as encoder-decoder: masked tokens of the target are predicted at their own positions.

Shapes: `B` batch, `S` tokens of the source, `T` tokens of the target, `H` hidden width, `V`
vocabulary, `R` rows that are decoded.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor, Tensors
from kbert.layers import attention_bias
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.blocks import Reads, prefill_blocks, step_blocks
from kbert.models.encoder import Encoder
from kbert.models.generators.prefix_seq2seq import OneNetwork

INPUTS = ("encoder_token_ids", "encoder_padding_mask", "target_token_ids")


class UniLMSeq2Seq(OneNetwork):
    """Encoder of sources and targets that predicts masked tokens of the target.

    (Dong et al. 2019, sections 2.3 and 2.4, https://arxiv.org/abs/1905.03197.) A row is [CLS]
    source [SEP] target [SEP]. Tokens of the source attend to the source, those of the target to the
    source and to the target up to themselves. A masked token is predicted at its own position, as
    in pretraining. To decode, a mask follows the text so far; the predicted token then replaces it.
    So each step computes two positions; in the KV cache the token takes the place of the mask.

    Args:
        encoder: a `kbert.Encoder`. Sources are in the last but one of its segments, targets in the
            last: for `kbert.tasks.UniLM` the two of its sequence-to-sequence rows.
        masked_lm: a `kbert.heads.MaskedLMHead` on the encoder's token table.
        name: name of the model.

    Raises:
        ValueError: the encoder's kind, positions, attention pattern, blocks or part differ from
            BERT's.

    Example:
        >>> import numpy as np
        >>> from kbert.configs.encoder import EncoderConfig
        >>> from kbert.heads import MaskedLMHead
        >>> config = EncoderConfig(vocabulary_size=10, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> encoder = Encoder(config)
        >>> model = UniLMSeq2Seq(encoder, MaskedLMHead(config, encoder.token_embedding))
        >>> out = model({"encoder_token_ids": np.array([[2, 5, 6, 3]]),
        ...              "target_token_ids": np.array([[7, 4]])})
        >>> tuple(out["sequence"].shape), tuple(model.logits(out["sequence"]).shape)
        ((1, 2, 8), (1, 2, 10))
    """

    def __init__(
        self,
        encoder: Encoder,
        masked_lm: keras.layers.Layer,
        *,
        name: str = "unilm_seq2seq",
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, name=name, **kwargs)
        self.masked_lm = masked_lm

    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts(), "masked_lm": self.masked_lm}

    @property
    def max_length(self) -> int:
        """The longest source and the longest target, in tokens with their end.

        It is half of the positions each, after that of [CLS].
        """
        return (self.config.max_positions - 1) // 2

    @property
    def segments(self) -> tuple[int, int] | None:
        last = self.config.num_segments - 1
        return None if last < 0 else (max(last - 1, 0), last)

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes sources and targets.

        Args:
            inputs: a dict with "encoder_token_ids" (B, S), which begin with [CLS];
                "target_token_ids" (B, T), some of which are masked; and optionally
                "encoder_padding_mask" (B, S), 1 for a token. Padding must follow the tokens.
            training: whether dropout is active.
            return_hidden_states: as in `kbert.Seq2Seq.call`.
            return_attention: as in `kbert.Seq2Seq.call`.

        Returns:
            The result of `kbert.Seq2Seq.call`.

        Raises:
            ValueError: an input is unknown or missing.
        """
        needed = {"encoder_token_ids", "target_token_ids"}
        if not isinstance(inputs, dict) or not needed <= set(inputs) <= set(INPUTS):
            names = sorted(inputs) if isinstance(inputs, dict) else [type(inputs).__name__]
            raise ValueError(
                "The inputs of a UniLMSeq2Seq must be `encoder_token_ids` and `target_token_ids`, "
                "and optionally `encoder_padding_mask`: make the dataset with a masked_share. "
                f"Received: {', '.join(names)}"
            )
        reads = Reads(return_hidden_states, return_attention)
        ids, mask = inputs["encoder_token_ids"], inputs.get("encoder_padding_mask")
        return self.run(ids, inputs["target_token_ids"], mask, training, reads)

    def logits(self, sequence: Tensor) -> Tensor:
        """Computes the logits of the tokens themselves: (B, T, H) -> (B, T, V) float32."""
        return self.masked_lm(sequence)

    def token_output(self, sequence: Tensor) -> TokenOutput:
        """Returns what `logits` multiplies, for losses that compute them in chunks."""
        return self.masked_lm.token_output(sequence)

    def prefill(
        self,
        encoder_token_ids: Tensor,
        encoder_padding_mask: Tensor,
        max_new_tokens: int,
        mask_ids: Tensor,
    ) -> tuple[Any, dict]:
        """Encodes sources, predicts the first tokens of targets, and allocates the KV cache.

        Args:
            encoder_token_ids: (B, S), [CLS] and source, with padding after the tokens.
            encoder_padding_mask: (B, S), 1 for a token; None = no padding.
            max_new_tokens: largest number of tokens to decode.
            mask_ids: (B,), [MASK] for each row.

        Returns:
            The logits (B, V) of the first token, and the KV cache for `step`.
        """
        ids, mask = encoder_token_ids, encoder_padding_mask
        mask = ops.ones_like(ids) if mask is None else mask
        segments = None if self.segments is None else ops.full_like(ids, self.segments[0])
        bias = attention_bias(mask)
        x = self.encoder.embeddings(ids, segments)
        _, layers, decoded = prefill_blocks(self.encoder.layer_blocks, x, max_new_tokens, bias)
        prompt = {
            "layers": layers,
            "bias": bias,
            "lengths": ops.sum(ops.cast(mask, "int32"), axis=1),
            "mask_ids": ops.cast(mask_ids, "int32"),
        }
        return self._predicted({"prompt": prompt, "decoded": decoded}, 0)

    def step(self, token_ids: Tensor, cache: dict, t: Tensor) -> tuple[Any, dict]:
        """Replaces the masks of targets by tokens, and predicts the next ones.

        Args:
            token_ids: (R,), decoded token `t` of each target.
            cache: KV cache from `prefill` or the previous step.
            t: index of the token, a scalar integer from 0.

        Returns:
            The logits (R, V) float32 of the next token, and the KV cache for the next step.
        """
        return self._predicted(cache, t, ops.cast(token_ids, "int32"))

    def _predicted(self, cache: dict, t: Tensor, *tokens: Tensor) -> tuple[Any, dict]:
        """Returns the logits (R, V) of a mask behind `tokens`, and the KV cache.

        `tokens` are none, or token `t` (R,). The cache also holds the mask, in the place of the
        next token, which will replace it.
        """
        prompt = cache["prompt"]
        ids = ops.stack([*tokens, prompt["mask_ids"]], axis=1)  # (R, 1 or 2)
        positions = (prompt["lengths"] + t)[:, None] + ops.arange(len(tokens) + 1)
        x = self._embed_target(ids, positions)
        x, cache = step_blocks(self.encoder.layer_blocks, x, cache, t)
        return self.logits(x[:, -1:])[:, 0], cache
