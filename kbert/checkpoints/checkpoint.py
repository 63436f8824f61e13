"""What a folder of weights holds, whoever wrote it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import numpy as np

from kbert.configs.base import Config
from kbert.core.types import Arrays

ConfigT = TypeVar("ConfigT", bound=Config, covariant=True)
Expected = TypeVar("Expected", bound=Config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint(Generic[ConfigT]):
    """Config and weights under kbert's names.

    Attributes:
        config: the model's: an encoder's, ELMo's, a decoder's or an encoder-decoder's.
        arrays: weight name -> array: "encoder/…", "elmo/…", "decoder/…" or "seq2seq/…", and
            whatever heads there are.
        task: settings of the task it was saved from, or None.
        source: the folder, for messages.
        labels: names of the classes of a fine-tuned head, in the order of its logits, where the
            format keeps them next to the weights; else None.
        left: names there of what no weight of the model was made from: buffers, optimizer slots,
            the generator of a discriminator.
        edits: What was done to the model besides what its config says, by the keys of
            `kbert.core.late.TABLE["edits of a preset"]`.
        foreign_head: the head that is there and that kbert has no task for, in words; else None.
    """

    config: ConfigT
    arrays: dict[str, np.ndarray]
    task: dict[str, Any] | None
    source: str
    labels: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()
    edits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    foreign_head: str | None = None

    def part(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin with `prefix`, e.g. "encoder/"."""
        return {name: array for name, array in self.arrays.items() if name.startswith(prefix)}

    def expect(self, kind: type[Expected]) -> "Checkpoint[Expected]":
        """Itself, where its config is of that kind.

        Raises:
            ValueError: it is another kind of model.
        """
        if not isinstance(self.config, kind):
            raise ValueError(
                f"The folder must hold {kind.told}. Received: {self.config.told}, in {self.source}"
            )
        return cast("Checkpoint[Expected]", self)


# What `problem_type` of Hugging Face's config says of a classifier: kind and settings.
PROBLEM_TYPES: dict[str, dict[str, Any]] = {
    "regression": {"kind": "regress"},
    "single_label_classification": {"kind": "classify"},
    "multi_label_classification": {"kind": "classify", "multi_label": True},
}
# Heads of fine-tuned models that say by themselves which task is theirs.
_FINE_TUNED = {"tokens": "tag", "span": "answer", "choice": "choose"}


def infer_task(
    arrays: Arrays,
    sentence_objective: str | None = None,
    problem_type: str | None = None,
) -> dict[str, Any] | None:
    """The task whose heads are there, for formats that do not say it.

    Args:
        arrays: weight name -> array.
        sentence_objective: name of the setting of `kbert.tasks.Pretraining` that the sentence
            head stands for: `next_sentence` in BERT, `sentence_order` in ALBERT.
        problem_type: what a classifier is for, one of `PROBLEM_TYPES`; None = one output is a
            number, several are classes, as transformers takes it.

    Returns:
        Kind and settings, as `Checkpoint.task` has them, or None.

    Example:
        >>> infer_task({"masked_lm/bias": np.zeros(9)})
        {'kind': 'pretrain', 'next_sentence': False}
        >>> infer_task({"sentence/dense/kernel": np.zeros((9, 2))}, "next_sentence")
        {'kind': 'pretrain', 'next_sentence': True, 'masked_lm': False}
        >>> infer_task({"classifier/dense/bias": np.zeros(1)})
        {'kind': 'regress'}
    """
    if "classifier/dense/bias" in arrays:
        one = len(arrays["classifier/dense/bias"]) == 1
        usual = "regression" if one else "single_label_classification"
        return dict(PROBLEM_TYPES[problem_type or usual])
    for head, kind in _FINE_TUNED.items():
        if f"{head}/dense/kernel" in arrays:
            return {"kind": kind}
    if "discriminator/output/kernel" in arrays:
        return {"kind": "detect_replaced"}
    if "permutation_lm/bias" in arrays:
        return {"kind": "permutation_lm"}
    masked_lm = "masked_lm/bias" in arrays
    sentence = "sentence/dense/kernel" in arrays and sentence_objective is not None
    if not masked_lm and not sentence:
        return None
    settings: dict[str, Any] = {"kind": "pretrain", "next_sentence": False}
    if sentence and sentence_objective:
        settings[sentence_objective] = True
    return settings if masked_lm else {**settings, "masked_lm": False}


def default_labels(count: int) -> tuple[str, ...]:
    """What classes without names are called, here as in transformers."""
    return tuple(f"LABEL_{i}" for i in range(count))


def problem_type_of(task: Mapping[str, Any]) -> str | None:
    """The reverse of `infer_task` for a classifier; None for every other task.

    Example:
        >>> problem_type_of({"kind": "classify", "multi_label": True, "threshold": 0.5})
        'multi_label_classification'
    """
    said = {"kind": task.get("kind")} | ({"multi_label": True} if task.get("multi_label") else {})
    return next((name for name, settings in PROBLEM_TYPES.items() if settings == said), None)
