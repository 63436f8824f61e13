"""Answers to a stream of records, a line of JSON each, that go on where a killed process stopped.

Beside `answers.jsonl` lies `answers.jsonl.state.json`: which model wrote it with which settings,
how many records are answered, and a checksum over these records. A restart reads them again,
which is cheap beside answering them, and so knows whether the input is still the same.
"""

import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kbert import atomic
from kbert.data import Table
from kbert.experiments.evaluation import answer_lines
from kbert.experiments.records import Record, Records
from kbert.tasks.fine_tuning.base import FineTuned

# Records in memory at once, and answers that a kill may cost.
CHUNK = 1024


class AnswerFile:
    """The output of a prediction, and how far it is.

    Args:
        path: the file of lines of JSON.
        identity: what the answers depend on besides the input, as JSON can hold it.

    Raises:
        ValueError: the file is there and was written by something else.
    """

    def __init__(self, path: str | os.PathLike, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self._state_path = Path(f"{self.path}.state.json")
        self.state = {"records": 0, "checksum": 0, "finished": False, **identity}
        written = self.path.exists() and self.path.stat().st_size > 0
        before = None
        if self._state_path.exists():
            before = json.loads(self._state_path.read_text(encoding="utf-8"))
        if before and (written or before["finished"]):
            self._check(before, json.loads(json.dumps(identity)))
            self.state = before
        elif written:
            raise ValueError(
                f"{self.path} is there already and nothing tells what wrote it; remove it, or "
                "name another file"
            )

    @property
    def finished(self) -> bool:
        """Whether every record is answered."""
        return self.state["finished"]

    @property
    def records(self) -> int:
        """How many records are answered."""
        return self.state["records"]

    def begin(self) -> None:
        """Notes what is going to be written, before the first line is."""
        self._note()

    def whole_lines(self) -> int:
        """Cuts off a line that a killed process left unfinished, and counts the others."""
        if not self.path.exists():
            return 0
        lines = size = 0
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    lines, size = lines + 1, size + len(line)
        os.truncate(self.path, size)
        return lines

    def append(self, lines: Iterable[str], checksum: int) -> None:
        """Writes answers, on disk when this returns, and notes how far they go."""
        lines = list(lines)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        self._note(records=self.records + len(lines), checksum=checksum)

    def finish(self) -> None:
        """Notes that every record is answered."""
        self.path.touch()  # of an input without records
        self._note(finished=True)

    def _note(self, **changes: Any) -> None:
        self.state |= changes
        atomic.write(self._state_path, (json.dumps(self.state, indent=2) + "\n").encode())

    def _check(self, before: dict, identity: dict) -> None:
        changed = [
            f"{name} was {before.get(name)!r}, is {value!r}"
            for name, value in identity.items()
            if before.get(name) != value
        ]
        if changed:
            raise ValueError(
                f"{self.path} holds answers that were made otherwise; name another file, or "
                f"remove it and {self._state_path.name}. Received: {'; '.join(changed)}"
            )


def answer_records(
    task: FineTuned,
    records: Records,
    output: AnswerFile,
    *,
    batch_size: int = 32,
) -> Iterator[int]:
    """Answers an input in memory that does not grow with it.

    Args:
        task: the fine-tuned task.
        records: the input.
        output: where the answers go.
        batch_size: rows computed at once.

    Yields:
        How many records are answered so far.

    Raises:
        ValueError: the input is not the one that the first answers are of, or a record is not as
            the task needs it, by its line.
    """
    rest = iter(records)
    output.begin()
    checksum = _skip(rest, output, records.source)
    for chunk, lines in _answered(task, rest, records.source, batch_size):
        for record in chunk:
            checksum = _add(checksum, record)
        output.append(lines, checksum)
        yield output.records
    output.finish()


def answer_stream(task: FineTuned, records: Records, *, batch_size: int = 32) -> Iterator[str]:
    """The lines that `answer_records` writes, for a reader that takes them as they come."""
    for _, lines in _answered(task, iter(records), records.source, batch_size):
        yield from lines


def model_checksum(task: FineTuned) -> str:
    """Of the weights and the settings, wherever they were loaded from."""
    checksum = zlib.crc32(json.dumps(task.settings, sort_keys=True, default=str).encode())
    for weight in task.weights:
        checksum = zlib.crc32(np.ascontiguousarray(weight.numpy()).view(np.uint8), checksum)
    return f"{checksum:08x}"


def _answered(
    task: FineTuned, records: Iterator[Record], source: str, batch_size: int
) -> Iterator[tuple[list[Record], list[str]]]:
    """Records, so many as memory always holds, and a line for each.

    Texts that are cut are told of when the first ones are, and counted at the end.
    """
    count = cut = told = 0
    while chunk := list(itertools.islice(records, CHUNK)):
        table = _table(chunk, source)
        answers, more = task.predict_and_count(table, batch_size=batch_size, verbose=0)
        count, cut = count + len(chunk), cut + more
        if not told:
            task.report_cut(cut, count)
            told = cut
        yield chunk, answer_lines(table, answers, expected=False)
    if cut > told:
        task.report_cut(cut, count)


def _skip(records: Iterator[Record], output: AnswerFile, source: str) -> int:
    """Passes over the answered records, and returns the checksum over them."""
    lines = output.whole_lines()
    noted, expected = output.state["records"], output.state["checksum"]
    if lines < noted:
        raise ValueError(
            f"{output.path} must have the {noted} lines that were written to it. Received: {lines}"
        )
    checksum = read = 0
    for record in itertools.islice(records, lines):
        checksum = _add(checksum, record)
        read += 1
        if read == noted and checksum != expected:
            break
    if read < lines or (read == noted and checksum != expected):
        raise ValueError(
            f"{output.path} holds the answers to another input than {source}: name another "
            "file, or remove it to begin anew"
        )
    output.state |= {"records": lines, "checksum": checksum}
    return checksum


def _add(checksum: int, record: Record) -> int:
    return zlib.crc32(json.dumps(record[1], sort_keys=True).encode(), checksum)


def _table(chunk: list[Record], source: str) -> Table:
    names = list(chunk[0][1])
    for line, record in chunk:
        if list(record) != names:
            raise ValueError(
                f"{source}, line {line}: every record has the same fields, {names}. "
                f"Received: {list(record)}"
            )
    columns = {name: [record[name] for _, record in chunk] for name in names}
    return Table(columns, source=source, lines=[line for line, _ in chunk])
