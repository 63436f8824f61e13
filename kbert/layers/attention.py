"""Multi-head attention: of a sequence to itself, or to another sequence.

Decoding processes one token at a time and caches the keys and values of the tokens before it. The
KV cache has two parts. `prompt` contains the keys and values of the prompt, which no step changes.
`decoded` contains those of the tokens decoded since, and has room for the maximum number of them.

Shapes: `B` batch, `T` tokens, `S` tokens of another sequence, `H` hidden width, `N` heads, `D`
width of a head (`H / N`, or its value before heads were pruned), `R` decoded rows, `P` tokens of a
prompt (or selected positions), `G` new tokens, `M` blocks of `W` tokens.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Shape, Tensor, Tensors
from kbert.layers import chunked_attention as chunks, fused
from kbert.layers.bias import cut_blocks, decoded_bias, neighbour_blocks, prompt_bias
from kbert.layers.chunked_attention import ScoreBias, Scores
from kbert.layers.dense import Dense, kernel_initializer
from kbert.layers.dropout import Dropout
from kbert.layers.gather import gather_rows
from kbert.layers.positions import alibi_bias, rotate, rotation
from kbert.layers.slots import Editable


class _Attention(Editable):
    """Base of both attentions: heads, dropout and the dense output layer.

    Args:
        num_heads: number of heads; must divide the width of the input if that sets their width.
        dropout: dropout rate on the probabilities.
        initializer_range: standard deviation of the initial kernels; None = Glorot's uniform
            distribution.
        use_bias: whether the dense layers have biases.
        head_size: width of a head, D; None = `H / num_heads`.
        scaled: whether scores are divided by the root of the head's width. If not, the initial
            queries are (as in T5).
        max_length: most tokens of a sequence; None = any number. A graph for sequences of any
            length only has chunks if there may be enough tokens (`chunk_attention_from`).
    """

    def __init__(
        self,
        num_heads: int,
        *,
        dropout: float = 0.0,
        initializer_range: float | None = 0.02,
        use_bias: bool = True,
        head_size: int | None = None,
        scaled: bool = True,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.initializer_range = initializer_range
        self.use_bias = use_bias
        self.given_head_size = head_size
        self.scaled = scaled
        self.max_length = max_length
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def _add_dense(self, units: int, input_shape: Shape, name: str, queries: int = 0) -> Dense:
        """Returns a built dense layer with `units` outputs for inputs of `input_shape`.

        The first `queries` of the outputs are queries.
        """
        initializer = None
        if queries and not self.scaled:
            factor = 1.0 / math.sqrt(self.head_size)
            initializer = _SmallerColumns(self.initializer_range, queries, factor)
        dense = Dense(
            units,
            initializer_range=self.initializer_range,
            initializer=initializer,
            use_bias=self.use_bias,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(input_shape)
        return dense

    def _scores_in_loop(self, query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
        """Returns scores plus bias for decoding: (B, N, T, S) float32, not normalised yet.

        `query` is (B, N, T, D), `key` (B, N, S, D); the bias broadcasts to the scores or is None.
        Scales the scores, not the query: with a scaled query TensorFlow 2.21 on a CPU fuses scale,
        product and bias (oneDNN's remapper). A loop with a bias from outside then ends without a
        result.
        """
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # (B, N, T, S)
        return _biased(ops.cast(scores, "float32") * self._scale, bias)

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(self.head_size) if self.scaled else 1.0

    def _normalised(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] == 1:  # softmax over a single token: Keras would warn
            return ops.ones_like(scores, dtype=self.compute_dtype)
        return ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, training: bool
    ) -> tuple[Tensor, Tensors]:
        """Returns outputs (B, T, H), and a dict of "probabilities" and "scores" (B, N, T, S).

        `query` is (B, N, T, D), `key` and `value` are (B, N, S, D); the bias broadcasts to the
        scores or is None. Probabilities are those before dropout, scores those without the bias.
        """
        heads, internals = self._weighed(
            self._scaled_scores(query, key), value, ScoreBias(bias), training
        )
        return self.output_dense(self._merge_heads(heads)), internals

    def _scaled_scores(self, query: Tensor, key: Tensor) -> Scores:
        """Returns the products of queries (B, N, P, D) and keys (B, N, S, D), scaled."""
        # Scaling the query is cheaper than scaling the scores.
        scaled = query * ops.cast(self._scale, query.dtype)
        return Scores(
            lambda start, rows, tensors: ops.matmul(rows[0], tensors[0]),
            [scaled],
            [ops.transpose(key, (0, 1, 3, 2))],
        )

    def _weighed(
        self,
        scores: Scores,
        value: Tensor,
        bias: ScoreBias,
        training: bool,
        is_in_blocks: bool = False,
    ) -> tuple[Tensor, Tensors]:
        """Returns the heads' outputs (B, N, T, D), and the dict of `_attend`.

        If the scores are computed in chunks, the outputs do not come from the dict, and a graph
        computes the dict only if it is used. Blocks of a window (`is_in_blocks`) whose size is
        unknown are short.
        """
        length = scores.rows[0].shape[2]
        if not training or not scores.has_chunks or (is_in_blocks and length is None):
            choice: bool | None = False
        else:
            choice = chunks.is_in_chunks(length, self.max_length)
        weights, internals = self._kept(scores.whole(), bias.of(), training and choice is False)
        if choice is False:
            return ops.matmul(weights, value), internals
        rate, seed = self.dropout.rate, self.dropout.next_seed()

        def in_chunks() -> Tensor:
            return chunks.attention_in_chunks(scores, value, bias, rate=rate, seed=seed)

        if choice:
            return in_chunks(), internals
        import tensorflow as tf

        # A batch of unknown length, as `fit` pads them: the graph contains both computations.
        # No `tf.cond`: XLA compiles both of its branches, and their tensors have other shapes.
        is_long = tf.shape(scores.rows[0])[2] >= chunks.Threshold.tokens

        def whole() -> Tensor:
            weights, _ = self._kept(scores.whole(), bias.of(), training, seed)
            return ops.matmul(weights, value)

        return tf.switch_case(tf.cast(is_long, tf.int32), [whole, in_chunks]), internals

    def _kept(
        self, products: Tensor, bias: Tensor | None, training: bool, seed: Tensor | None = None
    ) -> tuple[Tensor, Tensors]:
        """Returns the probabilities after dropout, and the dict that `_attend` returns.

        `products` (B, N, T, S) are the scores without bias in the compute dtype; the dict has them
        as float32. `seed` is that of the dropout mask; None = the next one.
        """
        scores = ops.cast(products, "float32")
        probabilities = self._normalised(_biased(scores, bias))
        if fused.fuses(self.num_heads * self.head_size, training):
            # The graph drops the plain computation above unless its results are used.
            seed = self.dropout.next_seed() if seed is None else seed
            weights = fused.attention_probabilities(
                products, bias, rate=self.dropout.rate, seed=seed
            )
        elif seed is None:
            weights = self.dropout(probabilities, training=training)
        else:
            weights = self.dropout.drop(probabilities, seed)
        return weights, {"probabilities": probabilities, "scores": scores}

    def _outputs(self, probabilities: Tensor, value: Tensor) -> Tensor:
        return self.output_dense(self._merge_heads(ops.matmul(probabilities, value)))

    def _split_heads(self, x: Tensor) -> Tensor:
        batch, length, _ = ops.shape(x)
        x = ops.reshape(x, (batch, length, self.num_heads, self.head_size))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, N, T, D)

    def _merge_heads(self, x: Tensor) -> Tensor:
        batch, _, length, _ = ops.shape(x)
        x = ops.transpose(x, (0, 2, 1, 3))  # (B, T, N, D)
        return ops.reshape(x, (batch, length, self.num_heads * self.head_size))


class SelfAttention(_Attention):
    """Every token attends to every token (Vaswani et al. 2017, section 3.2).

    Query, key and value come from one product. Scores are normalised in float32 under any compute
    dtype. A bias masks positions (see `kbert.layers.bias`); a bias in blocks limits each token to
    its own block and the two neighbours. The chosen edit, if any (see `kbert.layers.slots`), has a
    method `keys_values` that returns keys and values (1, N, G, D), to which every token also
    attends.

    Args:
        num_heads: number of heads; must divide the width of the input if `head_size` is None.
        dropout: dropout rate on the probabilities.
        initializer_range: standard deviation of the initial kernels; None = Glorot's uniform
            distribution.
        use_bias: whether the dense layers have biases.
        rotary_base: base of rotary positions, see `rotation`; None = no rotary positions.
        alibi: whether scores fall off with the distance, see `alibi_slopes`.
        num_key_value_heads: number of key and value heads, each shared by
            `num_heads / num_key_value_heads` neighbouring query heads (Ainslie et al. 2023,
            https://arxiv.org/abs/2305.13245); None = `num_heads`.
        **options: `head_size` and `scaled` of both attentions: the width of a head, None =
            `H / num_heads`; and whether scores are divided by the root of that width.

    Example:
        >>> outputs, made = SelfAttention(2)(ops.ones((1, 3, 4)))
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 3))
    """

    def __init__(
        self,
        num_heads: int,
        *,
        rotary_base: float | None = None,
        alibi: bool = False,
        num_key_value_heads: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_heads, **options)
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.rotary_base = rotary_base
        self.alibi = alibi

    def build(self, input_shape: Shape) -> None:
        hidden_size = input_shape[-1]
        self.head_size = self.given_head_size or hidden_size // self.num_heads
        queries = self.num_heads * self.head_size
        keys = self.num_key_value_heads * self.head_size
        self.qkv = self._add_dense(queries + 2 * keys, input_shape, "qkv", queries)
        self.qkv.widths = (queries, keys, keys)
        self.output_dense = self._add_dense(hidden_size, (*input_shape[:-1], queries), "output")

    def call(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        training: bool = False,
        positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        shared: Tensors | None = None,
    ) -> Any:
        """Computes the attention of x to itself.

        Args:
            x: (B, T, H).
            bias: bias added to the scores, broadcasts to (B, N, T, T), see `attention_bias`; or a
                bias in blocks, see `layer_biases`.
            training: whether dropout is active.
            positions: (B, P), the tokens that attend (to all tokens); None = every token. Outputs,
                probabilities, scores and queries then have P rows instead of T. Not with a bias in
                blocks.
            position_ids: (B, T), positions of the tokens, for rotary positions and ALiBi;
                None = 0, 1, 2 ….
            shared: output of the model's shared layer for x, for attentions whose `scores` uses
                it; or None.

        Returns:
            The outputs (B, T, H) and a dict of intermediate results: "probabilities" (B, N, T, T)
            before dropout, "scores" (B, N, T, T), float32 and without the bias, and "query", "key"
            and "value" (B, N, T, D). With a bias in blocks None instead of the dict.
        """
        query, key, value = self._project(x)
        query, key = self._turned(x, query, key, position_ids, training)
        if bias is not None and len(bias.shape) == 5:
            prefix = self._prefix(x)
            outputs = self._attend_in_blocks(
                query, key, value, bias, position_ids, training, prefix
            )
            return outputs, None
        token_positions = self._places(x, position_ids) if self.alibi else None
        return self._attended(
            x, query, key, value, bias, training, positions, shared, token_positions
        )

    def _attended(
        self,
        x: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        training: bool,
        positions: Tensor | None,
        shared: Tensors | None,
        token_positions: Tensor | None = None,
    ) -> Any:
        """Returns the result of `call` for a bias that is not in blocks.

        `query` is (B, N, T, D), `key` and `value` are (B, N, S, D); `x` (B, T, H) only gives the
        shape of the chosen edit's keys. `token_positions` (T,) or (B, T) are those of ALiBi, or
        None. The other arguments are those of `call`.
        """
        query_positions = token_positions
        if positions is not None:
            query, bias = gather_rows(query, positions), gather_rows(bias, positions)
            if token_positions is not None:
                query_positions = _at(token_positions, positions)
        scores = self.scores(query, key, positions, shared, training)
        score_bias = ScoreBias(bias, query_positions, token_positions, self.num_heads)
        values, prefix = value, self._prefix(x)
        if prefix is not None:  # after the tokens
            scores = scores.joined(self._scaled_scores(query, prefix[0]))
            values = ops.concatenate([value, prefix[1]], axis=2)
            score_bias = score_bias._replace(more=ops.shape(prefix[0])[2])
        heads, internals = self._weighed(scores, values, score_bias, training)
        if prefix is not None:
            internals = {name: part[..., : ops.shape(key)[2]] for name, part in internals.items()}
        outputs = self.output_dense(self._merge_heads(heads))
        return outputs, {**internals, "query": query, "key": key, "value": value}

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        positions: Tensor | None,
        shared: Tensors | None,
        training: bool,
    ) -> Scores:
        """Returns the scores without the bias; other kinds of attention override this method.

        Args:
            query: (B, N, P, D), queries of the tokens that attend.
            key: (B, N, S, D).
            positions: (B, P), the tokens that attend; None = all.
            shared: output of the model's shared layer, or None.
            training: whether dropout is active.
        """
        return self._scaled_scores(query, key)

    def _prefix(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Returns keys and values (B, N, G, D) of the chosen edit, and their bias (B, 1, T, G).

        B and T are those of x (B, T, H), and the bias is 0. Returns None without a chosen edit.
        """
        chosen = self.chosen
        if chosen is None:
            return None
        batch, length, _ = ops.shape(x)
        key, value = (
            ops.broadcast_to(ops.cast(x, self.compute_dtype), (batch, *x.shape[1:]))
            for x in chosen.keys_values()
        )
        return key, value, ops.zeros((batch, 1, length, key.shape[2]))

    def _attend_in_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        position_ids: Tensor | None,
        training: bool,
        more: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Returns outputs (B, T, H) for a bias in blocks, (B or 1, M, 1, W, 3 W).

        `query`, `key` and `value` are (B, N, T, D); their blocks become a batch. `more` contains
        keys and values (B, N, G, D) to which the tokens of every block also attend, and the bias of
        their scores, (B, 1, T, G).
        """
        batch, _, length, _ = ops.shape(query)
        number, size = ops.shape(bias)[1], ops.shape(bias)[3]

        def folded(x: Tensor) -> Tensor:  # (B, N, M, W or 3 W, D) -> (B M, N, W or 3 W, D)
            x = ops.transpose(x, (0, 2, 1, 3, 4))
            return ops.reshape(x, (-1, self.num_heads, *ops.shape(x)[3:]))

        if self.alibi:
            token_positions = ops.reshape(self._places(query[:, 0], position_ids), (-1, length, 1))
            queries, keys = (
                cut_blocks(token_positions, size),
                neighbour_blocks(token_positions, size),
            )
            falls = alibi_bias(queries[..., 0], keys[..., 0], self.num_heads)
            bias = falls + ops.cast(bias, "float32")  # Keras casts arguments to the compute dtype
        bias = ops.broadcast_to(bias, (batch, *ops.shape(bias)[1:]))
        keys, values = neighbour_blocks(key, size), neighbour_blocks(value, size)
        if more is not None:
            other_keys, other_values, other_bias = more
            keys, values = _with_rows(keys, other_keys), _with_rows(values, other_values)
            other_bias = ops.transpose(cut_blocks(other_bias, size), (0, 2, 1, 3, 4))
            of_each_head = (*ops.shape(bias)[:-1], ops.shape(other_bias)[-1])
            other_bias = ops.broadcast_to(ops.cast(other_bias, bias.dtype), of_each_head)
            bias = ops.concatenate([bias, other_bias], axis=-1)
        heads, _ = self._weighed(
            self._scaled_scores(folded(cut_blocks(query, size)), folded(keys)),
            folded(values),
            ScoreBias(ops.reshape(bias, (-1, *ops.shape(bias)[2:]))),
            training,
            is_in_blocks=True,
        )
        outputs = self.output_dense(self._merge_heads(heads))
        return ops.reshape(outputs, (batch, number * size, -1))[:, :length]

    def _turned(
        self,
        x: Tensor,
        query: Tensor,
        key: Tensor,
        position_ids: Tensor | None,
        training: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns query and key (B, N, T, D), rotated if the layer has rotary positions.

        `position_ids` are (B, T); None = 0, 1, 2 … for the T tokens of x (B, T, H).
        """
        if self.rotary_base is None:
            return query, key
        cos, sin = rotation(self._places(x, position_ids), self.head_size, self.rotary_base)
        return rotate(query, cos, sin, training), rotate(key, cos, sin, training)

    def _places(self, x: Tensor, position_ids: Tensor | None) -> Tensor:
        """Returns the positions of the tokens of x (B, T, H).

        These are `position_ids` (B, T) or, for None, 0, 1, 2 … (T,).
        """
        return ops.arange(ops.shape(x)[1]) if position_ids is None else position_ids

    def prefill(self, x: Tensor, bias: Tensor) -> tuple[Any, dict[str, Any]]:
        """Like `call` in inference, but the dict contains only "key" and "value" (B, N, T, D).

        It applies neither ALiBi nor the keys and values of the chosen edit.
        """
        query, key, value = self._project(x)
        query, key = self._turned(x, query, key, None)
        outputs, *_ = self._attend(query, key, value, bias, training=False)
        return outputs, {"key": key, "value": value}

    def empty_cache(self, prompt: dict[str, Any], max_new_tokens: int) -> dict[str, Any]:
        """Returns an empty KV cache for the tokens decoded after `prompt`, the dict of `prefill`.

        It has "key" and "value", zeros of the shape (R, N, max_new_tokens, D).
        """
        rows = ops.shape(prompt["key"])[0]
        shape = (rows, self.num_heads, max_new_tokens, self.head_size)
        return {name: ops.zeros(shape, dtype=self.compute_dtype) for name in ("key", "value")}

    def step(
        self,
        x: Tensor,
        prompt: dict[str, Any],
        bias: Tensor,
        decoded: dict[str, Any],
        t: Tensor,
        position_ids: Tensor | None = None,
        window: int | None = None,
        new_bias: Tensor | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Computes the attention of one more token of each row, or of several.

        Args:
            x: (R, n, H), decoded token `t`, and the n - 1 tokens after it.
            prompt: "key" and "value" (R, N, P, D) from `prefill`.
            bias: (R, 1, 1, P), added to the scores of the prompt's keys.
            decoded: "key" and "value" (R, N, G, D), filled before token `t`.
            t: index of the first of these tokens, a scalar integer.
            position_ids: (R, n), positions of the tokens, for rotary positions and windows; with a
                window n must be 1.
            window: number of last tokens attended to, including the token itself; None = all.
            new_bias: bias added to the scores of the decoded keys, broadcasts to (R, N, n, G); or
                None.

        Returns:
            The outputs (R, n, H), and `decoded` with the keys and values of the n tokens.
        """
        query, key, value = self._project(x)  # (R, N, n, D)
        query, key = self._turned(x, query, key, position_ids)
        if window is not None:
            bias = prompt_bias(bias, position_ids, window)
        length = ops.shape(decoded["key"])[2]  # unknown in a graph for several limits
        for n in range(x.shape[1]):
            is_current = ops.equal(ops.arange(length), t + n)[None, None, :, None]
            decoded = {
                "key": ops.where(is_current, key[:, :, n : n + 1], decoded["key"]),
                "value": ops.where(is_current, value[:, :, n : n + 1], decoded["value"]),
            }
        seen = decoded_bias(length, t, window, x.shape[1])
        seen = seen if new_bias is None else seen + ops.cast(new_bias, seen.dtype)
        scores = ops.concatenate(
            [
                self._scores_in_loop(query, prompt["key"], bias),
                self._scores_in_loop(query, decoded["key"], seen),
            ],
            axis=-1,
        )  # (R, N, n, P + G)
        probabilities = self._normalised(scores)
        # Sliced from the end, because P may be unknown in a graph.
        outputs = ops.matmul(probabilities[..., :-length], prompt["value"])
        outputs = outputs + ops.matmul(probabilities[..., -length:], decoded["value"])
        return self.output_dense(self._merge_heads(outputs)), decoded

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, (B, N, T, D) each, of x (B, T, H).

        Keys and values with fewer heads than queries are repeated.
        """
        batch, length, _ = ops.shape(x)
        keys = self.num_key_value_heads
        if keys < self.num_heads:
            number = self.num_heads + 2 * keys
            heads = ops.reshape(self.qkv(x), (batch, length, number, self.head_size))
            heads = ops.transpose(heads, (0, 2, 1, 3))
            query, key, value = ops.split(heads, [self.num_heads, self.num_heads + keys], axis=1)
            times = self.num_heads // keys
            return query, ops.repeat(key, times, axis=1), ops.repeat(value, times, axis=1)
        heads = ops.reshape(self.qkv(x), (batch, length, 3, self.num_heads, self.head_size))
        # One transposition for all three instead of a split and three transpositions.
        return tuple(ops.unstack(ops.transpose(heads, (2, 0, 3, 1, 4)), 3))  # each (B, N, T, D)


class CrossAttention(_Attention):
    """Every token attends to every token of another sequence (Vaswani et al. 2017, section 3.2.3).

    Args:
        num_heads: number of heads; must divide the width of the input if `head_size` is None.
        **options: `dropout`, `initializer_range`, `use_bias`, `head_size` and `scaled`, see
            `SelfAttention`.

    Example:
        >>> layer = CrossAttention(2)
        >>> layer.build((None, None, 4))
        >>> memory = layer.keys_values(ops.ones((1, 5, 4)))
        >>> outputs, made = layer(ops.ones((1, 3, 4)), memory)
        >>> tuple(outputs.shape), tuple(made["probabilities"].shape)
        ((1, 3, 4), (1, 2, 3, 5))
    """

    def build(self, input_shape: Shape) -> None:
        hidden_size = input_shape[-1]
        self.head_size = self.given_head_size or hidden_size // self.num_heads
        width = self.num_heads * self.head_size
        self.query = self._add_dense(width, input_shape, "query", width)
        self.key_value = self._add_dense(2 * width, input_shape, "key_value")
        self.output_dense = self._add_dense(hidden_size, (*input_shape[:-1], width), "output")

    def keys_values(self, memory: Tensor) -> dict[str, Any]:
        """Returns "key" and "value" (B, N, S, D) of the other sequence, `memory` (B, S, H)."""
        key, value = ops.split(self.key_value(memory), 2, axis=-1)
        return {"key": self._split_heads(key), "value": self._split_heads(value)}

    def call(
        self, x: Tensor, memory: Tensor, bias: Tensor | None = None, training: bool = False
    ) -> Any:
        """Computes the attention of x to the other sequence.

        Args:
            x: (B, T, H).
            memory: keys and values of the other sequence, from `keys_values`.
            bias: bias added to the scores; broadcasts to (B, N, T, S).
            training: whether dropout is active.

        Returns:
            The outputs (B, T, H) and a dict: "probabilities" (B, N, T, S) before dropout, and
            "scores" (B, N, T, S), float32 and without the bias.
        """
        query = self._split_heads(self.query(x))
        return self._attend(query, memory["key"], memory["value"], bias, training)

    def step(self, x: Tensor, memory: dict[str, Any], bias: Tensor) -> Tensor:
        """Returns the outputs (R, 1, H) for one more token of each row, x (R, 1, H).

        `memory` comes from `keys_values`, for R rows. The bias is added to the scores and
        broadcasts to (R, N, 1, S).
        """
        query = self._split_heads(self.query(x))
        probabilities = self._normalised(self._scores_in_loop(query, memory["key"], bias))
        return self._outputs(probabilities, memory["value"])


class _SmallerColumns(keras.initializers.Initializer):
    """Initialises a kernel by `kernel_initializer(sigma)`, its first `columns` times `factor`."""

    def __init__(self, sigma: float | None, columns: int, factor: float) -> None:
        self.sigma = sigma
        self.columns = columns
        self.factor = factor

    def __call__(self, shape: Shape, dtype: Any = None) -> Tensor:
        kernel = kernel_initializer(self.sigma)(shape, dtype)
        smaller = np.where(np.arange(shape[-1]) < self.columns, self.factor, 1.0)
        return kernel * ops.cast(smaller, kernel.dtype)


def _at(token_positions: Tensor, positions: Tensor) -> Tensor:
    """Returns the entries (B, P) of `token_positions`, (T,) or (B, T), at `positions` (B, P)."""
    if len(token_positions.shape) == 1:
        return ops.take(token_positions, positions)
    return ops.take_along_axis(token_positions, ops.cast(positions, "int32"), axis=1)


def _with_rows(blocks: Tensor, rows: Tensor) -> Tensor:
    """Returns blocks (B, N, M, S, D) with the same `rows` (B, N, G, D) appended to each.

    The result is (B, N, M, S + G, D).
    """
    batch, heads, number, _, width = ops.shape(blocks)
    shape = (batch, heads, number, ops.shape(rows)[2], width)
    return ops.concatenate([blocks, ops.broadcast_to(rows[:, :, None], shape)], axis=-2)


def _biased(scores: Tensor, bias: Tensor) -> Tensor:
    """Returns scores (B, N, T, S) plus an attention bias that broadcasts; None = no bias."""
    if bias is None:
        return scores
    bias = ops.cast(bias, "float32")
    if bias.shape[0] == 1 and bias.shape[-2] != 1:
        # One bias per row: TensorFlow 2.21 on a CPU fuses product and bias (oneDNN's remapper), and
        # then adds a (T, T) shared by the batch 500 times slower: 1.1 s for 16 rows of 128 tokens.
        bias = bias + ops.zeros((ops.shape(scores)[0], 1, 1, 1))
    return scores + bias
