"""Structured pruning: removes heads and neurons from an encoder, so that its kernels are smaller.

Shapes: `H` hidden width, `N` heads before, `D` width of a head, `I` neurons before: the width
inside a feed-forward part.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from kbert.core.types import Arrays
from kbert.edit.pruned import check_heads_are_alone
from kbert.edit.pruning.rebuilding import Cut, plain_encoder, rebuilt, sizes_of, with_sizes

_LAYER = r"encoder/layers/(\d+)/"
_HEADS = re.compile(_LAYER + r"attention/(qkv|output)/(kernel|bias)")
_NEURONS = re.compile(_LAYER + r"feed_forward/(intermediate|output)/(kernel|bias)")
# Number of a block -> numbers of its heads or neurons.
Chosen = Mapping[int, Iterable[int]]


def least_important(
    importance: Sequence[np.ndarray], share: float, *, at_least: int = 1, by_layer: bool = False
) -> dict[int, list[int]]:
    """Chooses the heads or neurons to prune: those with the smallest importance.

    Args:
        importance: one array per block with the importance of its heads or neurons; see
            `head_importance`.
        share: share of heads or neurons to prune, in [0, 1); their number is rounded down.
        at_least: minimum number of heads or neurons that remain in each block.
        by_layer: whether the share applies to each block separately, not to all together.

    Returns:
        Number of the block -> numbers of its heads or neurons, sorted. Blocks that lose none are
        left out.

    Raises:
        ValueError: the share or `at_least` is out of range, the importance is not finite, or too
            few would remain.

    Example:
        >>> least_important([np.array([3.0, 1.0]), np.array([2.0, 5.0])], 0.5)
        {0: [1], 1: [0]}
    """
    values = [np.asarray(x, "float64") for x in importance]
    if not 0 <= share < 1:
        raise ValueError(f"`share` must be at least 0 and less than 1. Received: {share!r}")
    if at_least < 1 or any(not np.isfinite(x).all() or x.ndim != 1 for x in values):
        raise ValueError(
            "`importance` must be finite, with a number for each head or neuron of a block, and "
            f"`at_least` at least 1. Received: at_least={at_least}, shapes "
            f"{[x.shape for x in values]}"
        )
    # The `at_least` most important of each block are not candidates.
    ranks = [np.argsort(x, kind="stable") for x in values]
    candidates = [rank[: max(len(rank) - at_least, 0)] for rank in ranks]
    if by_layer:
        numbers_to_prune = [int(share * len(x)) for x in values]
        chosen = {
            block: rank[:number]
            for block, (rank, number) in enumerate(zip(candidates, numbers_to_prune, strict=True))
        }
        num_missing = sum(numbers_to_prune) - sum(map(len, chosen.values()))
    else:
        pairs = [(values[block][i], block, i) for block, x in enumerate(candidates) for i in x]
        number = int(share * sum(map(len, values)))
        smallest = sorted(pairs)[:number]
        chosen = {
            block: np.array([i for _, b, i in smallest if b == block], int)
            for block in range(len(values))
        }
        num_missing = number - len(smallest)
    if num_missing:
        raise ValueError(
            f"`share` must leave at least {at_least} in every block; use keep_layers to remove "
            f"whole layers. Received: share={share} of {[len(x) for x in values]}, {num_missing} "
            "too many"
        )
    return {block: sorted(map(int, x)) for block, x in chosen.items() if len(x)}


def prune_heads(model: Any, heads: Chosen) -> Any:
    """Removes attention heads: their queries, keys and values, and their rows of the output kernel.

    The result computes the same as the original model with the outputs of these heads set to zero.
    The config records it as the edit "pruned" (`kbert.edit.Pruned`). So the model is saved, loaded,
    exported, counted, trained and pruned again like any other. The remaining heads keep their
    order, and are renumbered.

    Args:
        model: a BERT-like `kbert.Encoder`, or a task on one; it is not changed.
        heads: number of a block -> numbers of the heads to remove, both from 0. A block is a layer,
            or the layers that share its weights. See `least_important`.

    Returns:
        A new encoder or task, not compiled.

    Raises:
        TypeError: the model is neither an encoder nor a task on one.
        ValueError: a head does not exist, a block has none left, heads share keys and values or
            have slopes (ALiBi), the encoder has adapters, or it is not BERT-like.

    Example:
        >>> import kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny"))
        >>> small = prune_heads(encoder, {1: [0]})
        >>> dict(small.config.edits[0])
        {'kind': 'pruned', 'heads': [2, 1]}
        >>> encoder.count_params() - small.count_params()
        32960
    """
    encoder = plain_encoder(model)
    check_heads_are_alone(encoder.config)
    old_heads, neurons = sizes_of(encoder.config)
    kept_heads = _kept(heads, old_heads, "heads")
    config = with_sizes(encoder.config, [len(x) for x in kept_heads], neurons)
    return rebuilt(model, config, _cut(_HEADS, kept_heads, old_heads, parts=3))


def prune_neurons(model: Any, neurons: Chosen) -> Any:
    """Removes neurons of feed-forward parts: columns of the first kernel, rows of the second.

    The result computes the same as the original model with the outputs of these neurons set to
    zero. If all blocks end up with the same width, it is the config's new `intermediate_size`.
    Otherwise the edit "pruned" records the width of each block.

    Args:
        model: a BERT-like `kbert.Encoder`, or a task on one; it is not changed.
        neurons: number of a block -> numbers of the neurons to remove, both from 0. In a gated
            part, a neuron is a column of both halves.

    Returns:
        A new encoder or task, not compiled.

    Raises:
        TypeError: the model is neither an encoder nor a task on one.
        ValueError: a neuron does not exist, a block has none left, the encoder has adapters, or it
            is not BERT-like.

    Example:
        >>> import kbert
        >>> from kbert.edit.pruning import least_important, neuron_magnitudes
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny"))
        >>> half = least_important(neuron_magnitudes(encoder), 0.5, by_layer=True)
        >>> prune_neurons(encoder, half).config.intermediate_size
        256
    """
    encoder = plain_encoder(model)
    heads, old_neurons = sizes_of(encoder.config)
    kept_neurons = _kept(neurons, old_neurons, "neurons")
    config = with_sizes(encoder.config, heads, [len(x) for x in kept_neurons])
    parts = 2 if encoder.config.feed_forward == "gated" else 1
    return rebuilt(model, config, _cut(_NEURONS, kept_neurons, old_neurons, parts))


def neuron_magnitudes(model: Any) -> list[np.ndarray]:
    """Returns the L2 norm of the weights of each neuron, incoming and outgoing.

    It needs no data. `neuron_importance` measures the importance for a task.

    Args:
        model: a BERT-like `kbert.Encoder`, or a task on one.

    Returns:
        One array (I,) per block.
    """
    norms = []
    for block in plain_encoder(model).blocks:
        part = block.feed_forward
        kernels = (part.intermediate.kernel, part.output_dense.kernel)
        into, away = (keras.ops.convert_to_numpy(x).astype("float64") for x in kernels)
        # (H, I), or (H, 2 I) if it is gated, and (I, H).
        squares = (into**2).sum(0).reshape(-1, len(away)).sum(0) + (away**2).sum(1)
        norms.append(np.sqrt(squares))
    return norms


def _kept(chosen: Chosen, before: list[int], what: str) -> list[np.ndarray]:
    """Returns the numbers of the remaining heads or neurons of each block, ascending.

    Args:
        chosen: number of a block -> numbers of the heads or neurons to remove.
        before: number of heads or neurons of each block.
        what: "heads" or "neurons", for messages.

    Raises:
        ValueError: a block or number does not exist or occurs twice, or a block has none left.
    """
    remaining = [np.arange(number) for number in before]
    for block, numbers in chosen.items():
        if not 0 <= block < len(before):
            raise ValueError(
                f"Indices of blocks must be between 0 and {len(before) - 1}. Received: {block!r}"
            )
        numbers = list(numbers)
        wrong_numbers = [n for n in numbers if not 0 <= n < before[block]]
        if wrong_numbers or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"Indices of the {what} of block {block} must be between 0 and "
                f"{before[block] - 1}, each given once. Received: {numbers}"
            )
        remaining[block] = np.setdiff1d(remaining[block], np.array(numbers, int))
        if not len(remaining[block]):
            raise ValueError(
                f"Every block must keep some of its {what}; use keep_layers to remove whole "
                f"layers. Received: all {before[block]} of block {block}"
            )
    return remaining


def _cut(pattern: re.Pattern, kept: list[np.ndarray], before: list[int], parts: int) -> Cut:
    """Returns a `Cut` that keeps columns of the first dense layer and rows of the second.

    Args:
        pattern: matches names of weights; its groups are block, first or second layer, kernel or
            bias.
        kept: numbers of the remaining heads or neurons of each block.
        before: number of heads or neurons of each block.
        parts: parts of the first layer that lose the same columns, such as queries, keys, values.
    """

    def cut(arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        for name, array in arrays.items():
            if match := pattern.fullmatch(name):
                block, is_second, is_bias = int(match[1]), match[2] == "output", match[3] == "bias"
                if not is_second:
                    arrays[name] = _columns(array, kept[block], before[block], parts)
                elif not is_bias:
                    arrays[name] = _rows(array, kept[block], before[block])
        return arrays

    return cut


def _columns(array: np.ndarray, kept: np.ndarray, number: int, parts: int) -> np.ndarray:
    """Returns only the columns of the heads or neurons `kept`, in each of the parts.

    (…, parts · number · width) -> (…, parts · kept · width), where a head has `width` columns and a
    neuron one.
    """
    *leading, width = array.shape
    split = array.reshape(*leading, parts, number, width // (parts * number))
    return split[..., kept, :].reshape(*leading, -1)


def _rows(array: np.ndarray, kept: np.ndarray, number: int) -> np.ndarray:
    """Returns only the rows of the heads or neurons `kept`.

    (number · width, H) -> (kept · width, H), where a head has `width` rows and a neuron one.
    """
    return array.reshape(number, -1, array.shape[-1])[kept].reshape(-1, array.shape[-1])
