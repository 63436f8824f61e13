"""Answers to a stream of records, one JSON line or vector per record, resumable after a kill.

Next to `answers.jsonl` is `answers.jsonl.state.json`. It records the model and settings that wrote
the answers, the number of answered records, and a checksum of these records (`kbert.io.outputs`).

Any task with `file_answers` can answer, see `kbert.tasks.Task`.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbert.attribution import check_default_target, explain_table
from kbert.core.options import Options
from kbert.core.types import PathLike
from kbert.data import Table
from kbert.experiments.evaluation import answer_lines
from kbert.experiments.records import Record, Records
from kbert.io import fingerprints
from kbert.io.chunks import chunks
from kbert.io.formats import Array, JsonLines
from kbert.io.outputs import GrowingOutput
from kbert.models.edits import active_record
from kbert.tasks import Task, WindowOptions

# Maximum number of records in memory at once, and of answers that a kill can lose.
CHUNK = 1024


class AnswerFile(GrowingOutput):
    """The output file of a prediction, with its progress in `<path>.state.json`.

    Args:
        path: the file: lines of JSON, or embeddings of texts as a `.npy` array.
        identity: what the answers depend on besides the input, as JSON can hold it.
        width: size D of the embeddings: `numpy.load` returns (N, D) float32. None = lines of JSON.

    Raises:
        ValueError: the file exists and was made with another `identity`, or has no `.state.json`.
    """

    def __init__(
        self, path: PathLike, identity: Mapping[str, Any], width: int | None = None
    ) -> None:
        form = JsonLines() if width is None else Array(width)
        super().__init__(path, identity, form, former=with_later_fields(identity))


def with_later_fields(identity: Mapping[str, Any]) -> Callable[[dict], dict]:
    """Returns a function that adds to a note the fields that notes of older versions lack.

    A note is the content of a `.state.json`. Before 1.0.0 it had no checksum of the tokenizer, and
    until 1.0.0 answers had no attributions.

    Args:
        identity: what the answers depend on; its "tokenizer" is added.
    """
    return lambda note: {"tokenizer": identity.get("tokenizer"), "attributions": None, **note}


def answer_records(
    task: Task,
    records: Records,
    output: AnswerFile,
    *,
    batch_size: int = 32,
    options: Options | None = None,
) -> Iterator[int]:
    """Answers an input of any size at constant memory.

    If the output is finished, this only checks that the input is the one that was answered.

    Args:
        task: any task with `file_answers`.
        records: the input.
        output: the file for the answers.
        batch_size: rows computed at once.
        options: instance of the `options` class of the task's `file_answers`; None = its defaults.

    Yields:
        The number of records answered so far.

    Raises:
        ValueError: the existing answers are for another input, the output has lost some of them,
            or a record does not fit the task (the message has its line).
    """
    remaining = output.rest(records, _text_of, records.source)
    if output.finished:
        return
    with output.growing():
        answering = _Answering(task, options, records.source, batch_size)
        for chunk, table, answers in answering.answered(remaining, output.records):
            if output.form.holds_vectors:
                output.add([answer["vector"] for answer in answers], chunk)
            else:
                output.add(answer_lines(task.columns, table, answers, expected=False), chunk)
            yield output.records


def answer_stream(
    task: Task, records: Records, *, batch_size: int = 32, options: Options | None = None
) -> Iterator[str]:
    """Yields the lines that `answer_records` writes, as soon as each batch is computed.

    Args:
        task: any task with `file_answers`.
        records: the input.
        batch_size: number of records that are read before they are answered, and rows computed at
            once.
        options: instance of the `options` class of the task's `file_answers`; None = its defaults.
    """
    answering = _Answering(task, options, records.source, batch_size)
    for _, table, answers in answering.answered(iter(records), most=batch_size):
        yield from answer_lines(task.columns, table, answers, expected=False)


def model_checksum(task: Task) -> str:
    """Returns the CRC-32 of a task's weights, settings and active edits, as 8 hex digits."""
    settings = dict(task.settings)
    if isinstance(getattr(task, "chosen", None), WindowOptions):
        # Under its former name, so that unfinished answers of the previous version resume.
        settings["stride"] = settings.pop("doc_stride")
    text = json.dumps(settings, sort_keys=True, default=str)
    if edits := active_record(task):
        text += json.dumps(edits, sort_keys=True, default=str)
    weights = (weight.numpy() for weight in task.weights)
    return f"{fingerprints.crc32(itertools.chain([text], weights)):08x}"


def answer_chunk(
    task: Task, chunk: list[Record], source: str, batch_size: int
) -> tuple[list[str], int]:
    """Answers one chunk of records.

    Args:
        task: task that answers.
        chunk: records with the same fields.
        source: name of the input, for messages.
        batch_size: rows computed at once.

    Returns:
        A line of JSON for each record, and the number of truncated records.
    """
    table = _table(chunk, source)
    file_answers = task.file_answers(task)
    answers, cut = file_answers.answer(table, file_answers.options(), batch_size=batch_size)
    return answer_lines(task.columns, table, answers, expected=False), cut


def checksum_of(records: Iterable[Record]) -> int:
    """Returns the CRC-32 of records; it does not depend on their line numbers."""
    return fingerprints.crc32(map(_text_of, records))


def _text_of(record: Record) -> str:
    """Returns the fields of a record as JSON, without its line number."""
    return json.dumps(record[1], sort_keys=True)


class _Answering:
    """A task that answers records, with its options.

    Args:
        task: any task with `file_answers`.
        options: instance of the `options` class of the task's `file_answers`; None = its defaults.
        source: name of the input, for messages.
        batch_size: rows computed at once.
    """

    def __init__(self, task: Task, options: Options | None, source: str, batch_size: int) -> None:
        self.task, self.source, self.batch_size = task, source, batch_size
        self.answers = task.file_answers(task)
        self.options = options or self.answers.options()
        self.at_once = self.answers.at_once
        self.method: str | None = getattr(self.options, "attributions", None)
        if self.method is not None:
            check_default_target(task, self.method)
            self.at_once = min(self.at_once, batch_size)  # they take long, and a kill loses few

    def answered(
        self, records: Iterator[Record], first: int = 0, most: int | None = None
    ) -> Iterator[tuple[list[Record], Table, Sequence[Any]]]:
        """Yields each chunk of records, the chunk as a table, and an answer for each record.

        Warns after the first chunk with truncated records, and at the end if more were truncated.

        Args:
            records: the records that are not answered yet.
            first: number of the first of these records in the whole input.
            most: maximum number of records in a chunk; None = `CHUNK`. The task's `at_once` may be
                smaller.
        """
        count = cut = reported = 0
        for chunk in chunks(records, min(most or CHUNK, CHUNK, self.at_once)):
            table = _table(chunk, self.source)
            answers, newly_cut = self.answers.answer(
                table, self.options, batch_size=self.batch_size, first=first + count
            )
            if self.method is not None:
                answers = self._with_attributions(table, answers, self.method)
            count, cut = count + len(chunk), cut + newly_cut
            if not reported:
                self.task.report_cut(cut, count)
                reported = cut
            yield chunk, table, answers
        if cut > reported:
            self.task.report_cut(cut, count)

    def _with_attributions(self, table: Table, answers: Sequence[Any], method: str) -> list[dict]:
        """Returns answers with the scores of tokens, under "attributions"; numbers become dicts."""
        found, _ = explain_table(self.task, table, method=method, batch_size=self.batch_size)
        records = (x if isinstance(x, dict) else {"score": float(x)} for x in answers)
        return [
            {**record, "attributions": attribution.to_dict()}
            for record, attribution in zip(records, found, strict=True)
        ]


def _table(chunk: list[Record], source: str) -> Table:
    """Returns a chunk of records as a table; ValueError unless all have the same fields.

    Args:
        chunk: one record or more.
        source: name of the input, for messages.
    """
    names = list(chunk[0][1])
    for line, record in chunk:
        if list(record) != names:
            raise ValueError(
                f"{source}, line {line}: every record must have the same fields, {names}. "
                f"Received: {list(record)}"
            )
    columns = {name: [record[name] for _, record in chunk] for name in names}
    return Table(columns, source=source, lines=[line for line, _ in chunk])
