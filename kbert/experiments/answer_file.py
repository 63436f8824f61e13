"""Answers to a stream of records, a line of JSON or a vector each, that resume after a kill.

Next to `answers.jsonl` is `answers.jsonl.state.json`: which model wrote it with which settings,
how many records are answered, and a checksum over these records (`kbert.io.outputs`).

What answers is any task with `file_answers`, see `kbert.tasks.Task`.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbert.core.options import Options
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.experiments.evaluation import answer_lines
from kbert.experiments.records import Record, Records
from kbert.io import fingerprints
from kbert.io.chunks import chunks
from kbert.io.formats import Array, JsonLines
from kbert.io.outputs import GrowingOutput
from kbert.tasks import Task, WindowOptions

# Most records in memory at once, and answers that a kill may cost.
CHUNK = 1024


class AnswerFile(GrowingOutput):
    """The output of a prediction, and its progress.

    Args:
        path: the file: lines of JSON, or the vectors of texts as an array of NumPy's.
        identity: what the answers depend on besides the input, as JSON can hold it.
        width: D of vectors: `numpy.load` gives (N, D) float32. None = lines of JSON.

    Raises:
        ValueError: the file is there and was written by something else.
    """

    def __init__(
        self, path: PathLike, identity: Mapping[str, Any], width: int | None = None
    ) -> None:
        form = JsonLines() if width is None else Array(width)
        super().__init__(path, identity, form, former=with_tokenizer(identity))


def with_tokenizer(identity: Mapping[str, Any]) -> Callable[[dict], dict]:
    """What adds the tokenizer to a note of before 1.0.0, which does not say it."""
    return lambda note: {"tokenizer": identity.get("tokenizer"), **note}


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
        task: what answers: any with `file_answers`.
        records: the input.
        output: where the answers go.
        batch_size: rows computed at once.
        options: what the `options` of its `file_answers` choose; None = their defaults.

    Yields:
        How many records are answered so far.

    Raises:
        ValueError: the input is not the one that the first answers are of, the output has lost
            some of them, or a record is not as the task needs it, by its line.
    """
    rest = output.rest(records, _text_of, records.source)
    if output.finished:
        return
    with output.growing():
        answering = _Answering(task, options, records.source, batch_size)
        for chunk, table, answers in answering.answered(rest, output.records):
            if output.form.holds_vectors:
                output.add([answer["vector"] for answer in answers], chunk)
            else:
                output.add(answer_lines(task.columns, table, answers, expected=False), chunk)
            yield output.records


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
    answering = _Answering(task, options, records.source, batch_size)
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
    asked = task.file_answers(task)
    answers, cut = asked.answer(table, asked.options(), batch_size=batch_size)
    return answer_lines(task.columns, table, answers, expected=False), cut


def checksum_of(records: Iterable[Record]) -> int:
    """The checksum of records, whatever their lines."""
    return fingerprints.crc32(map(_text_of, records))


def _text_of(record: Record) -> str:
    return json.dumps(record[1], sort_keys=True)


class _Answering:
    """Who answers, and how."""

    def __init__(self, task: Task, options: Options | None, source: str, batch_size: int) -> None:
        self.task, self.source, self.batch_size = task, source, batch_size
        self.answers = task.file_answers(task)
        self.options = options or self.answers.options()

    def answered(
        self, records: Iterator[Record], first: int = 0, most: int | None = None
    ) -> Iterator[tuple[list[Record], Table, Sequence[Any]]]:
        """Chunks of records, the same as tables, and an answer to each.

        The first texts that are cut are reported at once, all of them at the end.

        Args:
            records: those that are not answered.
            first: the number of the first of them.
            most: Records in a chunk; None = as many as a kill may cost.
        """
        count = cut = reported = 0
        for chunk in chunks(records, min(most or CHUNK, CHUNK, self.answers.at_once)):
            table = _table(chunk, self.source)
            answers, more = self.answers.answer(
                table, self.options, batch_size=self.batch_size, first=first + count
            )
            count, cut = count + len(chunk), cut + more
            if not reported:
                self.task.report_cut(cut, count)
                reported = cut
            yield chunk, table, answers
        if cut > reported:
            self.task.report_cut(cut, count)


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
