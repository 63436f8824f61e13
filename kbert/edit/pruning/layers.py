"""Removal of whole layers from encoders.

(Sajjad et al. 2020, "On the Effect of Dropping Layers of Pre-trained Transformer Models",
https://arxiv.org/abs/2004.03844; Fan et al. 2019, "LayerDrop", https://arxiv.org/abs/1909.11556,
section 3.3.)

Shapes: `L` layers before, `M` after.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.types import Arrays
from kbert.edit.pruning.rebuilding import plain_encoder, rebuilt, sizes_of, with_sizes

BOTTOM, TOP, ALTERNATE = "bottom", "top", "alternate"
_LAYER = re.compile(r"encoder/layers/(\d+)/(.*)")


def keep_layers(model: Any, layers: Sequence[int] | str, number: int | None = None) -> Any:
    """Removes all layers except the given ones.

    The result computes the same as the original model with the removed layers replaced by the
    identity. A layer keeps its window, the wavelengths of its positions, and its heads and neurons.
    Train the model afterwards. If a pretrained model is to be fine-tuned, keep the bottom layers
    (Sajjad et al., section 5.1).

    Args:
        model: a BERT-like `kbert.Encoder`, or a task on one; it is not changed.
        layers: numbers of the layers to keep, from 0, ascending; or "bottom", the first layers,
            "top", the last layers, or "alternate", layers spread evenly from the first on: layer
            i · L / M, rounded down.
        number: number M of layers to keep if `layers` is a name; not needed for a list.

    Returns:
        A new encoder or task, not compiled.

    Raises:
        TypeError: the model is neither an encoder nor a task on one.
        ValueError: layers do not exist or are not ascending, `number` is missing or out of range,
            or the kept layers share weights in a way that no config describes; the first layer is
            removed from a "pre_norm_except_first" encoder; the model is a task with
            `feature_layers`; the encoder has adapters or edits other than "pruned", or is not
            BERT-like.

    Example:
        >>> import kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-mini"))
        >>> keep_layers(encoder, "alternate", 2).config.num_layers
        2
    """
    encoder = plain_encoder(model)
    config = encoder.config
    feature_layers = getattr(model, "feature_layers", None)
    if feature_layers is not None:
        raise ValueError(
            "Layers cannot be removed from a task whose head reads chosen layers: remove them from "
            "its encoder, and make a new task. Received: a task with "
            f"feature_layers={feature_layers!r}"
        )
    kept_layers = _kept(layers, number, config.num_layers)
    blocks = _kept_blocks(config, kept_layers)
    if config.block == "pre_norm_except_first" and kept_layers[0] != 0:
        raise ValueError(
            "The first layer must be kept with block='pre_norm_except_first': all other layers "
            f"normalise their inputs. Received: layers {kept_layers}"
        )
    heads, neurons = ([sizes[block] for block in blocks] for sizes in sizes_of(config))
    changes: dict[str, Any] = {
        **{"num_layers": len(kept_layers), "attention_pattern": _pattern(config, kept_layers)},
        "part": None,  # its numbers refer to the blocks before pruning
    }
    if config.num_layer_groups is not None:
        changes["num_layer_groups"] = len(blocks)
    if set(changes["attention_pattern"]) == {GLOBAL}:
        changes["local_rotary_base"] = None  # applies to layers with a window only
    new_config = config.replace(**changes)
    new_indices = {block: new_index for new_index, block in enumerate(blocks)}

    def cut(arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        kept_arrays = {}
        for name, array in arrays.items():
            match = _LAYER.fullmatch(name)
            if match is None:
                kept_arrays[name] = array
            elif (new_index := new_indices.get(int(match[1]))) is not None:
                kept_arrays[f"encoder/layers/{new_index}/{match[2]}"] = array
        return kept_arrays

    return rebuilt(model, with_sizes(new_config, heads, neurons), cut)


def _kept(layers: Sequence[int] | str, number: int | None, depth: int) -> list[int]:
    """Returns the numbers of the layers to keep, ascending.

    Args:
        layers: `layers` of `keep_layers`.
        number: `number` of `keep_layers`.
        depth: number L of layers before.

    Raises:
        ValueError: layers do not exist or are not ascending, or `number` does not fit.
    """
    if isinstance(layers, str):
        if layers not in (BOTTOM, TOP, ALTERNATE):
            raise ValueError(
                f"`layers` must be a list of layers, or one of {BOTTOM}, {TOP}, {ALTERNATE}. "
                f"Received: {layers!r}"
            )
        if number is None or not 1 <= number <= depth:
            raise ValueError(
                f"`number` must be between 1 and {depth} with layers={layers!r}. Received: "
                f"number={number!r}"
            )
        if layers == ALTERNATE:
            return [i * depth // number for i in range(number)]
        return list(range(number) if layers == BOTTOM else range(depth - number, depth))
    indices = [int(layer) for layer in layers]
    if number is not None and number != len(indices):
        raise ValueError(
            "`number` must be left out with a list of layers, or equal its length. Received: "
            f"{len(indices)} layers, number={number}"
        )
    if not indices or indices != sorted(set(indices)) or indices[0] < 0 or indices[-1] >= depth:
        raise ValueError(
            f"`layers` must be indices between 0 and {depth - 1}, in ascending order and without "
            f"duplicates. Received: {indices}"
        )
    return indices


def _kept_blocks(config: EncoderConfig, kept: list[int]) -> list[int]:
    """Returns the numbers of the blocks that the kept layers use, ascending.

    Args:
        config: config of the encoder before pruning.
        kept: numbers of the kept layers.

    Raises:
        ValueError: no config can describe which of the kept layers share weights.
    """
    used_blocks = [layer * config.num_blocks // config.num_layers for layer in kept]
    blocks = sorted(set(used_blocks))
    config_blocks = [blocks[i * len(blocks) // len(kept)] for i in range(len(kept))]
    if config_blocks != used_blocks:
        raise ValueError(
            "The layers that are kept must leave groups of shared weights as even as in a config "
            f"(layer i uses group i * groups // layers). Received: layers {kept}, of groups "
            f"{used_blocks}"
        )
    return blocks


def _pattern(config: EncoderConfig, kept: list[int]) -> tuple[str | int, ...]:
    """Returns the shortest `attention_pattern` that describes the kept layers when repeated.

    Its items are windows in tokens, or "global". `config` is the one before pruning, `kept` the
    numbers of its layers.
    """
    windows = [GLOBAL if (window := config.window(layer)) is None else window for layer in kept]
    for length in range(1, len(windows)):
        if windows == [windows[i % length] for i in range(len(windows))]:
            return tuple(windows[:length])
    return tuple(windows)
