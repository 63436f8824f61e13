"""Layer-wise decay of the learning rate: the nearer to the text, the slower."""

import keras


def layer_scales(encoder: keras.Model, decay: float) -> dict[str, float]:
    """Factors of the learning rate for the weights of an encoder; a head's is 1.

    The depth of the embeddings is 0, that of layer i (from 0) is i + 1, that of the pooler L + 1
    and that of a head L + 2, for L layers; the factor is decay^(L + 2 - depth). That is
    `_get_layer_lrs` of google-research/electra `model/optimization.py`, where nothing stands at
    depth L + 1, for ELECTRA has no pooler.

    A block that several layers share (ALBERT) has the depth of the last of them: it must serve the
    task there, and slower than that no layer of it can move alone. A decoder's table of positions
    belongs to the embeddings, and its last norm to the last layer.

    Args:
        encoder: A `kbert.Encoder` or a `kbert.models.DecoderEncoder`, after `freeze` where
            something is frozen.
        decay: Above 0 and at most 1; ELECTRA takes 0.8, and 0.9 for its large model.

    Returns:
        Path of each trainable weight of the encoder -> factor, for `AdamW(rate_scales=…)`.

    Raises:
        ValueError: If `decay` is out of its range, or the encoder is not made of blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(
            f"The decay from layer to layer must be above 0 and at most 1. Received: {decay}"
        )
    if not hasattr(encoder, "blocks"):
        raise ValueError(
            "Rates that decay from layer to layer are those of a Transformer's blocks. "
            f"Received: a {type(encoder).__name__}"
        )
    layers, blocks = encoder.config.num_layers, encoder.blocks
    parts = {encoder.embeddings: 0}
    for name, depth in (("positions", 0), ("norm", layers)):  # a decoder's parts
        part = getattr(encoder, name, None)
        if part is not None:
            parts[part] = depth
    for layer in range(layers):  # later ones overwrite: a shared block has its last layer's depth
        parts[blocks[layer * len(blocks) // layers]] = layer + 1
    if encoder.pooler is not None:
        parts[encoder.pooler] = layers + 1
    return {
        weight.path: decay ** (layers + 2 - depth)
        for part, depth in parts.items()
        for weight in part.trainable_weights
    }
