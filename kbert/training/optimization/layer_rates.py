"""Learning rates that go by the layer: the nearer to the text the slower, or one after another."""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor


def layer_scales(encoder: keras.Model, decay: float) -> dict[str, float]:
    """Factors of the learning rate for the weights of an encoder; a head's is 1.

    The depth of the embeddings is 0, that of layer i (from 0) is i + 1, that of the pooler L + 1
    and that of a head L + 2, for L layers; the factor is decay^(L + 2 - depth). That is
    `_get_layer_lrs` of google-research/electra `model/optimization.py`, where nothing stands at
    depth L + 1, for ELECTRA has no pooler.

    A block that several layers share (ALBERT) has the depth of the last of them: it must serve the
    task there, and slower than that no layer of it can move alone. A decoder's table of positions,
    what all layers read (DeBERTa's and MPNet's tables of distances) and XLNet's query belong to the
    embeddings; a last norm, and what halts a token, to the last layer.

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
    # What only some have, such as a table of distances that all layers read, is as deep as its use.
    parts = {encoder.embeddings: 0}
    for name, depth in (
        *(("positions", 0), ("shared", 0), ("query", 0)),
        *(("norm", layers), ("halt", layers)),
    ):
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


@keras.saving.register_keras_serializable("kbert")
class LayerPhase(keras.optimizers.schedules.LearningRateSchedule):
    """Factor of the learning rate of a layer that learns in its turn.

    Before its turn it is 0, in it 3, later 0.3, times what all layers share: in each phase a rise
    from 0 in its first tenth, then a slow fall to 0.9. (MobileBERT: distill_util.py of mobilebert
    in google-research/google-research.)

    Args:
        first: The phase in which its turn begins, from 0.
        last: The phase in which it ends; None = with the run.
        steps: Updates of a phase.

    Example:
        >>> phase = LayerPhase(1, 1, steps=10)
        >>> [round(float(phase(step)), 2) for step in (9, 10, 11, 15, 25)]
        [0.0, 0.0, 2.98, 2.91, 0.29]
    """

    def __init__(self, first: int, last: int | None, *, steps: int) -> None:
        self.first, self.last, self.steps = first, last, steps

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "int32")
        phase = step // self.steps
        # What is left of a run whose steps are no multiple belongs to the last turn.
        last = phase if self.last is None else self.last
        turn = ops.where(phase <= last, 3.0, 0.3)
        turn = ops.where(phase < self.first, 0.0, turn)
        done = ops.cast(step % self.steps, "float32") / self.steps
        shared = ops.minimum(10.0 * done, 0.9 + 0.1 * ops.sqrt(1.0 - done))
        return ops.cast(turn, "float32") * (shared if self.steps > 1 else 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"first": self.first, "last": self.last, "steps": self.steps}


def phase_of(step: Tensor, steps: int, layers: int) -> Tensor:
    """Which of the layers, from 0, has its turn; the last one to the end of the run.

    Args:
        step: Updates before.
        steps: Updates of a layer.
        layers: How many.

    Example:
        >>> [int(phase_of(step, 10, 2)) for step in (9, 10, 99)]
        [0, 1, 1]
    """
    return ops.minimum(ops.cast(step, "int32") // steps, layers - 1)


def layer_phases(encoder: keras.Model, steps: int) -> dict[str, LayerPhase]:
    """Factors of the learning rate for the layers of an encoder that learn one after the other.

    A block that several layers share has the turns of all of them.

    Args:
        encoder: A `kbert.Encoder`.
        steps: Updates of a layer's turn.

    Returns:
        Path of each trainable weight of a layer -> factor, for `AdamW(rate_scales=…)`.
    """
    layers = encoder.layer_blocks
    found: dict[str, LayerPhase] = {}
    for block in encoder.blocks:
        turns = [number for number, layer in enumerate(layers) if layer is block]
        last = None if turns[-1] == len(layers) - 1 else turns[-1]
        phase = LayerPhase(turns[0], last, steps=steps)
        found |= {weight.path: phase for weight in block.trainable_weights}
    return found
