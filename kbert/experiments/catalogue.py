"""The tasks by name: which kind, which files, which settings."""

import dataclasses
import difflib
import functools
from collections.abc import Mapping
from typing import Any, cast

from kbert import pruning
from kbert.core import registry
from kbert.data.readers.glue_tasks import GLUE
from kbert.edit import adapters
from kbert.experiments import readers
from kbert.experiments.settings import Settings, flag_options, settings_of
from kbert.metrics import text_table
from kbert.tasks import FineTuningTask, Task

_ONE_OF = ("adapter", "quantization_aware", "prune_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask:
    """What a name stands for.

    Attributes:
        name: such as "sst2".
        kind: of the class of tasks.
        files: what its files are, for a reader of the help.
        reader: how they become a table.
        is_benchmark: whether its files have one published layout.
        labels: the classes where the benchmark names them; None = those found in the training data.
        fixed: arguments of the class's constructor that the name decides.
        defaults: settings other than the general ones.
    """

    name: str
    kind: str
    files: str
    reader: readers.Reader = readers.by_columns
    is_benchmark: bool = False
    labels: tuple[str, ...] | None = None
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def task_class(self) -> type[FineTuningTask]:
        """The class of tasks."""
        return registry.get("task", self.kind)

    @property
    def glue(self) -> bool:
        """Whether it is one of GLUE's."""
        return self.name in GLUE

    @property
    def has_classes(self) -> bool:
        """Whether the class has labels by name."""
        return "labels" in self.task_class.options.names()

    def settings(self, **given: Any) -> Settings:
        """The task's defaults with other values.

        Args:
            **given: fields of `Settings`, and settings of the class of tasks.

        Raises:
            ValueError: a setting that the class has no use for, or a value out of its range.
        """
        cls, settings = self.task_class, settings_of(self.task_class)  # type: ignore[arg-type]  # mypy takes an object's hash for the class's
        known = {name for named in _kinds().values() for name in flag_options(named.task_class)}
        others = sorted(known - set(settings.names()))
        for name in others:
            if given.pop(name, None) is not None:
                raise ValueError(
                    f"A {cls.__name__} has no {name}; it takes {', '.join(flag_options(cls))}. "
                    f"Received: {name}"
                )
        chosen = {x: y for x in _ONE_OF if (y := given.get(x)) not in (None, False)}
        if len(chosen) > 1:
            raise ValueError(
                "A run trains an adapter of an encoder that stays as it is, an encoder for 8 bits, "
                "or one with ever more zeros. Received: "
                f"{' with '.join(f'{name}={value!r}' for name, value in chosen.items())}"
            )
        if given.get("prune_weights") is not None:
            pruning.parse(given["prune_weights"])  # raises where it is none
        if given.get("adapter") is not None:
            own = adapters.parse(given["adapter"])  # raises where it is none
            given = {"learning_rate": own.learning_rate, **given}
        found = settings.from_arguments({**self.defaults, **given}, "experiments.run")
        if found.tune_threshold and not cls.can_tune(self.fixed):
            raise ValueError(
                "Only questions that may have no answer and texts with any number of labels have a "
                f"threshold. Received: tune_threshold=True for {self.name}"
            )
        return found

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """Arguments of the class's constructor, other than labels."""
        own = {name: getattr(settings, name, None) for name in self.task_class.options.names()}
        return {**self.fixed, **{name: x for name, x in own.items() if x is not None}}


def _glue() -> list[NamedTask]:
    """GLUE's tasks, and SNLI with them; the first official metric chooses."""
    return [
        NamedTask(
            name=name,
            kind="regress" if task.is_regression else "classify",
            reader=readers.glue,
            is_benchmark=True,
            files=f"{task.name}: {', '.join(task.files.values())}, or their folder",
            labels=task.labels or None,
            defaults={"metric": task.metrics[0]},
        )
        for name, task in GLUE.items()
    ]


# Settings: BERT, sections 4.1 to 4.4.
_SPAN: dict[str, Any] = {
    "kind": "answer",
    "files": "SQuAD's JSON",
    "reader": readers.squad,
    "is_benchmark": True,
}
_TUNED = {"tune_threshold": True}
_CHOICE: dict[str, Any] = {
    "kind": "choose",
    "reader": readers.choices,
    "is_benchmark": True,
    "defaults": {"learning_rate": 2e-5, "batch_size": 16},
}
TASKS: dict[str, NamedTask] = {
    task.name: task
    for task in [
        *_glue(),
        NamedTask(name="squad", **_SPAN),
        NamedTask(name="squad2", **_SPAN, defaults={"epochs": 2, "batch_size": 48, **_TUNED}),
        NamedTask(
            name="ner", kind="tag", files="CoNLL columns, tag in the last", reader=readers.tagged
        ),
        NamedTask(
            name="pos",
            kind="tag",
            files="CoNLL-U, or columns, tag in the 2nd",
            reader=functools.partial(readers.tagged, column=1),
        ),
        NamedTask(name="swag", **_CHOICE, files="SWAG's CSV"),
        NamedTask(name="race", **_CHOICE, files="RACE's JSON, a file or a folder"),
        NamedTask(name="codah", **_CHOICE, files="CODAH's TSV"),
        NamedTask(name="cosmos", **_CHOICE, files="Cosmos QA's CSV or JSONL"),
        NamedTask(name="classify", kind="classify", files="CSV, TSV, JSONL: text or pair, label"),
        NamedTask(
            name="multilabel",
            kind="classify",
            files="CSV, TSV, JSONL: text or pair, labels",
            fixed={"multi_label": True},
            defaults=_TUNED,
        ),
        NamedTask(name="regress", kind="regress", files="CSV, TSV, JSONL: text or pair, number"),
        NamedTask(
            name="tag",
            kind="tag",
            files="CoNLL columns; JSONL: words, labels",
            reader=readers.tagged,
        ),
        NamedTask(
            name="answer",
            kind="answer",
            reader=readers.squad_or_columns,
            files="SQuAD's JSON; JSONL: question, context, answers, answer_starts",
        ),
        NamedTask(name="choose", kind="choose", files="CSV, TSV, JSONL: context, choices, label"),
        NamedTask(
            name="embed",
            kind="embed",
            files="CSV, TSV, JSONL: texts, pairs, pairs and number; JSONL: pairs and negatives",
        ),
        NamedTask(name="denoise", kind="denoise", files="TXT, CSV, TSV, JSONL: texts"),
    ]
}


def named_task(name: str) -> NamedTask:
    """The task of a name: one of `TASKS`, or any kind of `FineTuningTask` that is registered.

    Raises:
        ValueError: there is none; the message lists them, the nearest first.

    Example:
        >>> named_task("sst2").kind
        'classify'
    """
    known = {**_kinds(), **TASKS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=len(known), cutoff=0.0)
    raise ValueError(
        f"A task is one of {', '.join(near)}; one of your own is there once its module is imported "
        f"(--task_module). Received: {name!r}"
    )


def _kinds() -> dict[str, NamedTask]:
    """Every kind of tasks on tables, whose files are read by their columns."""
    found = {}
    for kind in registry.names("task"):
        task = registry.get("task", kind)
        if issubclass(task, FineTuningTask):
            files = f"CSV, TSV, JSONL: {', '.join(task.columns.usual)}"
            found[kind] = NamedTask(name=kind, kind=kind, files=files)
    return found


def task_for(task: Task, name: str | None = None) -> NamedTask:
    """How data for a fine-tuned task is read.

    Args:
        task: the fine-tuned task.
        name: of a named task of the same kind; None = the one for plain files.

    Raises:
        ValueError: the name is that of another kind's task.
    """
    if not isinstance(task, FineTuningTask):
        classes = ", ".join(named.task_class.__name__ for named in _kinds().values())
        own = "" if task.program is None else f", and {task.program} answers files with this one"
        raise ValueError(
            f"A fine-tuned model is one of {classes}. Received: a {type(task).__name__}; "
            f"kbert-finetune makes one of a pretrained model{own}"
        )
    alike = [named for named in TASKS.values() if named.kind == task.kind]
    # What names of this kind decide, such as whether a text has any number of labels.
    usual = {key: task.options.field_of(key).default for named in alike for key in named.fixed}
    own = {key: task.settings[key] for key in usual}
    if name is None:
        fitting = [named for named in alike if named.fixed and {**usual, **named.fixed} == own]
        return fitting[0] if fitting else named_task(cast(str, task.kind))
    named = named_task(name)
    if named.kind != task.kind or {**usual, **named.fixed} != own:
        differing = "".join(f" with {k}={own[k]}" for k in own if own[k] != usual[k])
        raise ValueError(
            f"The task {name} is for a {named.task_class.__name__}. "
            f"Received: a {type(task).__name__}{differing}"
        )
    return named


def task_table() -> str:
    """The names with their classes and files, as text."""
    known = {**TASKS, **{kind: x for kind, x in _kinds().items() if kind not in TASKS}}
    rows = [[task.name, task.task_class.__name__, task.files] for task in known.values()]
    return text_table(["task", "class", "files"], rows)
