"""Biases added to attention scores to mask tokens.

If a sequence is much longer than an attention window, the bias of the window is in blocks. The
sequence is split into blocks of half a window, and the tokens of a block attend to the block and
its two neighbours. So time and memory per token grow with the window, not with the length.

Shapes: `B` batch, `T` tokens, `M` blocks of `W` tokens.
"""

from typing import Any

from keras import ops

from kbert.core.types import Tensor

# Far below any score: exp(-3e4) is 0 in float32. The sum of two is still finite in float16, to
# which Keras may cast the bias between layers, so a row of padding only stays free of NaN.
PENALTY = 3e4


def example_bias(example_ids: Tensor) -> Tensor:
    """Returns the attention bias that separates the examples of a packed row.

    Args:
        example_ids: (B, T), 0 for padding, the same number for the tokens of an example.

    Returns:
        (B, 1, T, T) float32: 0 between tokens of the same example, -30,000 elsewhere. Padding
        attends to padding, so that no row of scores is masked entirely.

    Example:
        >>> ops.convert_to_numpy(example_bias(ops.array([[1, 1, 2]])))[0, 0].tolist()
        [[0.0, 0.0, -30000.0], [0.0, 0.0, -30000.0], [-30000.0, -30000.0, 0.0]]
    """
    return mask_bias(example_ids[:, None, None, :] == example_ids[:, None, :, None])


def attention_bias(padding_mask: Tensor) -> Tensor:
    """Returns the attention bias that masks padding.

    Args:
        padding_mask: (B, T), 1 for a token and 0 for padding; any dtype.

    Returns:
        (B, 1, 1, T) float32: 0 for a token, -30,000 for padding.

    Example:
        >>> ops.convert_to_numpy(attention_bias(ops.array([[1, 0]])))[0, 0, 0].tolist()
        [0.0, -30000.0]
    """
    return mask_bias(padding_mask)[:, None, None, :]


def layer_biases(
    windows: list[int | None],
    length: Tensor,
    padding_mask: Tensor | None = None,
    example_ids: Tensor | None = None,
    *,
    causal: bool = False,
    causal_mask: Tensor | None = None,
    order: Tensor | None = None,
    in_blocks: bool = True,
) -> list[Tensor | None]:
    """Returns the attention bias of each layer; layers with the same window share a tensor.

    Args:
        windows: attention window of each layer, in tokens: `window // 2` on each side of a token;
            None = all tokens.
        length: sequence length, T.
        padding_mask: (B, T), 1 for a token and 0 for padding; or None.
        example_ids: (B, T), 0 for padding, the same number for the tokens of an example; or None.
            They replace the padding mask.
        causal: whether no token attends to later tokens; a window then contains the token itself
            and the `window - 1` tokens before it.
        causal_mask: (B, T), 1 for tokens that do not attend to later tokens, if only some tokens
            are causal; their window still reaches `window // 2` back. Or None.
        order: (B, T) integers: a token attends only to tokens whose number is at most its own. Or
            None.
        in_blocks: whether biases of windows may be in blocks; False = always over whole rows, for
            attention whose scores are returned.

    Returns:
        A bias for each layer, None where all tokens attend to all tokens: (B or 1, 1, T or 1, T),
        or in blocks (B or 1, M, 1, W, 3 W).

    Example:
        >>> whole, local = layer_biases([None, 2], 8)
        >>> whole is None, tuple(local.shape)
        (True, (1, 8, 1, 1, 3))
        >>> local = layer_biases([2], 3, in_blocks=False)[0]
        >>> ops.convert_to_numpy(local == 0).astype(int)[0, 0].tolist()
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
        >>> mixed = layer_biases([None], 3, causal_mask=ops.array([[1, 1, 0]]))[0]
        >>> ops.convert_to_numpy(mixed == 0).astype(int)[0, 0].tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
        >>> ordered = layer_biases([None], 3, order=ops.array([[0, 0, 1]]))[0]
        >>> ops.convert_to_numpy(ordered == 0).astype(int)[0, 0].tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    biases: dict[int | None, Any] = {}
    for window in windows:
        if window not in biases:
            biases[window] = _layer_bias(
                window, length, padding_mask, example_ids, causal, causal_mask, order, in_blocks
            )
    return [biases[window] for window in windows]


def _layer_bias(
    window: int | None,
    length: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    causal: bool,
    causal_mask: Tensor | None,
    order: Tensor | None,
    in_blocks: bool,
) -> Tensor | None:
    """Returns the attention bias of layers with one window, or None; see `layer_biases`.

    `mask` is its `padding_mask`, `ids` its `example_ids`.
    """
    is_known = isinstance(length, int)
    reach = None
    if window is not None:
        reach = window - 1 if causal else window // 2
    if reach is not None and is_known and length <= reach + 1:
        reach = None
    if reach is None and not causal and causal_mask is None and order is None:
        if ids is not None:
            return example_bias(ids)
        return None if mask is None else attention_bias(mask)
    # In a short sequence, blocks would not have fewer keys.
    if reach is None or not in_blocks or (is_known and length <= 3 * reach):
        positions = ops.arange(length)
        keep = _near(positions[:, None], positions[None], reach, causal)[None, None]
        if causal_mask is not None:
            is_not_later = _near(positions[:, None], positions[None], None, True)[None, None]
            keep = ops.logical_and(
                keep, _or_not_causal(is_not_later, causal_mask[:, None, :, None])
            )
        if order is not None:
            keep = ops.logical_and(keep, order[:, None, None, :] <= order[:, None, :, None])
        if ids is not None:
            keep = ops.logical_and(keep, ids[:, None, None, :] == ids[:, None, :, None])
        elif mask is not None:
            keep = ops.logical_and(keep, (mask > 0)[:, None, None, :])
        return mask_bias(keep)
    size = max(reach, 1)  # a window may contain the token only
    size = size if is_known else ops.minimum(size, length)
    columns = ops.arange(3 * size)[None] - size  # keys, relative to the block's first token
    near = _near(ops.arange(size)[:, None], columns, reach, causal)  # (W, 3 W)
    inside = neighbour_blocks(ops.ones((1, length, 1), "int32"), size)[:, :, None, None, :, 0] > 0
    keep = ops.logical_and(near[None, None, None], inside)
    if causal_mask is not None:
        is_not_later = _near(ops.arange(size)[:, None], columns, None, True)  # (W, 3 W)
        rows = cut_blocks(ops.cast(causal_mask, "int32")[:, :, None], size)  # (B, M, W, 1)
        keep = ops.logical_and(keep, _or_not_causal(is_not_later, rows[:, :, None]))
    if order is not None:
        queries, keys = _of_blocks(order, size)
        keep = ops.logical_and(keep, (keys <= queries)[:, :, None])
    if ids is not None:
        queries, keys = _of_blocks(ids, size)
        keep = ops.logical_and(keep, (queries == keys)[:, :, None])
    elif mask is not None:
        keys = neighbour_blocks(ops.cast(mask > 0, "int32")[:, :, None], size)
        keep = ops.logical_and(keep, keys[:, :, None, None, :, 0] > 0)
    return mask_bias(keep)


def _near(queries: Tensor, keys: Tensor, reach: int | None, causal: bool) -> Tensor:
    """Whether each key is at most `reach` tokens from the query and, if causal, not after it.

    `queries` and `keys` are positions that broadcast to the shape of the result, such as (T, 1) and
    (1, T). `reach` None = any distance.
    """
    distances = queries - keys
    if not causal:
        return ops.ones_like(distances, "bool") if reach is None else ops.abs(distances) <= reach
    return distances >= 0 if reach is None else ops.logical_and(distances >= 0, distances <= reach)


def _or_not_causal(seen: Tensor, causal_mask: Tensor) -> Tensor:
    """Whether a token may attend to a key: causal tokens only where `seen`, others everywhere.

    `causal_mask` is 1 for causal tokens; it broadcasts with `seen`.
    """
    return ops.logical_or(seen, causal_mask == 0)


def _of_blocks(numbers: Tensor, size: int) -> tuple[Any, Any]:
    """Returns the numbers (B, T) of queries (B, M, W, 1) and of keys (B, M, 1, 3 W) in blocks."""
    numbers = ops.cast(numbers, "int32")[:, :, None]
    keys = ops.transpose(neighbour_blocks(numbers, size), (0, 1, 3, 2))
    return cut_blocks(numbers, size), keys


def bias_rows(bias: Tensor | None, rows: Tensor) -> Tensor | None:
    """Returns the bias of the queries `rows` (C,), which broadcasts to (B, N, C, S).

    `bias` broadcasts to (B, N, T, S), or is None.

    Example:
        >>> tuple(bias_rows(ops.ones((2, 1, 5, 5)), ops.array([3, 4])).shape)
        (2, 1, 2, 5)
    """
    if bias is None or bias.shape[2] == 1:
        return bias
    return ops.take(bias, rows, axis=2)


def cut_blocks(x: Tensor, size: Tensor) -> Tensor:
    """Splits (..., T, D) into blocks of `size` tokens, padded with zeros: (..., M, size, D).

    Example:
        >>> tuple(cut_blocks(ops.ones((2, 5, 3)), 2).shape)
        (2, 3, 2, 3)
    """
    *leading, length, width = ops.shape(x)
    number = (length + size - 1) // size
    padding = number * size - length
    if not isinstance(padding, int) or padding:
        x = ops.concatenate([x, ops.zeros((*leading, padding, width), dtype=x.dtype)], axis=-2)
    return ops.reshape(x, (*leading, number, size, width))


def neighbour_blocks(x: Tensor, size: Tensor) -> Tensor:
    """Joins each block of `cut_blocks` with the previous and the next one: (..., M, 3 size, D).

    Example:
        >>> near = neighbour_blocks(ops.reshape(ops.arange(4), (1, 4, 1)) + 1, 2)
        >>> ops.convert_to_numpy(near)[0, :, :, 0].tolist()
        [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 0]]
    """
    blocks = cut_blocks(x, size)
    blocks = ops.pad(blocks, [(0, 0)] * (len(blocks.shape) - 3) + [(1, 1), (0, 0), (0, 0)])
    return ops.concatenate(
        [blocks[..., :-2, :, :], blocks[..., 1:-1, :, :], blocks[..., 2:, :, :]], axis=-2
    )


def causal_bias(length: Tensor) -> Tensor:
    """Returns the bias that masks later tokens: (1, 1, T, T) float32; T is `length`.

    Example:
        >>> ops.convert_to_numpy(causal_bias(2))[0, 0].tolist()
        [[0.0, -30000.0], [0.0, 0.0]]
    """
    positions = ops.arange(length)
    return mask_bias(positions[None, :] <= positions[:, None])[None, None]


def prompt_bias(bias: Tensor, places: Tensor, window: int | None) -> Tensor:
    """Returns a prompt's bias that also masks keys outside of the window of one later token.

    Args:
        bias: (R, 1, 1, P), padding bias of the prompt.
        places: (R, 1), position of the token.
        window: attention window of the layer, in tokens including the token itself; None = the
            bias is returned unchanged.

    Returns:
        The bias of the prompt's keys, (R, 1, 1, P).

    Example:
        >>> bias = prompt_bias(ops.zeros((1, 1, 1, 3)), ops.array([[4]]), window=3)
        >>> ops.convert_to_numpy(bias)[0, 0, 0].tolist()
        [-30000.0, -30000.0, 0.0]
    """
    if window is None:
        return bias
    near = places[:, None, None] - ops.arange(ops.shape(bias)[3]) < window
    return bias + mask_bias(near)


def decoded_bias(length: int, t: Tensor, window: int | None = None, count: int = 1) -> Tensor:
    """Returns the bias (1, 1, count, length) that masks all but the first t + 1 of `length` tokens.

    `t` is the index of the token that attends, the first of `count` tokens. With a `window`, only
    the last `window` of these t + 1 tokens are attended to.

    Example:
        >>> ops.convert_to_numpy(decoded_bias(3, 1))[0, 0, 0].tolist()
        [0.0, 0.0, -30000.0]
    """
    positions, queries = ops.arange(length)[None], t + ops.arange(count)[:, None]
    keep = positions <= queries
    if window is not None:
        keep = ops.logical_and(keep, queries - positions < window)
    return mask_bias(keep)[None, None]


def mask_bias(keep: Tensor) -> Tensor:
    """Returns the bias of a mask: 0 where `keep` is true (or 1), -30,000 elsewhere; float32.

    Example:
        >>> ops.convert_to_numpy(mask_bias(ops.array([True, False]))).tolist()
        [0.0, -30000.0]
    """
    return (ops.cast(keep, "float32") - 1.0) * PENALTY
