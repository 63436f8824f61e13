"""Global tokens in layers with a window: they attend to all tokens, and all attend to them.

(Beltagy et al. 2020, "Longformer", https://arxiv.org/abs/2004.05150, sections 3.1 and 3.2.) The
task decides which tokens are global, so they are an input of the encoder instead of an option.

Shapes: `B` batch, `T` tokens, `H` hidden width, `N` heads, `D` width of a head, `G` global tokens,
`P` tokens that attend.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import SelfAttention, gather_positions
from kbert.layers.bias import attention_bias, mask_bias
from kbert.layers.gather import gather_rows
from kbert.models.parts import Part


class GlobalPlaces(keras.layers.Layer):
    """Locates the global tokens of each row and computes the biases of attention to them.

    Args:
        windows: windows of the layers, in tokens. A global token within half a window of a token
            is attended to there, and masked in the additional columns.

    Example:
        >>> places = GlobalPlaces([2])
        >>> made = places(ops.ones((1, 4, 8)), global_positions=ops.array([[3, -1]]))
        >>> ops.convert_to_numpy(made["places"])[0, :, 0].tolist()
        [False, False, False, True]
        >>> ops.convert_to_numpy(made["columns_2"] == 0)[0, 0, :, 0].tolist()
        [True, True, False, False]
    """

    def __init__(self, windows: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.windows = windows

    def call(
        self,
        x: Tensor,
        global_positions: Tensor | None = None,
        padding_mask: Tensor | None = None,
        example_ids: Tensor | None = None,
        training: bool = False,
    ) -> Tensors:
        """Computes the tensors that `GlobalAttention` shares over the layers.

        Args:
            x: (B, T, H), of which only T matters.
            global_positions: (B, G) integers, positions of the global tokens. Positions outside of
                the row (such as -1), in padding, or repeated are ignored. None = no global tokens.
            padding_mask: (B, T), 0 for padding; or None.
            example_ids: (B, T) for packed rows, where a global token is global in its own example
                only; or None.
            training: not used.

        Returns:
            An empty dict without positions. Otherwise "positions" (B, G), 0 for ignored ones;
            "places" (B, T, G) bool, whether a token is that global token; "rows" (B, 1, 1 or G, T),
            the bias of global tokens' scores, if anything is masked; and for each window shorter
            than the row "columns_…" (B, 1, T, G), the bias of tokens' scores for global tokens,
            which masks those inside of the token's window.
        """
        if global_positions is None:
            return {}
        positions = ops.cast(global_positions, "int32")
        length, count = ops.shape(x)[1], ops.shape(positions)[1]
        columns = ops.arange(length)
        numbers = ops.arange(count)
        same = positions[:, :, None] == positions[:, None, :]
        repeated = ops.any(ops.logical_and(same, numbers[None] < numbers[:, None]), axis=-1)
        is_global = columns[None, :, None] == positions[:, None, :]  # (B, T, G)
        is_global = ops.logical_and(is_global, ops.logical_not(repeated)[:, None])
        if example_ids is not None:
            ids = ops.cast(example_ids, "int32")[:, :, None]  # (B, T, 1)
            is_global = ops.logical_and(is_global, ids > 0)
            own_ids = ops.sum(ops.cast(is_global, "int32") * ids, axis=1)[:, None]  # (B, 1, G)
            attend = ids == own_ids
            rows = mask_bias(ops.transpose(attend, (0, 2, 1)))[:, None]
        else:
            rows = None if padding_mask is None else attention_bias(padding_mask)
            if padding_mask is not None:
                is_global = ops.logical_and(is_global, (padding_mask > 0)[:, :, None])
            attend = ops.any(is_global, axis=1, keepdims=True)  # (B, 1, G)
        outputs = {"places": is_global}
        is_present = ops.any(is_global, axis=1)
        outputs["positions"] = ops.where(is_present, positions, ops.zeros_like(positions))
        if rows is not None:
            outputs["rows"] = rows
        attend = ops.logical_and(attend, is_present[:, None])
        for window in self.windows:
            reach = window // 2
            if isinstance(length, int) and length <= reach + 1:
                continue
            far = ops.abs(columns[None, :, None] - positions[:, None, :]) > reach
            outputs[f"columns_{window}"] = mask_bias(ops.logical_and(far, attend))[:, None]
        return outputs


class GlobalAttention(SelfAttention):
    """Attention to a window and to the global tokens, which themselves attend to every token.

    A token attends to its window and to the global tokens. A global token attends to all tokens,
    with queries, keys and values of separate projections. Without global tokens the layer equals
    `SelfAttention`. Time and memory grow with T times (window + G).

    Args:
        num_heads: number of heads; divides the input width.
        window: attention window of the layer, in tokens; None = tokens attend to all.
        **options: further arguments of `SelfAttention`.

    Example:
        >>> from kbert.layers.bias import layer_biases
        >>> x = ops.ones((1, 4, 8))
        >>> shared = GlobalPlaces([2])(x, global_positions=ops.array([[0]]))
        >>> bias, = layer_biases([2], 4, in_blocks=False)
        >>> _, made = GlobalAttention(2, window=2)(x, bias, shared=shared)
        >>> ops.convert_to_numpy(made["probabilities"] > 0).astype(int)[0, 0].tolist()
        [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]]
    """

    def __init__(self, num_heads: int, *, window: int | None, **options: Any) -> None:
        super().__init__(num_heads, **options)
        self.window = window

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        width = input_shape[-1]
        self.global_query = self._add_dense(width, input_shape, "global_query")
        self.global_key_value = self._add_dense(2 * width, input_shape, "global_key_value")

    # Has no `position_ids`: positions are in the embeddings.
    def call(  # type: ignore[override]
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        positions: Tensor | None = None,
        shared: Tensors | None = None,
    ) -> Any:
        """Returns outputs (B, P, H), and the dict of `SelfAttention` (None with a bias in blocks).

        Query, key and value in the dict are those of attention in windows.

        Args:
            x: (B, T, H).
            bias: bias of the layer's window, see `kbert.layers.bias.layer_biases`.
            training: whether dropout is active.
            positions: (B, P), positions of the tokens that attend; None = every token.
            shared: output of `GlobalPlaces` for x.
        """
        if not shared:
            return super().call(x, bias, training, positions)
        query, key, value = self._project(x)
        columns, is_global = shared.get(f"columns_{self.window}"), shared["places"]
        global_parts: Any = None
        if columns is not None:
            global_parts = (
                *(gather_rows(part, shared["positions"]) for part in (key, value)),
                columns,
            )
        global_outputs = self._attend_everywhere(x, shared, training)
        if bias is not None and len(bias.shape) == 5:
            outputs = self._attend_in_blocks(query, key, value, bias, None, training, global_parts)
            return _with_global(outputs, global_outputs[0], is_global), None
        keys, values, is_global_row = key, value, is_global
        if positions is not None:
            query, bias, columns = (gather_rows(part, positions) for part in (query, bias, columns))
            is_global_row = gather_positions(is_global, positions)  # (B, P, G)
        if global_parts is not None:
            keys, values = (
                ops.concatenate(pair, axis=2)
                for pair in ((key, global_parts[0]), (value, global_parts[1]))
            )
            rows = (*ops.shape(columns)[:3], ops.shape(bias)[3])
            bias = ops.concatenate([ops.broadcast_to(bias, rows), columns], axis=3)
        outputs, extended = self._attend(query, keys, values, bias, training)
        outputs = _with_global(outputs, global_outputs[0], is_global_row)
        internals = {name: part[..., : ops.shape(x)[1]] for name, part in extended.items()}
        if global_parts is not None:  # moves them to the positions of the global tokens
            columns = extended["probabilities"][..., ops.shape(x)[1] :]
            one_hot = ops.cast(ops.transpose(is_global, (0, 2, 1)), columns.dtype)[:, None]
            # Not `+=`: PyTorch would overwrite a tensor that gradients need.
            internals["probabilities"] = internals["probabilities"] + ops.matmul(columns, one_hot)
        for name, of_global in global_outputs[1].items():
            internals[name] = _with_global(internals[name], of_global, is_global_row[:, None])
        return outputs, {**internals, "query": query, "key": key, "value": value}

    def _attend_everywhere(self, x: Tensor, shared: Tensors, training: bool) -> Any:
        """Computes the attention of the global tokens to all tokens of x (B, T, H).

        Returns their outputs (B, G, H), and a dict of probabilities and scores (B, N, G, T).
        `shared` is the output of `GlobalPlaces` for x.
        """
        rows = gather_positions(x, shared["positions"])  # (B, G, H)
        query = self._split_heads(self.global_query(rows))
        key, value = ops.split(self.global_key_value(x), 2, axis=-1)
        key, value = self._split_heads(key), self._split_heads(value)
        return self._attend(query, key, value, shared.get("rows"), training)


class GlobalTokens(Part):
    """Longformer's global tokens, with separate projections.

    The encoder's input "global_positions" (B, G) has their positions in each row, -1 = none. Tasks
    set it: [CLS] for heads that read it, the question in a `QuestionAnswerer`, the choice in a
    `MultipleChoice`. Without it every token attends to its window only.

    Example:
        >>> import kbert, numpy as np
        >>> kbert.family("allenai/longformer-base-4096").part
        {'name': 'global_tokens'}
        >>> config = kbert.EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16,
        ...                              attention_pattern=(2,), part={"name": "global_tokens"})
        >>> encoder = kbert.Encoder(config)
        >>> inputs = {"token_ids": np.ones((1, 6), "int32"), "global_positions": np.array([[0]])}
        >>> attention, = encoder(inputs, return_attention=True)["attention"]
        >>> (ops.convert_to_numpy(attention)[0, 0] > 0).sum(-1).tolist()
        [6, 3, 4, 4, 4, 3]
    """

    kind = "global_tokens"
    takes_causal_mask = False
    inputs = ("global_positions", "padding_mask", "example_ids")

    def check_config(self, config: EncoderConfig) -> None:
        self.check_ungrouped(config)
        if config.positions_in_attention:
            raise ValueError(
                "`positions` must be 'learned', 'sinusoidal' or 'none' with global tokens, whose "
                f"projections do not support distances. Received: positions={config.positions!r}"
            )
        pattern = config.attention_pattern
        if set(pattern) <= {GLOBAL}:
            raise ValueError(
                "`attention_pattern` must have a window: only layers with windows have global "
                f"tokens. Received: attention_pattern={pattern}"
            )
        if config.num_blocks < config.num_layers and len(set(pattern)) > 1:
            raise ValueError(
                "`attention_pattern` must have one window only if layers with global tokens share "
                f"weights. Received: attention_pattern={pattern}, {config.num_blocks} blocks of "
                f"{config.num_layers} layers"
            )

    def count_parameters(self, config: EncoderConfig) -> int:
        return 3 * config.num_blocks * config.count_dense(config.hidden_size, config.hidden_size)

    def kernels(self, config: EncoderConfig, layer: int) -> list[tuple[int, int]]:
        hidden = config.hidden_size
        return [(hidden, 2 * hidden), (hidden, hidden), *super().kernels(config, layer)]

    def make_shared(self, config: EncoderConfig, **kwargs: Any) -> keras.layers.Layer:
        windows = {config.window(layer) for layer in range(config.num_layers)}
        return GlobalPlaces(sorted(window for window in windows if window is not None), **kwargs)

    def make_attention(
        self, config: EncoderConfig, *, layer: int, **kwargs: Any
    ) -> keras.layers.Layer:
        return GlobalAttention(
            config.num_heads,
            window=config.window(layer),
            dropout=config.attention_dropout,
            max_length=config.max_positions,
            initializer_range=config.initializer_range,
            use_bias=config.has_bias("attention"),
            **kwargs,
        )


def _with_global(x: Tensor, of_global: Tensor, places: Tensor) -> Tensor:
    """Replaces the rows of global tokens in x.

    Args:
        x: (…, T, S), a row for each token.
        of_global: (…, G, S), the new rows.
        places: (…, T, G) bool, whether a token is that global token.
    """
    one_hot = ops.cast(places, of_global.dtype)
    return ops.where(ops.any(places, axis=-1, keepdims=True), ops.matmul(one_hot, of_global), x)
