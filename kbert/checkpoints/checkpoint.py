"""What a folder of weights holds, whoever wrote it."""

import dataclasses
from collections.abc import Collection
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
        left: names there of what no weight of the model was made from: buffers, optimizer slots,
            the generator beside a discriminator.
    """

    config: EncoderConfig
    arrays: dict[str, np.ndarray]
    task: dict[str, Any] | None
    source: str
    labels: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix`, e.g. "encoder/"."""
        return {name: array for name, array in self.arrays.items() if name.startswith(prefix)}


def infer_task(
    names: Collection[str], sentence_objective: str | None = None
) -> dict[str, Any] | None:
    """The pretraining task whose heads are there, for formats that do not say it.

    Args:
        names: of the weights.
        sentence_objective: name of the setting of `kbert.tasks.Pretraining` that the sentence
            head stands for: `next_sentence` in BERT, `sentence_order` in ALBERT.

    Returns:
        Kind and settings, as `Checkpoint.task` has them, or None.

    Example:
        >>> infer_task(["masked_lm/bias", "encoder/embeddings/token"])
        {'kind': 'Pretraining', 'next_sentence': False}
    """
    if "discriminator/output/kernel" in names:
        return {"kind": "ReplacedTokenDetection"}
    if "masked_lm/bias" not in names:
        return None
    settings: dict[str, Any] = {"kind": "Pretraining", "next_sentence": False}
    if "sentence/dense/kernel" in names and sentence_objective is not None:
        settings[sentence_objective] = True
    return settings
