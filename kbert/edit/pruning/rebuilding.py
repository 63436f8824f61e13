"""Rebuilds models with another config: a pruned model is a new model with the remaining weights.

The original model is not changed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays
from kbert.edit.base import check_edit, check_single
from kbert.edit.pruned import Pruned
from kbert.layers import Block, FeedForward, SelfAttention
from kbert.models import Decoder, Encoder
from kbert.models.edits import edits_of
from kbert.models.weights import get_arrays, set_arrays
from kbert.tasks import Task

_SOURCE = "the model that is pruned"
# (Arrays of one part of a model by name, shapes in the new model by name) -> arrays of the new one.
Cut = Callable[[dict[str, np.ndarray], dict[str, tuple[int, ...]]], Arrays]


def encoder_of(model: Any) -> Any:
    """Returns the encoder or decoder of a model, if its config describes it fully.

    Args:
        model: a `kbert.Encoder` or a `kbert.Decoder`, or a task on one.

    Raises:
        TypeError: it is none of these.
        ValueError: it was changed in a way that its config does not describe, or is an ensemble.
    """
    check_single(model)
    encoder = model.model if isinstance(model, Task) else model
    if not isinstance(encoder, Encoder | Decoder):
        raise TypeError(
            "The model must be a kbert.Encoder, a kbert.Decoder or a task on one. Received: a "
            f"{type(encoder).__name__}"
        )
    encoder.get_config()  # raises if the config does not describe the whole model
    encoder.variants.refuse_config()
    return encoder


def plain_encoder(model: Any) -> Encoder:
    """Like `encoder_of`, but only for BERT-like encoders, whose blocks have known weights.

    Raises:
        ValueError: the encoder has a `part`, another edit than "pruned" or other blocks, or is of
            another class.
    """
    encoder = encoder_of(model)
    part = getattr(encoder.config, "part", None)
    if type(encoder) is not Encoder or part is not None:
        raise ValueError(
            "Heads, neurons and layers can only be pruned in a kbert.Encoder without a `part`. "
            f"Received: a {type(encoder).__name__} with "
            f"part={None if part is None else dict(part)}"
        )
    if other_kinds := [edit.kind for edit in encoder.edits if edit.kind != Pruned.kind]:
        raise ValueError(
            "Heads, neurons and layers must be pruned before other edits: remove those first. "
            f"Received: edits={other_kinds}"
        )
    for block in encoder.blocks:
        kinds = (type(block), type(block.attention), type(block.feed_forward))
        if kinds != (Block, SelfAttention, FeedForward):
            raise ValueError(
                "Pruning heads, neurons or layers requires kbert.layers' Block, SelfAttention and "
                f"FeedForward. Received: {', '.join(kind.__name__ for kind in kinds)}"
            )
    return encoder


def sizes_of(config: EncoderConfig) -> tuple[list[int], list[int]]:
    """Returns the numbers of heads and neurons of each block.

    Example:
        >>> import kbert
        >>> sizes_of(kbert.family("bert-tiny"))
        ([2, 2], [512, 512])
    """
    pruned_edit: Any = next(
        (x for x in edits_of(config) if x.kind == Pruned.kind), Pruned.from_dict({})
    )
    heads, neurons = pruned_edit.heads, pruned_edit.intermediate_sizes
    blocks = config.num_blocks
    return (
        list(heads or [config.num_heads] * blocks),
        list(neurons or [config.intermediate_size] * blocks),
    )


def with_sizes(config: EncoderConfig, heads: list[int], neurons: list[int], **changes: Any) -> Any:
    """Returns a config whose blocks have the given numbers of heads and neurons.

    If all blocks have the same feed-forward width, it is the field `intermediate_size`; otherwise
    an edit lists the widths. The field `num_heads` determines the width of a head, so that fewer
    heads always need an edit.

    Args:
        config: the original config.
        heads: attention heads of each block.
        neurons: widths inside the feed-forward part of each block.
        **changes: other fields that change.
    """
    options: dict[str, Any] = {}
    if set(heads) != {config.num_heads}:
        options["heads"] = heads
    if len(set(neurons)) == 1:
        changes["intermediate_size"] = neurons[0]
    else:
        options["intermediate_sizes"] = neurons
        changes["intermediate_size"] = config.intermediate_size
    edits = [{"kind": Pruned.kind, **options}] if options else []
    return config.replace(**changes, edits=edits)


def rebuilt(model: Any, config: Any, cut: Cut, *, tokenizer: Any = None) -> Any:
    """Returns a model with another config and the weights that `cut` returns.

    Args:
        model: an encoder or a decoder, or a task on one.
        config: config of the new encoder or decoder.
        cut: function that maps the weights, see `Cut`; called for each part of the model: the
            encoder, and the heads of a task.
        tokenizer: tokenizer of the new task; None = the same as before.

    Returns:
        A model of the same class, as if loaded from a preset: not compiled, and trainable.
    """
    encoder = encoder_of(model)
    new_encoder = type(encoder)(config, dtype=encoder.dtype_policy, name=encoder.name)
    new_encoder.weights_from = encoder.weights_from
    if not isinstance(model, Task):
        _fill(new_encoder.parts(), encoder.parts(), cut)
        return new_encoder
    tokenizer = model.tokenizer if tokenizer is None else tokenizer
    new_task = type(model)(new_encoder, tokenizer, name=model.name, **model.settings)
    _fill(new_task.parts, model.parts, cut)
    return new_task


def with_edit(model: Any, kind: str, cut: Cut) -> Any:
    """Returns a copy of a model with an edit that has weights in the model's layers.

    Args:
        model: an encoder or a decoder, or a task on one; it is not changed.
        kind: name of the edit in configs; the edit must not need options.
        cut: function that adds the weights, see `Cut`.

    Raises:
        ValueError: it has this edit already, or one that must not precede it.
    """
    config = encoder_of(model).config
    return rebuilt(model, config.replace(edits=[*config.edits, {"kind": kind}]), cut)


def without_edit(model: Any, kind: str, maker: str, cut: Cut) -> Any:
    """Returns a copy of a model without an edit.

    Args:
        model: an encoder or a decoder, or a task on one; it is not changed.
        kind: name of the edit in configs.
        maker: name of the function that adds this edit, for the message.
        cut: function that maps the weights, see `Cut`.

    Raises:
        ValueError: the model does not have this edit.
    """
    config = encoder_of(model).config
    check_edit(config.edits, kind, maker)
    remaining_edits = [edit for edit in config.edits if edit["kind"] != kind]
    return rebuilt(model, config.replace(edits=remaining_edits), cut)


def _fill(ours: dict[str, Any], theirs: dict[str, Any], cut: Cut) -> None:
    """Sets the weights of a new model's parts to what `cut` returns for the old ones.

    Args:
        ours: prefix of names -> part of the new model.
        theirs: prefix of names -> part of the old model.
        cut: function that maps the arrays of one part, see `Cut`.
    """
    for prefix, layer in ours.items():
        shapes = {name: x.shape for name, x in get_arrays(layer, prefix).items()}
        arrays = cut(get_arrays(theirs[prefix], prefix), shapes)
        set_arrays(layer, prefix, arrays, _SOURCE)
