"""Named tasks: the kind, files and settings that each name stands for."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kbert.catalog.glue import GLUE, GlueTask
from kbert.catalog.super_glue import SUPER_GLUE, SuperGlueTask
from kbert.core import late, registry
from kbert.core.text_table import text_table

if TYPE_CHECKING:
    from kbert.core.options import Options


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask:
    """A named task: its kind, files and settings.

    Attributes:
        name: name of the task, such as "sst2".
        kind: name that the task class is registered under.
        files: description of the task's files, for the help text.
        reader: reader that turns the files into a table, a key of
            `kbert.experiments.readers.READERS`.
        is_benchmark: whether the files have one published layout.
        labels: class names defined by the benchmark; None = those found in the training data.
        fixed: constructor arguments of the task class that the name determines.
        defaults: settings whose defaults differ from the general ones.
    """

    name: str
    kind: str
    files: str
    reader: str = "columns"
    is_benchmark: bool = False
    labels: tuple[str, ...] | None = None
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def task_class(self) -> Any:
        """The task class, a `kbert.tasks.TableTask`."""
        return registry.get("task", self.kind)

    @property
    def benchmark(self) -> GlueTask | SuperGlueTask | None:
        """The task of GLUE (or SNLI) or SuperGLUE, whose servers take predictions; else None."""
        return GLUE.get(self.name) or SUPER_GLUE.get(self.name)

    @property
    def has_classes(self) -> bool:
        """Whether the task class has named labels."""
        return "labels" in self.task_class.options.names()

    def arguments(self, settings: Any) -> dict[str, Any]:
        """Returns constructor arguments of the task class, from `fixed` and a run's settings.

        Values in the settings that are None are left out.
        """
        own = {name: getattr(settings, name, None) for name in self.task_class.options.names()}
        return {**self.fixed, **{name: x for name, x in own.items() if x is not None}}


def _benchmark(reader: str, tasks: Mapping[str, GlueTask | SuperGlueTask]) -> list[NamedTask]:
    """Returns named tasks; the first official metric of a task selects its best model."""
    return [
        NamedTask(
            name=name,
            kind=task.kind,
            reader=reader,
            is_benchmark=True,
            files=f"{task.name}: {', '.join(task.files.values())}, or their folder",
            labels=task.labels or None,
            defaults={"metric": task.metrics[0]},
        )
        for name, task in tasks.items()
    ]


# Settings: BERT, sections 4.1 to 4.4.
_SPAN: dict[str, Any] = {
    "kind": "answer",
    "files": "SQuAD's JSON",
    "reader": "squad",
    "is_benchmark": True,
}
_TUNED = {"tune_threshold": True}
_CHOICE: dict[str, Any] = {
    "kind": "choose",
    "reader": "choices",
    "is_benchmark": True,
    "defaults": {"learning_rate": 2e-5, "batch_size": 16},
}
_TEXTS: dict[str, Any] = {
    "kind": "text2text",
    "files": "CSV, TSV: text, target; JSONL: also lists of targets",
}
TASKS: dict[str, NamedTask] = {
    task.name: task
    for task in [
        *_benchmark("glue", GLUE),
        *_benchmark("super_glue", SUPER_GLUE),
        NamedTask(name="squad", **_SPAN),
        NamedTask(name="squad2", **_SPAN, defaults={"epochs": 2, "batch_size": 48, **_TUNED}),
        NamedTask(name="ner", kind="tag", files="CoNLL columns, tag in the last", reader="tagged"),
        NamedTask(
            name="pos",
            kind="tag",
            files="CoNLL-U, or columns, tag in the 2nd",
            reader="tagged_second",
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
            reader="tagged",
        ),
        NamedTask(
            name="answer",
            kind="answer",
            reader="squad_or_columns",
            files="SQuAD's JSON; JSONL: question, context, answers, answer_starts",
        ),
        NamedTask(name="choose", kind="choose", files="CSV, TSV, JSONL: context, choices, label"),
        NamedTask(
            name="embed",
            kind="embed",
            files="CSV, TSV, JSONL: texts, pairs, pairs and number; JSONL: pairs and negatives",
        ),
        NamedTask(name="denoise", kind="denoise", files="TXT, CSV, TSV, JSONL: texts"),
        NamedTask(
            name="skip_thought", kind="skip_thought", files="CSV, TSV, JSONL: previous, text, next"
        ),
        NamedTask(name="text2text", **_TEXTS),
        NamedTask(name="summarize", **_TEXTS, defaults={"metric": "rougeL"}),
        NamedTask(name="translate", **_TEXTS, defaults={"metric": "bleu"}),
    ]
}


def task_options() -> "dict[str, type[Options]]":
    """Returns kind -> settings class for every kind of task on tables; imports no task.

    User-defined kinds are included once their module is imported.
    """
    ours = late.TABLE["task options"]
    found = {kind: late.load("task options", kind) for kind in ours}
    return found | {kind: task.options for kind, task in _own_kinds().items()}


def named_task(name: str) -> NamedTask:
    """Returns the task of a name: one of `TASKS`, or a user-defined kind of task on tables.

    A user-defined kind is found once it is registered, that is, once its module is imported.

    Raises:
        ValueError: no task has that name; the message lists all names, the closest first.

    Example:
        >>> named_task("sst2").kind
        'classify'
    """
    own = {
        kind: NamedTask(
            name=kind, kind=kind, files=f"CSV, TSV, JSONL: {', '.join(task.columns.usual)}"
        )
        for kind, task in _own_kinds().items()
    }
    known = {**own, **TASKS}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=len(known), cutoff=0.0)
    raise ValueError(
        f"A task must be one of {', '.join(near)}; to use your own task, import its module "
        f"(--task_module). Received: {name!r}"
    )


def _own_kinds() -> dict[str, Any]:
    """Returns kind -> class for the registered tasks on tables that are not part of kbert."""
    others = (kind for kind in registry.names("task") if kind not in late.TABLE["task"])
    classes = ((kind, registry.get("task", kind)) for kind in others)
    return {kind: task for kind, task in classes if hasattr(task, "options")}


def task_table() -> str:
    """Formats the task names, classes and files as a text table; imports no class.

    >>> task_table().splitlines()[2].split()[:2]
    ['sst2', 'TextClassifier']
    """
    rows = []
    for named in TASKS.values():
        _, _, class_name = late.TABLE["task"][named.kind].rpartition(":")
        rows.append([named.name, class_name, named.files])
    return text_table(["task", "class", "files"], rows)
