"""The tasks of GLUE by name, and their official metrics; `kbert.catalog.glue` has the table."""

import difflib
from collections.abc import Sequence

from kbert import metrics
from kbert.catalog.glue import GLUE, GlueTask


def glue_task(name: str) -> GlueTask:
    """A task by its name, such as "SST-2", "sst2" or "mnli-mm".

    Raises:
        ValueError: no such task; the message has the close names.

    Example:
        >>> glue_task("STS-B").metrics
        ('spearman', 'pearson')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key not in GLUE:
        close = difflib.get_close_matches(key, GLUE, n=2) or list(GLUE)
        raise ValueError(f"No such task of GLUE; close names are {close}. Received: {name!r}")
    return GLUE[key]


def glue_scores(task: GlueTask, labels: Sequence, answers: Sequence) -> dict[str, float]:
    """The official metrics of a task, of names in a classification, of numbers in a regression.

    Example:
        >>> glue_scores(glue_task("STS-B"), [0.0, 2.5, 5.0], [1.0, 2.0, 400.0])["spearman"]
        1.0
    """
    found = {}
    for name in task.metrics:
        # GLUE's F1 is that of paraphrases, duplicates: the second label.
        extra = {"positive": task.labels[1]} if name == "f1" else {}
        found[name] = getattr(metrics, name)(labels, answers, **extra)
    return found
