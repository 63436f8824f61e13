"""Answers to a stream of records, a line of JSON or a vector each, that resume after a kill.

Next to `answers.jsonl` is `answers.jsonl.state.json`: which model wrote it with which settings,
how many records are answered, and a checksum over these records. A restart reads them again,
which is cheap compared with answering them, and so knows whether the input is still the same.

What answers is any task that has `answer_table`, see `kbert.tasks.Task`.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.options import Options
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.experiments.evaluation import answer_lines
from kbert.experiments.records import Record, Records
from kbert.io import fingerprints, npy
from kbert.io.chunks import chunks
from kbert.io.outputs import GrowingFiles, differences, read_note, write_note
from kbert.io.paths import Path
from kbert.tasks import Columns, Task, WindowOptions

# Most records in memory at once, and answers that a kill may cost.
CHUNK = 1024
_LATER = "tokenizer"  # what state files of before 1.0.0 do not say
_UNFINISHED = b"kbert: vectors that are still being computed\n"  # no such header


class AnswerState:
    """How far the answers to an input are, in a state file beside them.

    Args:
        path: where the answers are, a file or a folder.
        identity: what the answers depend on besides the input, as JSON can hold it.

    Raises:
        ValueError: there are answers, written by something else.
    """

    def __init__(self, path: PathLike, identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self._note = Path(f"{self.path}.state.json")
        self.state = {"records": 0, "checksum": 0, "finished": False, **identity}
        before = read_note(self._note, "The state file of answers")
        if before and self._is_begun(before):
            self.state = before
            self.check(identity)
        elif before and before["records"]:
            warnings.warn(
                f"{self.path} is not there any more, with the {before['records']:,} answers of "
                f"{self._note.name}: starting over",
                stacklevel=3,
            )
        elif not before and _is_written(self.path):
            raise ValueError(
                f"{self.path} already exists, without a state file that says what wrote it; "
                "remove it, or choose another output"
            )

    def _is_begun(self, state: dict[str, Any]) -> bool:
        return _is_written(self.path)

    @property
    def finished(self) -> bool:
        """Whether every record is answered."""
        return self.state["finished"]

    @property
    def records(self) -> int:
        """How many records are answered."""
        return self.state["records"]

    def check(self, identity: dict[str, Any]) -> None:
        """Raises ValueError unless the answers were made with these values."""
        known = {x: value for x, value in identity.items() if x in self.state or x != _LATER}
        of_output = {name: self.state.get(name) for name in known}
        if changed := differences(of_output, known):
            raise ValueError(
                f"{self.path} holds answers made with other settings; choose another output, or "
                f"remove it and {self._note.name}. Received: {'; '.join(changed.values())}"
            )

    def save(self, **changes: Any) -> None:
        """Writes the state file, with these values instead of those before."""
        self.state |= changes
        write_note(self._note, self.state)


class AnswerFile(AnswerState):
    """The output of a prediction, and its progress.

    Args:
        path: the file of lines of JSON.
        identity: what the answers depend on besides the input, as JSON can hold it.

    Raises:
        ValueError: the file is there and was written by something else.
    """

    def __init__(self, path: PathLike, identity: dict[str, Any]) -> None:
        super().__init__(path, identity)
        self._file = GrowingFiles(os.fspath(path))

    def _is_begun(self, state: dict[str, Any]) -> bool:
        if state["finished"]:  # an input without records has an empty file of answers
            return self.path.exists()
        # Before the first answer nothing is lost by other settings.
        return super()._is_begun(state) and bool(state["records"])

    def check_whole(self) -> None:
        """Raises ValueError where the file has lost answers that the state file counts."""
        size, there = self._size(), self.path.stat().st_size
        if there < size:
            raise ValueError(
                f"{self.path} must have the {size} bytes that were written to it. Received: {there}"
            )

    @contextlib.contextmanager
    def appending(self) -> Iterator[None]:
        """Opens the file after the last line of the state file.

        Where it fails before the first answer both files go.
        """
        size = self._size()
        with self._file:
            self._file.open([size])  # first: another process may be writing both files
            self.save()
            try:
                yield
            except BaseException:
                if not self.records:
                    self.path.unlink(missing_ok=True)
                    self._note.unlink(missing_ok=True)
                raise

    def append(self, columns: Columns, table: Table, answers: Sequence[Any], checksum: int) -> None:
        """Writes answers, on disk when this returns, and their number to the state file.

        Args:
            columns: of the task.
            table: the records.
            answers: one for each, as `Task.answer_table` gives them.
            checksum: of all records so far.
        """
        self._file.append(self._content(columns, table, answers))
        self.save(records=self.records + len(table), checksum=checksum)

    def finish(self) -> None:
        """Says that there are no more records."""
        self.save(finished=True)

    def _content(self, columns: Columns, table: Table, answers: Sequence[Any]) -> bytes:
        lines = answer_lines(columns, table, answers, expected=False)
        return "".join(f"{line}\n" for line in lines).encode()

    def _size(self) -> int:
        """Bytes of the answers that the state file counts."""
        sizes = []
        if self.records:
            with self.path.open("rb") as file:
                lines = itertools.islice(file, self.records)
                sizes = [len(line) for line in lines if line.endswith(b"\n")]
        if len(sizes) < self.records:
            raise ValueError(
                f"{self.path} must have the {self.records} lines that were written to it. "
                f"Received: {len(sizes)}"
            )
        return sum(sizes)


class VectorFile(AnswerFile):
    """The vectors of texts as a file of NumPy's: `numpy.load` gives (N, D) float32, in their order.

    Until it is finished the file has no header that NumPy knows, so that no part of it is taken for
    the whole.

    Args:
        path: the file.
        identity: as of `AnswerFile`.
        width: D.
    """

    def __init__(self, path: PathLike, identity: dict[str, Any], width: int) -> None:
        super().__init__(path, identity)
        self._width = width

    @contextlib.contextmanager
    def appending(self) -> Iterator[None]:
        with super().appending():
            if self.records:  # what was finished may go on, as standard input does
                self._write_header(_UNFINISHED)
            else:
                self._file.append(_UNFINISHED.ljust(npy.HEADER_BYTES, b"\0"))
            yield

    def finish(self) -> None:
        shape = (self.records, self._width)
        self._write_header(npy.header(np.dtype("<f4"), shape))
        super().finish()

    def _write_header(self, content: bytes) -> None:
        with self.path.open("r+b") as file:
            file.write(content.ljust(npy.HEADER_BYTES, b"\0"))
            file.flush()
            os.fsync(file.fileno())

    def _content(self, columns: Columns, table: Table, answers: Sequence[Any]) -> bytes:
        vectors = np.array([answer["vector"] for answer in answers], "<f4")
        return vectors.tobytes()

    def _size(self) -> int:
        return npy.HEADER_BYTES + 4 * self.records * self._width if self.records else 0


def answer_records(
    task: Task,
    records: Records,
    output: AnswerFile,
    *,
    batch_size: int = 32,
    options: Options | None = None,
) -> Iterator[int]:
    """Answers an input in memory that does not grow with it.

    Of an output that is finished, the input is compared with the one that it answers.

    Args:
        task: what answers: any that has `answer_table`.
        records: the input.
        output: where the answers go.
        batch_size: rows computed at once.
        options: of the task's `answer_options`; None = their defaults.

    Yields:
        How many records are answered so far.

    Raises:
        ValueError: the input is not the one that the first answers are of, the output has lost
            some of them, or a record is not as the task needs it, by its line.
    """
    rest = iter(records)
    checksum = _skip(rest, output, records.source)
    if output.finished:
        if next(rest, None) is not None:
            raise _other_input(output, records.source, f"more than {output.records:,} records")
        output.check_whole()
        return
    with output.appending():
        answering = _Answering(task, options or task.answer_options(), records.source, batch_size)
        for chunk, table, answers in answering.answered(rest, output.records):
            checksum = checksum_of(chunk, checksum)
            output.append(task.columns, table, answers, checksum)
            yield output.records
        output.finish()


def answer_stream(
    task: Task, records: Records, *, batch_size: int = 32, options: Options | None = None
) -> Iterator[str]:
    """The lines that `answer_records` writes, each as soon as its batch is computed.

    Args:
        task: what answers.
        records: the input.
        batch_size: records that are read, and then answered.
        options: as of `answer_records`.
    """
    answering = _Answering(task, options or task.answer_options(), records.source, batch_size)
    for _, table, answers in answering.answered(iter(records), most=batch_size):
        yield from answer_lines(task.columns, table, answers, expected=False)


def model_checksum(task: Task) -> str:
    """Of the weights and the settings, wherever they were loaded from."""
    settings = dict(task.settings)
    if isinstance(getattr(task, "chosen", None), WindowOptions):
        # By its former name: half-written answers of the version before resume.
        settings["stride"] = settings.pop("doc_stride")
    text = json.dumps(settings, sort_keys=True, default=str)
    weights = (weight.numpy() for weight in task.weights)
    return f"{fingerprints.crc32(itertools.chain([text], weights)):08x}"


def answer_chunk(
    task: Task, chunk: list[Record], source: str, batch_size: int
) -> tuple[list[str], int]:
    """A line for each record of a chunk, and how many of them were cut."""
    table = _table(chunk, source)
    answers, cut = task.answer_table(table, task.answer_options(), batch_size=batch_size)
    return answer_lines(task.columns, table, answers, expected=False), cut


def checksum_of(records: Iterable[Record], checksum: int = 0) -> int:
    """Of the values of records, and of those before them."""
    texts = (json.dumps(record, sort_keys=True) for _, record in records)
    return fingerprints.crc32(texts, checksum)


@dataclasses.dataclass(frozen=True)
class _Answering:
    """Who answers, and how."""

    task: Task
    options: Options
    source: str
    batch_size: int

    def answered(
        self, records: Iterator[Record], first: int = 0, most: int | None = None
    ) -> Iterator[tuple[list[Record], Table, Sequence[Any]]]:
        """Chunks of records, the same as tables, and an answer to each.

        The first texts that are cut are reported at once, all of them at the end.

        Args:
            records: those that are not answered.
            first: the number of the first of them.
            most: of a chunk; None = as many as a kill may cost.
        """
        count = cut = reported = 0
        for chunk in chunks(records, min(most or CHUNK, CHUNK, self.task.answers_at_once)):
            table = _table(chunk, self.source)
            answers, more = self.task.answer_table(
                table, self.options, batch_size=self.batch_size, first=first + count
            )
            count, cut = count + len(chunk), cut + more
            if not reported:
                self.task.report_cut(cut, count)
                reported = cut
            yield chunk, table, answers
        if cut > reported:
            self.task.report_cut(cut, count)


def _skip(records: Iterator[Record], output: AnswerFile, source: str) -> int:
    """Skips the answered records, and returns their checksum."""
    checksum = read = 0
    for record in itertools.islice(records, output.records):
        checksum = checksum_of([record], checksum)
        read += 1
    if read < output.records:
        raise _other_input(output, source, f"{read:,} records, of {output.records:,} answers")
    if checksum != output.state["checksum"]:
        raise _other_input(output, source, f"others among the first {output.records:,} records")
    return checksum


def _other_input(output: AnswerFile, source: str, received: str) -> ValueError:
    return ValueError(
        f"{output.path} holds the answers to another input than {source}: choose another file, or "
        f"remove it to start over. Received: {received}"
    )


def _is_written(path: Path) -> bool:
    """Whether a file or folder holds anything."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0


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
