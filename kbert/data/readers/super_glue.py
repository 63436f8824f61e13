"""Reads SuperGLUE's published files (JSON lines), and its examples in TensorFlow Datasets.

Pairs are read as in the paper: a question or premise first. Spans are marked in the text, in the
way of T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 2.4): the word of WiC is
between asterisks in both sentences; the name of WSC is between asterisks, the pronoun between #. A
candidate answer of MultiRC follows its question. A question of ReCoRD is answered by a span of the
passage, since its answers are names in it.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kbert.catalog.super_glue import SUPER_GLUE, SuperGlueTask
from kbert.core.types import PathLike
from kbert.data.readers.glue import split_file
from kbert.data.readers.rows import Row, table_of_rows
from kbert.data.readers.tables import json_lines
from kbert.data.tables.table import Table

Record = Mapping[str, Any]
# Parts of the index of an example that its id has.
_INDEX = {"multirc": ("paragraph", "question", "answer"), "record": ("query",)}
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
# The label of COPA is 0 or 1 in the files, a name in TensorFlow Datasets.
_COPA_CHOICES: Mapping[Any, int] = {"choice1": 0, "choice2": 1}


def super_glue_task(name: str) -> SuperGlueTask:
    """Returns a task by its name, such as "BoolQ", "boolq" or "superglue_rte".

    Raises:
        ValueError: unknown task; the message lists close names.

    Example:
        >>> super_glue_task("MultiRC").metrics
        ('f1', 'exact_match')
    """
    key = name.lower().replace("-", "")
    if key not in SUPER_GLUE:
        close = difflib.get_close_matches(key, SUPER_GLUE, n=2) or list(SUPER_GLUE)
        raise ValueError(f"The task must be one of SuperGLUE, such as {close}. Received: {name!r}")
    return SUPER_GLUE[key]


def read_super_glue(task: str, path: PathLike, *, split: str | None = None) -> Table:
    """Reads a split of a SuperGLUE task from the published files.

    The columns are those of the task's kind: `text`, or `first` and `second`; `context` and
    `choices`; or `question`, `context`, `answers` and `answer_starts`. `id` is the index of the
    example, with hyphens between the indices of MultiRC's passage, question and answer. MultiRC has
    a column `group` too, its question. Test sets have no labels.

    Args:
        task: "BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "superglue_rte", "WiC", "WSC", "AX-b" or
            "AX-g"; case and hyphens do not matter.
        path: a file; or the task's folder or the folder of all tasks, together with `split`.
        split: "train", "dev" or "test", if `path` is a folder.

    Raises:
        FileNotFoundError: the folder lacks the file.
        ValueError: an unknown task, or a malformed record; the message names file and line.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "val.jsonl")
        >>> with open(path, "w") as file:
        ...     _ = file.write('{"question": "is it", "passage": "Yes.", "idx": 3, "label": true}')
        >>> read_super_glue("BoolQ", path).columns
        {'id': ['3'], 'first': ['is it'], 'second': ['Yes.'], 'label': ['True']}
    """
    described = super_glue_task(task)
    key = next(name for name, value in SUPER_GLUE.items() if value is described)
    path = split_file(described, os.fspath(path), split)

    def rows() -> Iterator[tuple[int, Row]]:
        for line, record in json_lines(path):
            try:
                yield from ((line, row_of(key, example)) for example in _examples(key, record))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{path}, line {line} is not a record of {described.name}: "
                    f"{type(error).__name__} {error}. Received: the keys {[*record]}"
                ) from None

    return table_of_rows(rows(), path)


def row_of(task: str, example: Record) -> Row:
    """Returns the row of an example of a SuperGLUE task.

    Args:
        task: name of the task, a key of `SUPER_GLUE`.
        example: an example as in TensorFlow Datasets: features, with the names of classes.

    Raises:
        KeyError: the example lacks a feature.
        ValueError: the label is not one of the task.

    Example:
        >>> row_of("wic", {"sentence1": "Room and board.", "start1": 9, "end1": 14, "idx": 0,
        ...                "sentence2": "He nailed boards.", "start2": 10, "end2": 16})["second"]
        'He nailed *boards*.'
    """
    row = _ROWS[task](example)
    if isinstance(row, str):
        return row
    index = example["idx"]
    parts = [index[name] for name in _INDEX[task]] if task in _INDEX else [index]
    row = {"id": "-".join(map(str, parts)), **row}
    labels = SUPER_GLUE[task].labels
    if labels:
        label = example.get("label")
        row["label"] = None if label is None else str(label)
        if row["label"] not in (None, *labels):
            raise ValueError(f"the label must be one of {list(labels)}. Received: {label!r}")
    return row


def _examples(task: str, record: Record) -> Iterator[Record]:
    """Yields the examples in a record of a published file: one, or those of a passage."""
    if task == "wsc":
        yield {**record, **record["target"]}
    elif task == "multirc":
        passage = record["passage"]
        for question in passage["questions"]:
            for answer in question["answers"]:
                yield {
                    "paragraph": passage["text"],
                    "question": question["question"],
                    "answer": answer["text"],
                    "label": bool(answer["label"]) if "label" in answer else None,
                    "idx": {
                        "paragraph": record["idx"],
                        "question": question["idx"],
                        "answer": answer["idx"],
                    },
                }
    elif task == "record":
        for question in record["qas"]:
            yield {
                "passage": record["passage"]["text"],
                "query": question["query"],
                "answers": [answer["text"] for answer in question.get("answers", ())],
                "idx": {"passage": record["idx"], "query": question["idx"]},
            }
    else:
        yield record


def _pair(first: str, second: str) -> Callable[[Record], Row]:
    """Returns a function that makes a row of two features."""
    return lambda example: {"first": example[first], "second": example[second]}


def _copa(example: Record) -> Row:
    label = example.get("label")
    return {
        "context": f"{example['premise']} {_COPA[example['question']]}",
        "choices": [example["choice1"], example["choice2"]],
        "label": _COPA_CHOICES.get(label, label),
    }


def _multirc(example: Record) -> Row:
    return {
        "first": example["paragraph"],
        "second": f"{example['question']} {example['answer']}",
        "group": f"{example['idx']['paragraph']}-{example['idx']['question']}",
    }


def _record(example: Record) -> Row:
    passage = example["passage"]
    starts = {text: _first_occurrence(text, passage) for text in example["answers"]}
    found = sorted((start, text) for text, start in starts.items() if start >= 0)
    if example["answers"] and not found:
        return "no answer occurs in the passage"
    return {
        "question": example["query"],
        "context": passage,
        # Every question has an answer, except in the test set.
        "answers": [text for _, text in found] or None,
        "answer_starts": [start for start, _ in found] or None,
    }


def _first_occurrence(text: str, passage: str) -> int:
    """Returns the start of the first occurrence, preferably as whole words; -1 without any."""
    match = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", passage)
    return match.start() if match else passage.find(text)


def _wic(example: Record) -> Row:
    texts = []
    for number in (1, 2):
        span = (int(example[f"start{number}"]), int(example[f"end{number}"]), "*")
        texts.append(_marked(example[f"sentence{number}"], [span]))
    return {"first": texts[0], "second": texts[1]}


def _wsc(example: Record) -> Row:
    text = example["text"]
    words = list(re.finditer(r"\S+", text))
    spans = []
    for number, mark in ((1, "*"), (2, "#")):
        span, index = example[f"span{number}_text"], int(example[f"span{number}_index"])
        start = words[index].start()
        if text[start:].lower().startswith(span.lower()):
            end = start + len(span)
        else:  # some spans differ from the text in spaces or punctuation
            end = words[min(index + len(span.split()), len(words)) - 1].end()
        spans.append((start, end, mark))
    return {"text": _marked(text, spans)}


def _marked(text: str, spans: list[tuple[int, int, str]]) -> str:
    """Returns a text with a mark around each span; a span is (start, end, mark)."""
    for start, end, mark in sorted(spans, reverse=True):
        text = f"{text[:start]}{mark}{text[start:end]}{mark}{text[end:]}"
    return text


_ROWS: dict[str, Callable[[Record], Row]] = {
    "boolq": _pair("question", "passage"),
    "cb": _pair("premise", "hypothesis"),
    "copa": _copa,
    "multirc": _multirc,
    "record": _record,
    "superglue_rte": _pair("premise", "hypothesis"),
    "wic": _wic,
    "wsc": _wsc,
    "axb": _pair("sentence1", "sentence2"),
    "axg": _pair("premise", "hypothesis"),
}
