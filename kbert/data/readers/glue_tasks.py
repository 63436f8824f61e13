"""Finds GLUE tasks by name, and computes their official metrics; see `kbert.catalog.glue`."""

import difflib
from collections.abc import Sequence

from kbert import metrics
from kbert.catalog.glue import GLUE, GlueTask


def glue_task(name: str) -> GlueTask:
    """Returns a task by its name, such as "SST-2", "sst2" or "mnli-mm".

    Raises:
        ValueError: unknown task; the message lists close names.

    Example:
        >>> glue_task("STS-B").metrics
        ('spearman', 'pearson')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key not in GLUE:
        close = difflib.get_close_matches(key, GLUE, n=2) or list(GLUE)
        raise ValueError(f"The task must be one of GLUE, such as {close}. Received: {name!r}")
    return GLUE[key]


def glue_scores(task: GlueTask, labels: Sequence, answers: Sequence) -> dict[str, float]:
    """Returns name -> value of the official metrics of a task.

    Labels and answers (predictions) are names for a classification task, numbers for a regression
    task, one of each per row.

    Example:
        >>> glue_scores(glue_task("STS-B"), [0.0, 2.5, 5.0], [1.0, 2.0, 400.0])["spearman"]
        1.0
    """
    scores = {}
    for name in task.metrics:
        # GLUE's F1 is that of the second label: paraphrases or duplicates.
        extra = {"positive": task.labels[1]} if name == "f1" else {}
        scores[name] = getattr(metrics, name)(labels, answers, **extra)
    return scores
