"""Multiple choice: SWAG, RACE, CODAH and Cosmos QA.

Every choice is one text, assembled as in the papers' code. In SWAG and CODAH an ending completes a
sentence. In RACE an option fills the blank of the question or follows the question. In Cosmos QA an
answer follows its question.

Sources: Zellers et al. 2018 (SWAG), Lai et al. 2017 (RACE), Chen et al. 2019 (CODAH), Huang et al.
2019 (Cosmos QA), and their published files.
"""

import glob
import os
from collections.abc import Callable, Iterator

from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile, read_files, read_text
from kbert.data.readers.tables import json_lines
from kbert.data.tables.table import Table
from kbert.io.json_file import parse_json
from kbert.io.paths import is_dir

# A row: context, choices, label (or None), id (or None).
Row = tuple[str, list[str], int | None, str | None]
Located = tuple[str, int | None, Row]  # file, line (None for a file of one article), row


def read_choices(path: PathLike, *, format: str) -> Table:
    """Reads questions with their choices.

    The columns are `context`, `choices`, `label` (number of the correct choice, from 0) if the file
    has labels, and `id` if it has ids.

    Args:
        path: a file, plain or `.gz`, or a pattern of files: `.csv` or `.jsonl` for SWAG and
            Cosmos QA, `.tsv` without a header for CODAH, `.jsonl` (an article or a question per
            line) for RACE; or RACE's folder, or a folder in it such as `RACE/dev/high`.
        format: "swag", "race", "codah" or "cosmos".

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a malformed row (the message names file and line), or an answer that is not one
            of the choices.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "one.tsv")
        >>> with open(path, "w") as file:
        ...     _ = file.write("o\\tI am tired. I\\tsleep.\\tfly.\\train.\\teat stones.\\t0\\n")
        >>> read_choices(path, format="codah").take([0])["choices"]
        [['sleep.', 'fly.', 'rain.', 'eat stones.']]
    """
    readers: dict[str, Callable[[str], Iterator[Located]]] = {
        "swag": lambda file: _stems(file, "sent1", "sent2", "ending", "fold-ind"),
        "race": _race,
        "codah": _codah,
        "cosmos": lambda file: _stems(file, "context", "question", "answer", "id"),
    }
    if format not in readers:
        raise ValueError(f"format must be one of {list(readers)}. Received: {format!r}")
    path = os.fspath(path)
    if format == "race" and is_dir(path):
        path = os.path.join(glob.escape(path), "**", "*.txt")
    return read_files(path, lambda file: _table(file, list(readers[format](file))))


def _table(path: str, found: list[Located]) -> Table:
    """Returns the located rows of the file `path` as a table; raises ValueError without any.

    The columns `label` and `id` are left out if no row has one.
    """
    if not found:
        raise ValueError(f"{path} holds no rows")
    rows = [row for _, _, row in found]
    columns: dict[str, list] = {
        "context": [row[0] for row in rows],
        "choices": [row[1] for row in rows],
    }
    for name, index in (("label", 2), ("id", 3)):
        if any(row[index] is not None for row in rows):  # Table raises if only some are missing
            columns[name] = [row[index] for row in rows]
    lines = [line for _, line, _ in found if line is not None]
    return Table(columns, source=path, lines=None if len(lines) < len(found) else lines)


def _records(path: str, columns: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line, column -> value) for each row of a CSV or JSON lines file.

    A row without a text in one of the `columns` raises ValueError.
    """
    if path.removesuffix(".gz").endswith(".csv"):
        rows = DataFile(path).rows(",", quoted=True)
        _, names = next(rows, (1, []))
        records = [(line, dict(zip(names, fields, strict=True))) for line, fields in rows]
    else:
        records = json_lines(path)
    for line, record in records:
        missing = [name for name in columns if not isinstance(record.get(name), str)]
        if missing:
            raise ValueError(
                f"{path}, line {line}: the row lacks the texts {missing}. Received: {[*record]}"
            )
        yield line, record


def _stems(path: str, context: str, stem: str, ending: str, identifier: str) -> Iterator[Located]:
    """Yields rows of a context and four choices; each choice is the stem followed by an ending.

    `context`, `stem` and `identifier` are names of columns, `ending` is the prefix of the columns
    `ending0` to `ending3`.
    """
    endings = [f"{ending}{number}" for number in range(4)]
    for line, record in _records(path, [context, stem, *endings]):
        choices = [f"{record[stem]} {record[name]}" for name in endings]
        label = _label(path, line, record.get("label"), 4)
        yield path, line, (record[context], choices, label, record.get(identifier))


def _codah(path: str) -> Iterator[Located]:
    """Yields the rows of a file of CODAH, tab-separated; raises ValueError for an invalid row."""
    for line, fields in DataFile(path).rows("\t", quoted=False):
        if len(fields) != 7:
            raise ValueError(
                f"{path}, line {line}: a row of CODAH must have 7 columns (category, prompt, 4 "
                f"endings, label). Received: {len(fields)}"
            )
        _, prompt, *endings, label = fields
        yield path, line, (prompt, endings, _label(path, line, label, 4), None)


def _race(path: str) -> Iterator[Located]:
    """Yields the rows of a file of RACE: one article (`.txt`), or an article per JSON line.

    An invalid article raises ValueError.
    """
    if path.removesuffix(".gz").endswith(".txt"):
        try:
            article = parse_json(read_text(path))
        except ValueError as error:
            raise ValueError(f"{path} is not an article of RACE: {error}") from None
        records = [(None, article)]
    else:
        records = json_lines(path)
    for line, record in records:
        where = path if line is None else f"{path}, line {line}"
        for row in article_rows(where, record):
            yield path, line, row


def article_rows(where: str, record: object) -> Iterator[Row]:
    """Yields a row for each question of a RACE record: an article with lists of questions.

    A record may also be an article with one `question`. `where` is the origin of the record for
    error messages.
    """
    if isinstance(record, dict) and "question" in record:
        answer = [record["answer"]] if "answer" in record else None
        questions, options, answers = [record["question"]], [record.get("options")], answer
    elif isinstance(record, dict):
        questions, options = record.get("questions"), record.get("options")
        answers = record.get("answers")
    else:
        raise ValueError(
            f"{where}: an article must be a JSON object. Received: {type(record).__name__}"
        )
    if not (
        isinstance(record.get("article"), str)
        and isinstance(questions, list)
        and isinstance(options, list)
        and len(questions) == len(options)
        and (answers is None or (isinstance(answers, list) and len(answers) == len(questions)))
        and all(isinstance(question, str) for question in questions)
        and all(_are_choices(texts) for texts in options)
    ):
        raise ValueError(
            f"{where}: an article of RACE must have a string 'article' and lists of the same "
            "length: 'questions', 'options' (lists of strings) and optionally 'answers'. "
            f"Received: {[*record]}"
        )
    identifier = record.get("example_id", record.get("id"))
    for number, (question, texts) in enumerate(zip(questions, options, strict=True)):
        choices = [
            question.replace("_", text) if "_" in question else f"{question} {text}"
            for text in texts
        ]
        label = None
        if answers is not None:
            letters = [chr(ord("A") + index) for index in range(len(texts))]
            if answers[number] not in letters:
                raise ValueError(
                    f"{where}: the answer of question {number} must be one of {letters}. "
                    f"Received: {answers[number]!r}"
                )
            label = letters.index(answers[number])
        yield record["article"], choices, label, identifier


def _are_choices(texts: object) -> bool:
    return (
        isinstance(texts, list)
        and 2 <= len(texts) <= 26
        and all(isinstance(text, str) for text in texts)
    )


def _label(path: str, line: int, label: object, choices: int) -> int | None:
    """Returns the label as an index into the choices, or None if there is none.

    A label that is not 0 to `choices` - 1 raises ValueError, which names `path` and `line`.
    """
    if label is None:
        return None
    if str(label) not in [str(number) for number in range(choices)]:
        raise ValueError(
            f"{path}, line {line}: the label must be 0 to {choices - 1}. Received: {label!r:.80}"
        )
    return int(str(label))
