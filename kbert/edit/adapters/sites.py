"""Layers of a model where an adapter may act: layers with a seam, or BERT-like blocks."""

from collections.abc import Iterator
from typing import Any

from kbert.layers import Block, SelfAttention


def plain_blocks(encoder: Any, kind: str) -> list[Block]:
    """Returns the encoder's blocks, each once.

    Raises:
        ValueError: a block does not compute like `kbert.layers.Block`.
    """
    for block in encoder.blocks:
        methods = [getattr(type(block), name, None) for name in ("call", "_attended", "_forwarded")]
        if methods != [Block.call, Block._attended, Block._forwarded]:
            raise ValueError(
                f"Adapters of kind {kind!r} require blocks like BERT's. Received: an encoder of "
                f"{type(block).__name__}"
            )
    return list(encoder.blocks)


def plain_attentions(encoder: Any, kind: str) -> list[SelfAttention]:
    """Returns the attentions of the blocks.

    Raises:
        ValueError: an attention does not compute like `kbert.layers.SelfAttention`.
    """
    attentions = [block.attention for block in plain_blocks(encoder, kind)]
    for attention in attentions:
        if type(attention).call is not SelfAttention.call:
            raise ValueError(
                f"Adapters of kind {kind!r} require an attention like BERT's. Received: an "
                f"encoder with {type(attention).__name__}"
            )
    return attentions


def sites(encoder: Any, *seams: str) -> Iterator[Any]:
    """Yields the layers of an encoder where an adapter may act, without pooler and adapters.

    Args:
        encoder: A built encoder or decoder.
        *seams: Methods of which a layer must have at least one: "product", a product of rows and a
            kernel; "scale_and_shift" of norms.
    """
    pooler_layers = [] if encoder.pooler is None else list(encoder.pooler._flatten_layers())
    for layer in encoder._flatten_layers():
        has_seam = any(hasattr(type(layer), seam) for seam in seams)
        if has_seam and layer not in pooler_layers and "/adapter_" not in layer.path:
            yield layer
