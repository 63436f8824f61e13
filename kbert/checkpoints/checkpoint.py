"""What a folder of weights holds, whoever wrote it."""

import dataclasses
from typing import Any

import numpy as np

from kbert.config import EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Config and weights under kbert's names.

    Attributes:
        config: the encoder's.
        arrays: weight name -> array: "encoder/…" and whatever heads there are.
        task: settings of the task it was saved from, or None.
        source: the folder, for messages.
        labels: names of the classes of a fine-tuned head, in the order of its logits, where the
            format keeps them beside the weights; else None.
    """

    config: EncoderConfig
    arrays: dict[str, np.ndarray]
    task: dict[str, Any] | None
    source: str
    labels: tuple[str, ...] | None = None

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix`, e.g. "encoder/"."""
        return {name: array for name, array in self.arrays.items() if name.startswith(prefix)}
