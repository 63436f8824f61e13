"""Content of a folder of weights, in any format."""

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
    """Content of a folder of weights: config, weights under kbert's names, and task.

    Attributes:
        config: config of an encoder, of ELMo, of a decoder or of an encoder-decoder.
        arrays: weight name -> array: "encoder/…", "elmo/…", "decoder/…" or "seq2seq/…", and any
            heads.
        task: settings of the task that the model was saved from; None = no task.
        source: name of the folder, for messages.
        labels: class names of a fine-tuned head, in the order of its logits; None = no such head,
            or the format does not store names.
        left: names, in the source format, of tensors that no weight was made from: buffers,
            optimizer slots, the generator of a discriminator.
        edits: changes to the model that are not in its config, by the keys of
            `kbert.core.late.TABLE["edits of a preset"]`.
        foreign_head: description of a head that kbert has no task for; None = no such head.
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
        """Returns the arrays whose names begin with `prefix`, e.g. "encoder/"."""
        return {name: array for name, array in self.arrays.items() if name.startswith(prefix)}

    def take(self, prefix: str) -> dict[str, np.ndarray]:
        """Like `part`; the arrays are no longer in `arrays`, so that their memory can be freed."""
        return {name: self.arrays.pop(name) for name in self.part(prefix)}

    def expect(self, kind: type[Expected]) -> "Checkpoint[Expected]":
        """Returns this checkpoint if its config is an instance of the class `kind`.

        Raises:
            ValueError: the config is of another class.
        """
        if not isinstance(self.config, kind):
            raise ValueError(
                f"The folder must contain {kind.told}. Received: {self.config.told}, in "
                f"{self.source}"
            )
        return cast("Checkpoint[Expected]", self)


# `problem_type` of a classifier in Hugging Face's config -> kind and settings of the task.
PROBLEM_TYPES: dict[str, dict[str, Any]] = {
    "regression": {"kind": "regress"},
    "single_label_classification": {"kind": "classify"},
    "multi_label_classification": {"kind": "classify", "multi_label": True},
}
# Heads of fine-tuned models that belong to exactly one task.
_FINE_TUNED = {"tokens": "tag", "span": "answer", "choice": "choose"}


def infer_task(
    arrays: Arrays,
    sentence_objective: str | None = None,
    problem_type: str | None = None,
) -> dict[str, Any] | None:
    """Infers the task from the heads, for formats that do not store the task.

    Args:
        arrays: weight name -> array.
        sentence_objective: setting of `kbert.tasks.Pretraining` that turns on the objective of the
            sentence head (`next_sentence` for BERT, `sentence_order` for ALBERT); None = ignore
            that head.
        problem_type: problem type of a classifier, a key of `PROBLEM_TYPES`; None = regression for
            one output, classes for several, as in transformers.

    Returns:
        Kind and settings, in the form of `Checkpoint.task`; None if there is no known head.

    Example:
        >>> infer_task({"masked_lm/bias": np.zeros(9)})
        {'kind': 'pretrain', 'next_sentence': False}
        >>> infer_task({"sentence/dense/kernel": np.zeros((9, 2))}, "next_sentence")
        {'kind': 'pretrain', 'next_sentence': True, 'masked_lm': False}
        >>> infer_task({"classifier/dense/bias": np.zeros(1)})
        {'kind': 'regress'}
    """
    if "classifier/dense/bias" in arrays:
        has_one_output = len(arrays["classifier/dense/bias"]) == 1
        default_type = "regression" if has_one_output else "single_label_classification"
        return dict(PROBLEM_TYPES[problem_type or default_type])
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
    """Returns transformers' default names of `count` classes: "LABEL_0", "LABEL_1" and so on."""
    return tuple(f"LABEL_{i}" for i in range(count))


def problem_type_of(task: Mapping[str, Any]) -> str | None:
    """Returns the problem type of a classifier's or regressor's task, a key of `PROBLEM_TYPES`.

    Any other task returns None. This reverses `infer_task`.

    Example:
        >>> problem_type_of({"kind": "classify", "multi_label": True, "threshold": 0.5})
        'multi_label_classification'
    """
    task_settings = {"kind": task.get("kind")} | (
        {"multi_label": True} if task.get("multi_label") else {}
    )
    return next(
        (name for name, settings in PROBLEM_TYPES.items() if settings == task_settings), None
    )
