"""Reads SQuAD 1.1 and 2.0: one JSON file of articles with paragraphs and their questions.

Sources: Rajpurkar et al. 2016 and 2018; the published files.
"""

import json
import os
import unicodedata
from collections.abc import Iterator

from kbert.core.types import PathLike
from kbert.data.readers.content import read_files, read_text, warn_of
from kbert.data.tables.table import Table
from kbert.io.json_file import parse_json


def read_squad(path: PathLike, *, on_error: str = "raise") -> Table:
    """Reads the questions of a SQuAD file (or pattern of files), with all their answers.

    The columns are `id`, `question`, `context` and, if the file has answers, `answers` and
    `answer_starts`. Starts count characters of the context; both columns are empty lists for a
    question without an answer. If the answer is not at its start, the start is moved to the nearest
    occurrence in the context; the number of moves and the first ids are logged. `plausible_answers`
    are not read.

    Args:
        path: a `.json` or `.json.gz` file, or a pattern of files.
        on_error: "raise" stops at an answer that is not in its context; "count" skips the
            question, and logs the number of skipped questions and their ids.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: the content does not follow SQuAD's format; the message names the file and,
            where possible, the question.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "one.json")
        >>> question = {"id": "q1", "question": "Who?",
        ...             "answers": [{"text": "Ann", "answer_start": 0}]}
        >>> paragraph = {"context": "Ann sings.", "qas": [question]}
        >>> with open(path, "w") as file:
        ...     json.dump({"data": [{"paragraphs": [paragraph]}]}, file)
        >>> read_squad(path)["answers"], read_squad(path)["answer_starts"]
        ([['Ann']], [[0]])
    """
    if on_error not in ("raise", "count"):
        raise ValueError(f"on_error must be 'raise' or 'count'. Received: {on_error!r}")
    table = read_files(os.fspath(path), lambda file: _read(file, on_error))
    row_of: dict[str, int] = {}
    for row, identifier in enumerate(table["id"]):
        if identifier in row_of:
            raise ValueError(
                f"Question ids must be unique. Received: {identifier!r} in "
                f"{table.place(row_of[identifier])} and {table.place(row)}"
            )
        row_of[identifier] = row
    return table


def _read(path: str, on_error: str) -> Table:
    """Returns the questions of one SQuAD file as a table.

    Wrong positions of answers are corrected with a warning. An answer that is not in its context
    raises ValueError if `on_error` is "raise"; otherwise its question is skipped with a warning.
    """
    try:
        content = parse_json(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno} is not JSON: {error.msg}. "
            f"Received: {error.doc[error.pos : error.pos + 40]!r}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not SQuAD: {error}") from None
    columns: dict[str, list] = {
        "id": [],
        "question": [],
        "context": [],
        "answers": [],
        "answer_starts": [],
    }
    unlabelled, moved, lost = [], [], []
    for context, question in _questions(path, content):
        where = f"{path}, question {question['id']}"
        if "answers" not in question:
            unlabelled.append(question["id"])
        answers = _answers(where, question)
        starts = []
        for text, start in answers:
            position = nearest(context, text, start)
            if position is None:
                break
            if position != start:
                moved.append(question["id"])
            starts.append(position)
        if len(starts) < len(answers):
            text = answers[len(starts)][0]
            if on_error == "raise":
                raise ValueError(
                    f"{where}: the answer does not occur in its context{_why(context, text)}. "
                    f"Received: {text!r:.80}"
                )
            lost.append(question["id"])
            continue
        columns["id"].append(question["id"])
        columns["question"].append(question["question"])
        columns["context"].append(context)
        columns["answers"].append([text for text, _ in answers])
        columns["answer_starts"].append(starts)
    warn_of(path, "answers did not begin at their answer_start and were moved:", moved)
    warn_of(path, "questions are skipped because their answers do not occur in the context:", lost)
    if not columns["id"]:
        raise ValueError(f"{path} holds no questions")
    if unlabelled:
        if len(unlabelled) < len(columns["id"]) + len(lost):
            raise ValueError(
                f"{path}, question {unlabelled[0]}: 'answers' is missing, but other questions "
                "have it"
            )
        del columns["answers"], columns["answer_starts"]
    return Table(columns, source=path)


def _questions(path: str, content: object) -> Iterator[tuple[str, dict]]:
    """Yields (context, question) for each question of `content`, the parsed JSON of a file.

    A missing key or a wrong type raises ValueError.
    """
    for article in _list(path, content, "data"):
        for paragraph in _list(path, article, "paragraphs"):
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("context"), str):
                raise ValueError(f"{path}: a paragraph must have a string 'context'")
            for question in _list(path, paragraph, "qas"):
                if not isinstance(question, dict) or not all(
                    isinstance(question.get(key), str) for key in ("id", "question")
                ):
                    raise ValueError(
                        f"{path}: a question must have the strings 'id' and 'question'. Received: "
                        f"{question!s:.80}"
                    )
                yield paragraph["context"], question


def _list(path: str, value: object, key: str) -> list:
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        received = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"{path}: SQuAD requires a list {key!r} here. Received: {received}")
    return value[key]


def _answers(where: str, question: dict) -> list[tuple[str, int]]:
    """Returns the (text, first character) of each answer to a question; [] without answers.

    `where` is the place for error messages. An invalid answer, or one that contradicts
    `is_impossible`, raises ValueError.
    """
    answers = question.get("answers", [])
    impossible = question.get("is_impossible")
    if not isinstance(answers, list) or not all(
        isinstance(answer, dict)
        and isinstance(answer.get("text"), str)
        and answer["text"]
        and isinstance(answer.get("answer_start"), int)
        for answer in answers
    ):
        raise ValueError(
            f"{where}: an answer must have a string 'text', not empty, and an integer "
            f"'answer_start'. Received: {answers!s:.80}"
        )
    if "answers" in question and impossible is not None and bool(answers) == bool(impossible):
        raise ValueError(
            f"{where}: a question must either have answers or be impossible. Received: "
            f"is_impossible={impossible} and {len(answers)} answers"
        )
    return [(answer["text"], answer["answer_start"]) for answer in answers]


def _why(context: str, text: str) -> str:
    """Explains why an answer's `text` is not in its context, if only the normal form differs.

    Returns the end of a sentence for an error message, or "" if the text is in the context neither
    in Unicode's NFC nor in NFKC.
    """
    for form in ("NFC", "NFKC"):
        if unicodedata.normalize(form, text) in unicodedata.normalize(form, context):
            forms = [
                next(
                    (x for x in ("NFC", "NFD") if unicodedata.is_normalized(x, value)),
                    "no normal form",
                )
                for value in (text, context)
            ]
            return (
                f" as written, but it does in Unicode's {form}: the answer is in {forms[0]}, the "
                f"context in {forms[1]}. Apply unicodedata.normalize({form!r}, …) to both; "
                "answer_start counts the characters of the result"
            )
    return ""


def nearest(context: str, text: str, start: int) -> int | None:
    """Returns the start of the occurrence of `text` in `context` nearest to `start`.

    Of two that are equally near, it is the earlier one. The result is None without an occurrence.
    """
    if start >= 0 and context.startswith(text, start):
        return start
    next_start = context.find(text, max(start, 0))
    # The last occurrence that begins before `start`.
    previous_start = context.rfind(text, 0, max(start, 0) + len(text) - 1)
    starts = [position for position in (previous_start, next_start) if position >= 0]
    return min(starts, key=lambda position: abs(position - start)) if starts else None
