"""The tasks by name: which task class, which files, which settings."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from kbert.data.readers.glue_tasks import GLUE
from kbert.experiments.settings import Settings
from kbert.metrics import text_table
from kbert.tasks.fine_tuning.base import FineTuned

_SQUAD = ("squad", "squad2")
CHOICE_FORMATS = ("swag", "race", "codah", "cosmos")

# Fields of Settings that are arguments of a task's constructor, under the name they have there.
_COMMON = {"max_length": "max_length", "dropout": "dropout"}
_WINDOWS = {"stride": "stride", "pooling": "pooling"}
_AUXILIARY = {"auxiliary_lm_weight": "auxiliary_lm_weight"}
_TEXTS = {**_COMMON, **_WINDOWS, "both_orders": "both_orders", **_AUXILIARY}
_ARGUMENTS = {
    "TextClassifier": _TEXTS,
    "TextRegressor": _TEXTS,
    "TokenClassifier": {**_COMMON, **_WINDOWS},
    "QuestionAnswerer": {"max_length": "max_length", "stride": "doc_stride"},
    "MultipleChoice": {**_COMMON, **_AUXILIARY},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask:
    """What a name stands for.

    Attributes:
        name: such as "sst2".
        kind: the class in `kbert.tasks`.
        files: what its files are, for a reader of the help.
        labels: the classes where the benchmark names them; None = those found in the training data.
        fixed: arguments of the class's constructor that the name decides.
        defaults: settings other than the general ones.
    """

    name: str
    kind: str
    files: str
    labels: tuple[str, ...] | None = None
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def glue(self) -> bool:
        """Whether it is one of GLUE's."""
        return self.name in GLUE

    @property
    def multi_label(self) -> bool:
        """Whether a text has any number of labels."""
        return bool(self.fixed.get("multi_label"))

    @property
    def is_benchmark(self) -> bool:
        """Whether its files have one published layout."""
        return self.glue or self.name in (*_SQUAD, *CHOICE_FORMATS)

    @property
    def has_classes(self) -> bool:
        """Whether the class has labels by name."""
        return self.kind in ("TextClassifier", "TokenClassifier")

    @property
    def label_column(self) -> str:
        """Where a table has the classes, of a kind that has some."""
        return "labels" if self.kind == "TokenClassifier" else "label"

    @property
    def has_threshold(self) -> bool:
        """Whether the class has a threshold that can be tuned."""
        return self.multi_label or self.kind == "QuestionAnswerer"

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """Arguments of the class's constructor.

        Raises:
            ValueError: a setting that the class has no use for.
        """
        if settings.tune_threshold and not self.has_threshold:
            raise ValueError(
                "Only questions that may have no answer and texts with any number of labels have a "
                f"threshold. Received: tune_threshold=True for {self.name}"
            )
        known = _ARGUMENTS[self.kind]
        arguments = dict(self.fixed)
        for field in dict.fromkeys(name for names in _ARGUMENTS.values() for name in names):
            value = getattr(settings, field)
            if value is None:
                continue
            if field not in known:
                raise ValueError(
                    f"A {self.kind} has no {field}; it takes {', '.join(known)}. "
                    f"Received: {field}={value}"
                )
            arguments[known[field]] = value
        return arguments


def _glue() -> list[NamedTask]:
    """GLUE's tasks, and SNLI with them; the first official metric chooses."""
    return [
        NamedTask(
            name=name,
            kind="TextRegressor" if task.is_regression else "TextClassifier",
            files=f"{task.name}: {', '.join(task.files.values())}, or their folder",
            labels=task.labels or None,
            defaults={"metric": task.metrics[0]},
        )
        for name, task in GLUE.items()
    ]


# Settings: BERT, sections 4.1 to 4.4.
_SPAN = {"kind": "QuestionAnswerer", "files": "SQuAD's JSON"}
_TUNED = {"tune_threshold": True}
_CHOICE = {"kind": "MultipleChoice", "defaults": {"learning_rate": 2e-5, "batch_size": 16}}
TASKS: dict[str, NamedTask] = {
    task.name: task
    for task in [
        *_glue(),
        NamedTask(name="squad", **_SPAN),
        NamedTask(name="squad2", **_SPAN, defaults={"epochs": 2, "batch_size": 48, **_TUNED}),
        NamedTask(name="ner", kind="TokenClassifier", files="CoNLL columns, tag in the last"),
        NamedTask(name="pos", kind="TokenClassifier", files="CoNLL-U, or columns, tag in the 2nd"),
        NamedTask(name="swag", **_CHOICE, files="SWAG's CSV"),
        NamedTask(name="race", **_CHOICE, files="RACE's JSON, a file or a folder"),
        NamedTask(name="codah", **_CHOICE, files="CODAH's TSV"),
        NamedTask(name="cosmos", **_CHOICE, files="Cosmos QA's CSV or JSONL"),
        NamedTask(
            name="classify", kind="TextClassifier", files="CSV, TSV, JSONL: text or pair, label"
        ),
        NamedTask(
            name="multilabel",
            kind="TextClassifier",
            files="CSV, TSV, JSONL: text or pair, labels",
            fixed={"multi_label": True},
            defaults=_TUNED,
        ),
        NamedTask(
            name="regress", kind="TextRegressor", files="CSV, TSV, JSONL: text or pair, number"
        ),
        NamedTask(name="tag", kind="TokenClassifier", files="CoNLL columns; JSONL: words, labels"),
        NamedTask(
            name="answer",
            kind="QuestionAnswerer",
            files="SQuAD's JSON; JSONL: question, context, answers, answer_starts",
        ),
        NamedTask(
            name="choose", kind="MultipleChoice", files="CSV, TSV, JSONL: context, choices, label"
        ),
    ]
}


def named_task(name: str) -> NamedTask:
    """The task of a name.

    Raises:
        ValueError: there is none; the message lists them, the nearest first.

    Example:
        >>> named_task("sst2").kind
        'TextClassifier'
    """
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=len(TASKS), cutoff=0.0)
    raise ValueError(f"A task is one of {', '.join(near)}. Received: {name!r}")


# The task that reads plain files for a class.
_GENERIC = {
    "TextClassifier": "classify",
    "TextRegressor": "regress",
    "TokenClassifier": "tag",
    "QuestionAnswerer": "answer",
    "MultipleChoice": "choose",
}


def task_for(task: FineTuned, name: str | None = None) -> NamedTask:
    """How data for a fine-tuned task is read.

    Args:
        task: the fine-tuned task.
        name: of a named task of the same class; None = the one for plain files.

    Raises:
        ValueError: the name is that of another class's task.
    """
    kind = type(task).__name__
    if kind not in _GENERIC:
        raise ValueError(
            f"A fine-tuned model is one of {', '.join(_GENERIC)}. Received: a {kind}; "
            "kbert-finetune makes one of a pretrained model"
        )
    multi_label = bool(task.settings.get("multi_label"))
    if name is None:
        return named_task("multilabel" if multi_label else _GENERIC[kind])
    named = named_task(name)
    if (named.kind, named.multi_label) != (kind, multi_label):
        raise ValueError(
            f"The task {name} is for a {named.kind}. Received: a {kind}"
            f"{' of any number of labels' if multi_label else ''}"
        )
    return named


def task_table() -> str:
    """The names with their classes and files, as text."""
    rows = [[task.name, task.kind, task.files] for task in TASKS.values()]
    return text_table(["task", "class", "files"], rows)
