"""The Transformer block, and the decoder block with cross-attention.

Shapes: `B` batch, `T` tokens, `S` tokens of another sequence, `H` hidden width, `N` heads, `R`
decoded rows, `P` selected positions.
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.gather import gather_positions
from kbert.layers.normalization import add_and_norm
from kbert.layers.slots import Editable


class Block(Editable):
    """Attention and feed-forward, each with a residual around it.

    The parts are arguments. With four slots for normalisation, post-norm (BERT), pre-norm (GPT-2)
    and sandwich norm share the same two lines; an omitted slot does nothing. Any layer with the
    same call as the part it replaces works, so another attention needs no flag here.

    The chosen edit (see `kbert.layers.slots`) may have up to three callables. `attention` and
    `feed_forward` are applied after the dropout of each part (see `add_and_norm`). The output of
    `parallel`, `(x, bias, training, positions) -> outputs`, is added to the residual of the
    feed-forward part.

    Args:
        attention: layer, `(x, bias, training) -> (outputs, made)`. An encoder returns
            "probabilities" of the dict `made` as its attention, and the whole dict as its
            internals.
        feed_forward: layer, `x -> outputs`.
        dropout: layer on the output of each part, `(x, training) -> x`.
        attention_input_norm: normalisation before the attention.
        attention_norm: normalisation after the residual of the attention.
        feed_forward_input_norm: normalisation before the feed-forward part.
        feed_forward_norm: normalisation after the residual of the feed-forward part.

    Example:
        >>> import numpy as np
        >>> from kbert.layers import Dropout, FeedForward, LayerNorm, SelfAttention
        >>> block = Block(SelfAttention(2), FeedForward(8, activation="gelu"), Dropout(0.1),
        ...               attention_norm=LayerNorm(1e-12), feed_forward_norm=LayerNorm(1e-12))
        >>> x, made = block(np.ones((1, 3, 4), "float32"))
        >>> tuple(x.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def __init__(
        self,
        attention: keras.layers.Layer,
        feed_forward: keras.layers.Layer,
        dropout: keras.layers.Layer,
        *,
        attention_input_norm: keras.layers.Layer | None = None,
        attention_norm: keras.layers.Layer | None = None,
        feed_forward_input_norm: keras.layers.Layer | None = None,
        feed_forward_norm: keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.attention = attention
        self.feed_forward = feed_forward
        self.dropout = dropout
        self.attention_input_norm = attention_input_norm or self._empty_slot()
        self.attention_norm = attention_norm or self._empty_slot()
        self.feed_forward_input_norm = feed_forward_input_norm or self._empty_slot()
        self.feed_forward_norm = feed_forward_norm or self._empty_slot()

    def build(self, input_shape: Shape) -> None:
        self.attention_input_norm.build(input_shape)
        self.attention.build(input_shape)
        self.attention_norm.build(input_shape)
        self.feed_forward_input_norm.build(input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm.build(input_shape)

    # Whether a training step skips the whole block: () -> bool; None = never.
    is_left_out: Callable[[], Tensor] | None = None

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        shared: Any = None,
    ) -> Any:
        """Returns the outputs (B, T, H) for x (B, T, H), and the attention's dict `made` or None.

        `bias` is added to the attention scores. With `positions` (B, P) only those tokens are
        computed and the results have P rows instead of T: for the last block of a model whose other
        outputs are not needed. `position_ids` (B, T) are the positions of the tokens for the
        attention. `shared` is the output of a layer that the attentions of all blocks share.
        """
        options: dict[str, Any] = {}  # passed only if set: custom parts may not accept them
        if position_ids is not None:
            options["position_ids"] = position_ids
        if positions is not None:
            options["positions"] = positions
        if shared is not None:
            options["shared"] = shared
        aside = self._aside(x, bias, training, positions)
        block_input = x
        x, attention = self._attended(
            x, lambda x: self.attention(x, bias, training=training, **options), training, positions
        )
        x = self._forwarded(x, training, *aside)
        if training and self.is_left_out is not None:
            block_input = (
                block_input if positions is None else gather_positions(block_input, positions)
            )
            x = ops.where(self.is_left_out(), ops.cast(block_input, x.dtype), x)
        return x, attention

    @property
    def takes_positions(self) -> bool:
        """Whether both `call` of the block and `call` of its attention accept `positions`."""
        calls = (self.call, self.attention.call)
        return all("positions" in inspect.signature(call).parameters for call in calls)

    def prefill(self, x: Tensor, bias: Tensor) -> tuple[Any, dict[str, Any]]:
        """Like `call` in inference; the second result has "key" and "value" of the attention."""
        x, keys_values = self._attended(x, lambda x: self.attention.prefill(x, bias))
        return self._forwarded(x), keys_values

    def step(
        self,
        x: Tensor,
        prompt: dict[str, Any],
        bias: Tensor,
        decoded: dict[str, Any],
        t: Tensor,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the outputs for one or more tokens of each row, x (R, n, H), and the KV cache.

        Arguments, shapes and the cache `decoded` are those of `SelfAttention.step`.
        """
        x, decoded = self._attended(
            x, lambda x: self.attention.step(x, prompt, bias, decoded, t, **options)
        )
        return self._forwarded(x), decoded

    def _empty_slot(self) -> keras.layers.Layer:
        # Without the policy it would cast to float32.
        return keras.layers.Identity(dtype=self.dtype_policy)

    def _attended(
        self,
        x: Tensor,
        attend: Callable,
        training: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Returns the output of the attention with its residual, and `attend`'s second result.

        `attend` maps the normalised x (B, T, H) to (outputs, second result). With `positions`
        (B, P) its outputs have P rows, and only these rows of x are added.
        """
        outputs, attention = attend(self.attention_input_norm(x))
        if positions is not None:
            x = gather_positions(x, positions)
        parts = (self.dropout, self.attention_norm, training, self._behind("attention"))
        return add_and_norm(x, outputs, *parts), attention

    def _forwarded(self, x: Tensor, training: bool = False, aside: Tensor | None = None) -> Tensor:
        outputs = self.feed_forward(self.feed_forward_input_norm(x), training=training)
        parts = (self.dropout, self.feed_forward_norm, training, self._behind("feed_forward"))
        return add_and_norm(x if aside is None else x + aside, outputs, *parts)

    def _behind(self, part: str) -> Callable | None:
        return getattr(self.chosen, part, None)

    def _aside(self, x: Tensor, *context: Any) -> tuple[Tensor, ...]:
        """Returns a tuple with the output of the chosen edit's `parallel`; () without one.

        `context` is passed on to `parallel`: bias, training and positions.
        """
        parallel = self._behind("parallel")
        return () if parallel is None else (parallel(x, *context),)


class CrossBlock(Block):
    """A decoder block: cross-attention between self-attention and feed-forward.

    (Vaswani et al. 2017, section 3.1.)

    Args:
        *parts: attention, feed-forward and dropout layers, see `Block`.
        cross_attention: a `kbert.layers.CrossAttention`.
        cross_attention_input_norm: normalisation before the cross-attention.
        cross_attention_norm: normalisation after the residual of the cross-attention.
        **options: keyword arguments of `Block`: the other normalisations, and those of every layer.

    Example:
        >>> import numpy as np
        >>> from kbert.layers import CrossAttention, Dropout, FeedForward, SelfAttention
        >>> block = CrossBlock(SelfAttention(2), FeedForward(8, activation="relu"), Dropout(0.1),
        ...                    cross_attention=CrossAttention(2))
        >>> x, memory = np.ones((1, 3, 4), "float32"), np.ones((1, 5, 4), "float32")
        >>> x, made, cross = block(x, memory)
        >>> tuple(x.shape), tuple(cross["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 5))
    """

    def __init__(
        self,
        *parts: keras.layers.Layer,
        cross_attention: keras.layers.Layer,
        cross_attention_input_norm: keras.layers.Layer | None = None,
        cross_attention_norm: keras.layers.Layer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*parts, **options)
        self.cross_attention = cross_attention
        self.cross_attention_input_norm = cross_attention_input_norm or self._empty_slot()
        self.cross_attention_norm = cross_attention_norm or self._empty_slot()

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.cross_attention_input_norm.build(input_shape)
        self.cross_attention.build(input_shape)
        self.cross_attention_norm.build(input_shape)

    # The signature differs from `Block.call`: there is a second sequence to attend to.
    def call(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        training: bool = False,
        shared: Any = None,
    ) -> Any:
        """Attends to the tokens of x, then to the other sequence.

        Args:
            x: (B, T, H).
            memory: (B, S, H), the other sequence.
            bias: bias of the scores within x, broadcasts to (B, N, T, T).
            memory_bias: bias of the scores between x and memory, broadcasts to (B, N, T, S).
            training: whether dropout is active.
            shared: output of a layer that the self-attentions of all blocks share, or None.

        Returns:
            The outputs (B, T, H), and the dicts of both attentions, with "probabilities"
            (B, N, T, T) over x and (B, N, T, S) over memory.
        """
        options = {} if shared is None else {"shared": shared}
        x, attention = self._attended(
            x, lambda x: self.attention(x, bias, training=training, **options), training
        )
        memory = self.cross_attention.keys_values(memory)
        x, cross = self._crossed(
            x, lambda x: self.cross_attention(x, memory, memory_bias, training=training), training
        )
        return self._forwarded(x, training), attention, cross

    def prefill(  # type: ignore[override]
        self, x: Tensor, bias: Tensor, memory: Tensor, memory_bias: Tensor
    ) -> tuple[Any, dict[str, Any]]:
        """Like `call` in inference, but returns only the outputs and a dict for `step`.

        The dict has "key" and "value" of the self-attention, and under "memory" those of the other
        sequence.
        """
        x, keys_values = self._attended(x, lambda x: self.attention.prefill(x, bias))
        memory = self.cross_attention.keys_values(memory)
        x, _ = self._crossed(x, lambda x: self.cross_attention(x, memory, memory_bias))
        return self._forwarded(x), {**keys_values, "memory": memory}

    def step(  # type: ignore[override]
        self,
        x: Tensor,
        prompt: dict[str, Any],
        bias: Tensor,
        decoded: dict[str, Any],
        t: Tensor,
        memory_bias: Tensor,
        **options: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the outputs for one more token of each row, x (R, 1, H), and the KV cache.

        `prompt` is the dict of `prefill`, and `memory_bias` is added to the scores of the other
        sequence. The other arguments are those of `SelfAttention.step`.
        """
        x, decoded = self._attended(
            x, lambda x: self.attention.step(x, prompt, bias, decoded, t, **options)
        )
        memory = prompt["memory"]
        x, _ = self._crossed(x, lambda x: (self.cross_attention.step(x, memory, memory_bias), None))
        return self._forwarded(x), decoded

    def _crossed(self, x: Tensor, attend: Callable, training: bool = False) -> Tensor:
        """Returns the output of the cross-attention with its residual, and a second result.

        `attend` maps the normalised x (B, T, H) to (outputs (B, T, H), second result).
        """
        outputs, attention = attend(self.cross_attention_input_norm(x))
        x = add_and_norm(x, outputs, self.dropout, self.cross_attention_norm, training)
        return x, attention
