"""Writes predictions for the test sets of GLUE and SuperGLUE in the formats of their servers."""

import json
import math
import os
from collections.abc import Iterator, Sequence

from kbert.catalog.glue import GlueTask
from kbert.catalog.super_glue import SUPER_GLUE, SuperGlueTask
from kbert.core.types import PathLike
from kbert.data.readers.glue_tasks import glue_task
from kbert.data.readers.super_glue import super_glue_task
from kbert.io import atomic
from kbert.io.paths import is_dir


def check_glue_submission(task: str, answers: int) -> GlueTask:
    """Checks that GLUE's server accepts this number of answers for a task; returns the task.

    Args:
        task: name of a GLUE task, such as "SST-2"; case and hyphens do not matter.
        answers: number of answers.

    Raises:
        ValueError: the server has no such task, or the test set has another number of rows.

    Example:
        >>> check_glue_submission("WNLI", 146).submission
        'WNLI.tsv'
    """
    described = glue_task(task)
    check_rows(described, answers)
    return described


def check_rows(described: GlueTask | SuperGlueTask, answers: int) -> None:
    """Raises ValueError unless a task's server accepts this number of answers."""
    if not described.test_rows:
        raise ValueError(
            f"GLUE's server accepts answers to its own tasks only. Received: {described.name}"
        )
    if answers != described.test_rows:
        raise ValueError(
            f"The test set of {described.name} has {described.test_rows} rows. "
            f"Received: {answers} answers"
        )


def write_glue_submission(task: str, answers: Sequence[str | int | float], path: PathLike) -> str:
    """Writes the predictions for a test set in the format of GLUE's server.

    The file has the header `index TAB prediction`, then a line for each row of the test file:
    0 or 1 for CoLA, SST-2, MRPC, QQP and WNLI, the name of the label for MNLI, QNLI, RTE and AX.
    For STS-B it is the score with three decimals, clipped to 0 … 5. A submission is a zip of all
    eleven.

    Args:
        task: name of a GLUE task, such as "SST-2"; case and hyphens do not matter. "MNLI" is the
            matched test set, "MNLI-mm" the mismatched.
        answers: a label (name or index) or a score for each row, in the order of the test file.
        path: a folder, in which the file gets GLUE's name; or a file.

    Returns:
        The path of the file.

    Raises:
        ValueError: the server has no such task, the number of answers differs from the test set's,
            or an answer is not a label of the task or not a finite score.

    Example:
        >>> import tempfile
        >>> path = write_glue_submission("WNLI", ["entailment"] * 146, tempfile.mkdtemp())
        >>> os.path.basename(path), open(path).read()[:21]
        ('WNLI.tsv', 'index\\tprediction\\n0\\t1\\n')
    """
    described = check_glue_submission(task, len(answers))
    path = os.fspath(path)
    if is_dir(path):
        path = os.path.join(path, described.submission)
    lines = [f"{row}\t{_prediction(described, row, answer)}" for row, answer in enumerate(answers)]
    atomic.write(path, "\n".join(["index\tprediction", *lines, ""]).encode())
    return path


def write_super_glue_submission(
    task: str, ids: Sequence[str], answers: Sequence[str | int], path: PathLike
) -> str:
    """Writes the predictions for a test set in the format of SuperGLUE's server.

    The file has a line `{"idx": …, "label": …}` for each example; for MultiRC a line for each
    passage, with the labels of all answers to its questions. A submission is a zip of all ten.

    Args:
        task: name of a SuperGLUE task, such as "BoolQ"; case and hyphens do not matter.
        ids: column `id` of the test set.
        answers: for each row the name of its label, the index of its choice (COPA) or its answer
            (ReCoRD).
        path: a folder, in which the file gets SuperGLUE's name; or a file.

    Returns:
        The path of the file.

    Raises:
        ValueError: unknown task, the number of answers differs from the test set's, two rows have
            one id, or an answer is not a label of the task.

    Example:
        >>> import tempfile
        >>> ids, answers = [str(row) for row in range(146)], ["True"] * 146
        >>> path = write_super_glue_submission("WSC", ids, answers, tempfile.mkdtemp())
        >>> os.path.basename(path), open(path).readline()
        ('WSC.jsonl', '{"idx": 0, "label": "True"}\\n')
    """
    described = super_glue_task(task)
    check_rows(described, len(answers))
    if len(set(ids)) != len(answers):
        raise ValueError(
            f"Each of the {len(answers)} answers must have an id of its own. Received: "
            f"{len(set(ids))} ids"
        )
    if unknown := {*answers} - {*described.labels} if described.labels else None:
        raise ValueError(
            f"The answers must be among {list(described.labels)}. Received: {sorted(unknown)}"
        )
    written: dict[str | int, str | int] = dict(
        zip(described.labels, described.written or described.labels, strict=True)
    )
    labels = [written.get(answer, answer) for answer in answers]
    path = os.fspath(path)
    if is_dir(path):
        path = os.path.join(path, described.submission)
    records = (_passages if described is SUPER_GLUE["multirc"] else _lines)(ids, labels)
    atomic.write(path, "".join(f"{json.dumps(record)}\n" for record in records).encode())
    return path


def _lines(ids: Sequence[str], labels: Sequence[str | int]) -> Iterator[dict]:
    """Yields the line of each example, by its index."""
    for index, label in sorted(zip(map(int, ids), labels, strict=True)):
        yield {"idx": index, "label": label}


def _passages(ids: Sequence[str], labels: Sequence[str | int]) -> Iterator[dict]:
    """Yields the line of each passage of MultiRC; an id is passage-question-answer."""
    tree: dict[int, dict[int, dict[int, str | int]]] = {}
    for row, label in zip(ids, labels, strict=True):
        passage, question, answer = map(int, row.split("-"))
        tree.setdefault(passage, {}).setdefault(question, {})[answer] = label
    for passage, questions in sorted(tree.items()):
        lists = [
            {"idx": q, "answers": [{"idx": a, "label": x} for a, x in sorted(answers.items())]}
            for q, answers in sorted(questions.items())
        ]
        yield {"idx": passage, "passage": {"questions": lists}}


def _prediction(task: GlueTask, row: int, answer: str | int | float) -> str:
    """Returns an answer as it stands in a submission to GLUE.

    It is a class's name in the task's files; or for regression a score with three digits, clipped
    to [0, 5].

    Args:
        task: the task.
        row: number of the row, for messages.
        answer: name or index of a class, or a score.

    Raises:
        ValueError: there is no such class, or the score is not a finite number.
    """
    if task.is_regression:
        if isinstance(answer, str) or not math.isfinite(answer):
            raise ValueError(f"The answer {row} must be a finite number. Received: {answer!r}")
        return f"{min(max(float(answer), 0.0), 5.0):.3f}"
    if not isinstance(answer, str) and answer in range(len(task.labels)):
        answer = task.labels[int(answer)]
    if answer not in task.values:
        raise ValueError(
            f"The answer {row} must be one of {list(task.labels)} or its index. "
            f"Received: {answer!r}"
        )
    return task.values[answer]
