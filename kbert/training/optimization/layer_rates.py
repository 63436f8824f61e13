"""Layer-wise learning rates: lower for lower layers, later for lower layers, or in turn."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor


def layer_scales(encoder: keras.Model, decay: float) -> dict[str, float]:
    """Returns factors of the learning rate for the weights of an encoder; a head's is 1.

    With L layers, the depth of the embeddings is 0, of layer i (from 0) i + 1, of the pooler L + 1
    and of a head L + 2. The factor is decay^(L + 2 - depth). This is `_get_layer_lrs` of
    google-research/electra `model/optimization.py`, where depth L + 1 is empty, as ELECTRA has no
    pooler.

    A block that several layers share (ALBERT) has the depth of the last of them: there it must
    serve the task, and its layers cannot learn at separate rates. A decoder's position table,
    tables that all layers read (the distances of DeBERTa and MPNet) and XLNet's query count as
    embeddings. A last norm and the halting of tokens count as part of the last layer.

    Args:
        encoder: A `kbert.Encoder` or a `kbert.models.DecoderEncoder`. Call `freeze` before, if at
            all.
        decay: Factor from layer to layer, above 0 and at most 1; ELECTRA uses 0.8, and 0.9 for its
            large model.

    Returns:
        Path of each trainable weight of the encoder -> factor, for `AdamW(rate_scales=…)`.

    Raises:
        ValueError: `decay` is out of range, or the encoder does not consist of blocks.
    """
    if not 0 < decay <= 1:
        raise ValueError(f"The layer decay must be above 0 and at most 1. Received: {decay}")
    depths = _depths(encoder, "A layer decay")
    head = encoder.config.num_layers + 2
    return {path: decay ** (head - depth) for path, depth in depths.items()}


def _depths(encoder: keras.Model, what: str) -> dict[str, int]:
    """Returns path of each trainable weight of an encoder -> its depth, see `layer_scales`.

    Raises ValueError, which names `what` needs the depths, if the encoder has no blocks.
    """
    if not hasattr(encoder, "blocks"):
        raise ValueError(
            f"{what} requires a kbert.Encoder or a kbert.models.DecoderEncoder. "
            f"Received: a {type(encoder).__name__}"
        )
    layers, blocks = encoder.config.num_layers, encoder.blocks
    # Parts that only some encoders have, such as a table of distances, are as deep as their use.
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
        weight.path: depth for part, depth in parts.items() for weight in part.trainable_weights
    }


@keras.saving.register_keras_serializable("kbert")
class Unfreezing(keras.optimizers.schedules.LearningRateSchedule):
    """Factor of the learning rate of weights that are frozen at first: 0 before a step.

    Args:
        first_step: Updates before the first one that changes the weights.
        scale: Factor from then on.

    Example:
        >>> unfreezing = Unfreezing(10, scale=0.5)
        >>> [float(unfreezing(step)) for step in (0, 9, 10, 99)]
        [0.0, 0.0, 0.5, 0.5]
    """

    def __init__(self, first_step: int, scale: float = 1.0) -> None:
        self.first_step, self.scale = first_step, scale

    def __call__(self, step: Tensor) -> Tensor:
        is_frozen = ops.cast(step, "int32") < self.first_step
        return ops.where(is_frozen, 0.0, ops.cast(self.scale, "float32"))

    def get_config(self) -> dict[str, Any]:
        return {"first_step": self.first_step, "scale": self.scale}


def unfreezing_scales(
    encoder: keras.Model, steps: float, scales: Mapping[str, float] | None = None
) -> dict[str, Unfreezing]:
    """Returns factors of the learning rate that unfreeze an encoder layer by layer, from the top.

    (Howard & Ruder 2018, https://arxiv.org/abs/1801.06146, section 3.3, "gradual unfreezing".) A
    head and the pooler, which is part of a task's head, are trained from the start. The last layer
    follows after `steps` updates, the layer below after twice as many, and so on; the embeddings
    are last. The depths of weights are those of `layer_scales`.

    Before its turn a weight has the rate 0, so neither gradients nor weight decay change it. Its
    moments already follow its gradients, and its gradients count in the global norm. So its first
    update is of the usual size, and the factor depends on the step alone: a run resumes exactly.

    Args:
        encoder: A `kbert.Encoder` or a `kbert.models.DecoderEncoder`.
        steps: Updates from one layer's turn to the next, above 0. The step of a turn is rounded.
        scales: Factors after a weight's turn has begun, such as those of `layer_scales`; None = 1.

    Returns:
        Path of each trainable weight of the encoder -> factor, for `AdamW(rate_scales=…)`.

    Raises:
        ValueError: `steps` is not positive, or the encoder has no layers or no trainable weights.
    """
    if not steps > 0:
        raise ValueError(f"The steps between two layers must be above 0. Received: {steps}")
    depths = _depths(encoder, "Gradual unfreezing")
    if not depths:
        raise ValueError(
            "Gradual unfreezing requires an encoder with trainable weights: do not freeze all of "
            f"them. Received: a {type(encoder).__name__} without any"
        )
    top = encoder.config.num_layers + 1
    return {
        path: Unfreezing(round((top - depth) * steps), 1.0 if scales is None else scales[path])
        for path, depth in depths.items()
    }


@keras.saving.register_keras_serializable("kbert")
class LayerPhase(keras.optimizers.schedules.LearningRateSchedule):
    """Factor of the learning rate of a layer when layers learn one after another.

    The factor is 0 before the layer's turn, 3 during it and 0.3 after it, times a shared factor.
    In each phase the shared factor rises from 0 in the first tenth, then falls slowly to 0.9.
    (MobileBERT: distill_util.py of mobilebert in google-research/google-research.)

    Args:
        first: Phase in which the layer's turn begins, from 0.
        last: Phase in which the turn ends; None = at the end of the run.
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
        # Leftover steps of a run whose length is not a multiple belong to the last turn.
        last = phase if self.last is None else self.last
        factor = ops.where(phase <= last, 3.0, 0.3)
        factor = ops.where(phase < self.first, 0.0, factor)
        progress = ops.cast(step % self.steps, "float32") / self.steps
        shared_factor = ops.minimum(10.0 * progress, 0.9 + 0.1 * ops.sqrt(1.0 - progress))
        return ops.cast(factor, "float32") * (shared_factor if self.steps > 1 else 1.0)

    def get_config(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "steps": self.steps}


def phase_of(step: Tensor, steps: int, layers: int) -> Tensor:
    """Returns the index of the layer that learns now; the last layer learns to the end of the run.

    Args:
        step: Updates made so far.
        steps: Updates of a layer's turn.
        layers: Number of layers.

    Example:
        >>> [int(phase_of(step, 10, 2)) for step in (9, 10, 99)]
        [0, 1, 1]
    """
    return ops.minimum(ops.cast(step, "int32") // steps, layers - 1)


def layer_phases(encoder: keras.Model, steps: int) -> dict[str, LayerPhase]:
    """Returns factors of the learning rate for an encoder's layers to learn one after another.

    The turn of a block that several layers share begins with that of the first of these layers and
    ends with that of the last.

    Args:
        encoder: A `kbert.Encoder`.
        steps: Updates of a layer's turn.

    Returns:
        Path of each trainable weight of a layer -> factor, for `AdamW(rate_scales=…)`.
    """
    layers = encoder.layer_blocks
    phases: dict[str, LayerPhase] = {}
    for block in encoder.blocks:
        turns = [number for number, layer in enumerate(layers) if layer is block]
        last = None if turns[-1] == len(layers) - 1 else turns[-1]
        phase = LayerPhase(turns[0], last, steps=steps)
        phases |= {weight.path: phase for weight in block.trainable_weights}
    return phases
