"""Memory of a training step, by formula."""

import dataclasses
import math

from kbert.config import EncoderConfig

_BYTES = {"float32": 4, "mixed_bfloat16": 2}  # of an activation


@dataclasses.dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device.

    Attributes:
        weights: of encoder and masked-LM head, in float32.
        gradients: one number a weight.
        moments: what the optimizer keeps for each weight.
        activations: what the forward part leaves for the backward part.
        logits: of the masked-LM head, and what its loss makes of them.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.moments + self.activations + self.logits


def estimate_memory(
    config: EncoderConfig,
    parameters: int,
    *,
    batch_size: int,
    sequence_length: int,
    precision: str,
    optimizer_slots: int,
) -> TrainingMemory:
    size = _BYTES[precision]
    tokens = batch_size * sequence_length
    masked = batch_size * (math.ceil(0.15 * sequence_length) + 1)
    scores = batch_size * config.num_heads * sequence_length**2
    layer = 10 * tokens * config.hidden_size + 4 * tokens * config.intermediate_size + 3 * scores
    return TrainingMemory(
        4 * parameters,
        4 * parameters,
        4 * parameters * optimizer_slots,
        size * layer * config.num_layers,
        3 * 4 * masked * config.vocabulary_size,
    )
