"""Biases added to attention scores to mask tokens.

Attention within a window has its bias in blocks where a sequence is much longer than the window:
the sequence is cut into blocks of half a window, and the tokens of a block attend to the block and
its two neighbours. So time and memory grow with the window, not with the square of the length.

Shapes: `B` batch, `T` tokens, `M` blocks of `W` tokens.
"""

from typing import Any

from keras import ops

from kbert.core.types import Tensor

# Far below any score: exp(-3e4) is 0 in float32. Two of them are finite in float16 too, to which
# Keras may cast the bias between layers: a row of nothing but padding stays free of NaN.
PENALTY = 3e4


def example_bias(example_ids: Tensor) -> Tensor:
    """What is added to attention scores so that the examples of a packed row stay apart.

    Args:
        example_ids: (B, T), 0 for padding, the same number for the tokens of an example.

    Returns:
        (B, 1, T, T) float32: 0 between tokens of one example (and within the padding, so that no
        row of it is without attention), -30,000 elsewhere.

    Example:
        >>> ops.convert_to_numpy(example_bias(ops.array([[1, 1, 2]])))[0, 0].tolist()
        [[0.0, 0.0, -30000.0], [0.0, 0.0, -30000.0], [-30000.0, -30000.0, 0.0]]
    """
    return mask_bias(example_ids[:, None, None, :] == example_ids[:, None, :, None])


def attention_bias(padding_mask: Tensor) -> Tensor:
    """What is added to attention scores so that padding gets no attention.

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
    in_blocks: bool = True,
) -> list[Tensor | None]:
    """The bias of each layer; layers of one window have the same tensor.

    Args:
        windows: of the layers, the tokens around each that it attends to; None = all.
        length: T.
        padding_mask: (B, T), see `attention_bias`; or None.
        example_ids: (B, T), see `example_bias`; or None. They take the place of the mask.
        causal: whether tokens attend to none behind them; a window is then of the tokens before,
            the token itself among them.
        causal_mask: (B, T), 1 for a token that attends to none behind it, where not all do; a
            window stays as wide before it. Or None.
        in_blocks: False gives biases for whole rows of scores, which somebody reads.

    Returns:
        A bias for each, None where all tokens attend to all: (B or 1, 1, T or 1, T); in blocks
        (B or 1, M, 1, W, 3 W).

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
    """
    found: dict[int | None, Any] = {}
    for window in windows:
        if window not in found:
            found[window] = _layer_bias(
                window, length, padding_mask, example_ids, causal, causal_mask, in_blocks
            )
    return [found[window] for window in windows]


def _layer_bias(
    window: int | None,
    length: Tensor,
    mask: Tensor | None,
    ids: Tensor | None,
    causal: bool,
    causal_mask: Tensor | None,
    in_blocks: bool,
) -> Tensor | None:
    known = isinstance(length, int)
    reach = None
    if window is not None:
        reach = window - 1 if causal else window // 2
    if reach is not None and known and length <= reach + 1:
        reach = None
    if reach is None and not causal and causal_mask is None:
        if ids is not None:
            return example_bias(ids)
        return None if mask is None else attention_bias(mask)
    # Not fewer keys in blocks where a row is short.
    if reach is None or not in_blocks or (known and length <= 3 * reach):
        places = ops.arange(length)
        keep = _near(places[:, None], places[None], reach, causal)[None, None]
        if causal_mask is not None:
            seen = _near(places[:, None], places[None], None, True)[None, None]
            keep = ops.logical_and(keep, _or_not_causal(seen, causal_mask[:, None, :, None]))
        if ids is not None:
            keep = ops.logical_and(keep, ids[:, None, None, :] == ids[:, None, :, None])
        elif mask is not None:
            keep = ops.logical_and(keep, (mask > 0)[:, None, None, :])
        return mask_bias(keep)
    size = max(reach, 1)  # a window may be the token itself
    size = size if known else ops.minimum(size, length)
    columns = ops.arange(3 * size)[None] - size  # of the keys, from the block's first token on
    near = _near(ops.arange(size)[:, None], columns, reach, causal)  # (W, 3 W)
    inside = neighbour_blocks(ops.ones((1, length, 1), "int32"), size)[:, :, None, None, :, 0] > 0
    keep = ops.logical_and(near[None, None, None], inside)
    if causal_mask is not None:
        seen = _near(ops.arange(size)[:, None], columns, None, True)  # (W, 3 W)
        rows = cut_blocks(ops.cast(causal_mask, "int32")[:, :, None], size)  # (B, M, W, 1)
        keep = ops.logical_and(keep, _or_not_causal(seen, rows[:, :, None]))
    if ids is not None:
        ids = ops.cast(ids, "int32")[:, :, None]
        queries, keys = cut_blocks(ids, size), neighbour_blocks(ids, size)
        same = queries == ops.transpose(keys, (0, 1, 3, 2))  # (B, M, W, 3 W)
        keep = ops.logical_and(keep, same[:, :, None])
    elif mask is not None:
        keys = neighbour_blocks(ops.cast(mask > 0, "int32")[:, :, None], size)
        keep = ops.logical_and(keep, keys[:, :, None, None, :, 0] > 0)
    return mask_bias(keep)


def _near(queries: Tensor, keys: Tensor, reach: int | None, causal: bool) -> Tensor:
    """Whether places lie no further apart than that, and none behind where it is causal."""
    before = queries - keys
    if not causal:
        return ops.ones_like(before, "bool") if reach is None else ops.abs(before) <= reach
    return before >= 0 if reach is None else ops.logical_and(before >= 0, before <= reach)


def _or_not_causal(seen: Tensor, causal_mask: Tensor) -> Tensor:
    """What tokens see that may see the rest too, unless they are causal."""
    return ops.logical_or(seen, causal_mask == 0)


def cut_blocks(x: Tensor, size: Tensor) -> Tensor:
    """(..., T, D) in blocks of `size` tokens, the last filled up with zeros: (..., M, size, D).

    Example:
        >>> tuple(cut_blocks(ops.ones((2, 5, 3)), 2).shape)
        (2, 3, 2, 3)
    """
    *leading, length, width = ops.shape(x)
    number = (length + size - 1) // size
    behind = number * size - length
    if not isinstance(behind, int) or behind:
        x = ops.concatenate([x, ops.zeros((*leading, behind, width), dtype=x.dtype)], axis=-2)
    return ops.reshape(x, (*leading, number, size, width))


def neighbour_blocks(x: Tensor, size: Tensor) -> Tensor:
    """Each of `cut_blocks` with the one before and the one behind it: (..., M, 3 size, D).

    Example:
        >>> near = neighbour_blocks(ops.reshape(ops.arange(4), (1, 4, 1)) + 1, 2)
        >>> ops.convert_to_numpy(near)[0, :, :, 0].tolist()
        [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 0]]
    """
    whole = cut_blocks(x, size)
    whole = ops.pad(whole, [(0, 0)] * (len(whole.shape) - 3) + [(1, 1), (0, 0), (0, 0)])
    return ops.concatenate(
        [whole[..., :-2, :, :], whole[..., 1:-1, :, :], whole[..., 2:, :, :]], axis=-2
    )


def causal_bias(length: Tensor) -> Tensor:
    """The bias that keeps tokens from attending to later ones: (1, 1, T, T) float32.

    Example:
        >>> ops.convert_to_numpy(causal_bias(2))[0, 0].tolist()
        [[0.0, -30000.0], [0.0, 0.0]]
    """
    places = ops.arange(length)
    return mask_bias(places[None, :] <= places[:, None])[None, None]


def prompt_bias(bias: Tensor, places: Tensor, window: int | None) -> Tensor:
    """The bias of a prompt's keys for one token behind it: those that its window has left behind.

    Args:
        bias: (R, 1, 1, P), of padding.
        places: (R, 1), where the token stands.
        window: of the layer; None = the prompt as it is.

    Returns:
        (R, 1, 1, P).

    Example:
        >>> bias = prompt_bias(ops.zeros((1, 1, 1, 3)), ops.array([[4]]), window=3)
        >>> ops.convert_to_numpy(bias)[0, 0, 0].tolist()
        [-30000.0, -30000.0, 0.0]
    """
    if window is None:
        return bias
    near = places[:, None, None] - ops.arange(ops.shape(bias)[3]) < window
    return bias + mask_bias(near)


def decoded_bias(length: int, t: Tensor, window: int | None = None) -> Tensor:
    """(1, 1, 1, length), added so that only the first t + 1 of `length` tokens are attended.

    Of them the last `window`, where there is one.

    Example:
        >>> ops.convert_to_numpy(decoded_bias(3, 1))[0, 0, 0].tolist()
        [0.0, 0.0, -30000.0]
    """
    places = ops.arange(length)
    keep = places <= t
    if window is not None:
        keep = ops.logical_and(keep, t - places < window)
    return mask_bias(keep)[None, None, None]


def mask_bias(keep: Tensor) -> Tensor:
    """The bias of scores of which some are kept: 0 there, -30,000 elsewhere; float32.

    Example:
        >>> ops.convert_to_numpy(mask_bias(ops.array([True, False]))).tolist()
        [0.0, -30000.0]
    """
    return (ops.cast(keep, "float32") - 1.0) * PENALTY
