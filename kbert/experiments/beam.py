"""Answers to many files on Apache Beam: for each file the bytes that `answer_records` writes.

    files ─ read in chunks ─ shuffle ─ answer each chunk ─ group by file ─ join

One worker reads a file; any worker may answer its chunks, which are those of a local run. Workers
write into the folder themselves, each file whole or not at all. So a restart after a kill reuses
the answers of finished chunks. The files get their final names when all of them are complete.
"""

import dataclasses
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from kbert.core import late
from kbert.core.types import PathLike
from kbert.data.corpus.beam import pipeline_options
from kbert.experiments import answer_file
from kbert.experiments.catalogue import task_for
from kbert.experiments.records import Record, Records
from kbert.io import atomic
from kbert.io.chunks import chunks
from kbert.io.outputs import Output, read_note, write_note
from kbert.io.paths import Path, absolute, is_dir, remove_tree
from kbert.tasks import FineTuningTask, Task
from kbert.text.sources import expand

_PREDICTIONS = "predictions-"
# One model and one call at a time in a process: a call uses all its cores, or its GPU.
_ONE_AT_A_TIME = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Job:
    """The description of the job that each worker gets.

    Attributes:
        preset: folder or name of the task.
        task_module: file or module of a custom task, or None.
        model: checksum of the model.
        kind: kind of the named task, for `Records`.
        columns: kbert's name of a column -> the files' name.
        batch_size: rows computed at once.
        work: folder for answers that are not finished.
    """

    preset: str
    task_module: str | None
    model: str  # checksum of the model
    kind: str
    columns: Mapping[str, str | Sequence[str]]
    batch_size: int
    work: str

    def part(self, file: int, chunk: int) -> str:
        """Returns the path of the answers to a chunk, by the numbers of file and chunk."""
        return os.path.join(self.work, f"{file:05d}-{chunk:08d}.json")

    def joined(self, file: int) -> str:
        """Returns the path of all answers to a file, by its number, until all files are done."""
        return os.path.join(self.work, f"{file:05d}.jsonl")

    @property
    def counts(self) -> str:
        """Path of the numbers of records and truncated records of all files."""
        return os.path.join(self.work, "counts.json")


def answer_on_beam(
    preset: PathLike,
    pattern: str,
    folder: PathLike,
    beam_flags: Sequence[str] = (),
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    batch_size: int = 32,
    task_module: str | None = None,
) -> int:
    """Answers files of records with an Apache Beam pipeline.

    After a kill, the same call answers the records that are left.

    Args:
        preset: the fine-tuned task, as for `Task.from_preset`; each worker process loads it once.
        pattern: pattern of the files of records, in the formats of `Records`. All workers must see
            the files and `folder`.
        folder: folder for the answers. It gets a file `predictions-00000-of-00012.jsonl` and so on
            for each input file, in the order of their names. Each has the bytes that
            `answer_records` writes for the input file.
        beam_flags: flags of Beam, such as "--runner=FlinkRunner".
        columns: kbert's name of a column -> the files' name, as for `Records`.
        batch_size: rows computed at once.
        task_module: file or module of a custom task, as for `late.user_module`.

    Returns:
        The number of records.

    Raises:
        ImportError: Apache Beam is not installed.
        ValueError: a flag of Beam is unknown, the folder holds something else, or a file has an
            unknown format.
        Exception: a worker failed (an exception of Beam); for a bad record it has file and line.
    """
    options = pipeline_options(beam_flags, "Predicting")
    if task_module is not None and task_module.endswith(".py"):
        task_module = absolute(task_module)
    preset = os.fspath(preset)
    preset = absolute(preset) if is_dir(preset) else preset  # else a name on the hub
    paths = [absolute(path) for path in sorted(expand(pattern))]
    task = _load(preset, task_module)
    kind, columns = task_for(task).kind, dict(columns or {})
    model = answer_file.model_checksum(task)
    # Only finished answers are checked against this. Until then a bad record may be corrected: each
    # part has a checksum of its records.
    of_input = {
        "files of the input": len(paths),
        "bytes of the input": sum(Records(path, kind, columns).size or 0 for path in paths),
    }
    folder = absolute(folder)
    with atomic.only_one(folder):
        made_by = {"model": model, "tokenizer": task.tokenizer.checksum, "columns": columns}
        state = Output(
            folder,
            made_by,
            former=answer_file.with_later_fields(made_by),
            records=0,
            finished=False,
        )
        work = os.path.join(folder, "work")
        if state.finished:
            state.check(of_input)
        else:
            state.save()
            for path in Path(folder).iterdir():  # left by a kill between the renames
                if path.name.startswith(_PREDICTIONS):
                    atomic.remove(path)
            job = _Job(preset, task_module, model, kind, columns, batch_size, work)
            _run(options, paths, job)
            counts = cast(dict, read_note(job.counts, "The counts of answers"))
            task.report_cut(counts["cut"], counts["records"])
            for number in range(len(paths)):
                name = f"{_PREDICTIONS}{number:05d}-of-{len(paths):05d}.jsonl"
                Path(job.joined(number)).replace(os.path.join(folder, name))
            state.save(records=counts["records"], finished=True, **of_input)
        remove_tree(work)
    return state.records


def _run(options: Any, paths: list[str], job: _Job) -> None:
    """Runs the pipeline; it writes the answers to each file, and the counts, to `job.work`."""
    import apache_beam as beam

    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | "files" >> beam.Create(list(enumerate(paths)), reshuffle=True)
            | "read" >> beam.FlatMap(_read, job)
            | "spread" >> beam.Reshuffle()
            | "answer" >> beam.Map(_answer, job)
            | "by file" >> beam.GroupByKey()
            | "join" >> beam.Map(_join, job)
            | "sum" >> beam.CombineGlobally(_sum)
            | "note" >> beam.Map(_note, job)
        )


# The steps that workers execute.


def _read(file: tuple[int, str], job: _Job) -> Iterator[tuple[int, int, str, list[Record]]]:
    """Yields the chunks of a file, and an empty chunk at the end.

    Args:
        file: number and path of the file.
        job: description of the job.

    Yields:
        Number of the file, number of the chunk, path of the file, records.
    """
    number, path = file
    if job.task_module is not None:
        with _ONE_AT_A_TIME:
            late.user_module(job.task_module)
    count = 0
    for chunk in chunks(Records(path, job.kind, job.columns), answer_file.CHUNK):
        yield number, count, path, chunk
        count += 1
    yield number, count, path, []


def _answer(chunk: tuple[int, int, str, list[Record]], job: _Job) -> tuple[int, int]:
    """Writes the answers to a chunk, unless an earlier run wrote them.

    Args:
        chunk: number of the file, number of the chunk, path of the file, records.
        job: description of the job.

    Returns:
        Number of the file, number of the chunk.
    """
    file, number, path, records = chunk
    part, checksum = job.part(file, number), answer_file.checksum_of(records)
    finished_part = read_note(part, "A part of the answers")
    if records and (finished_part is None or finished_part["checksum"] != checksum):
        with _ONE_AT_A_TIME:
            task = _model(job.preset, job.task_module, job.model)
            lines, cut = answer_file.answer_chunk(task, records, path, job.batch_size)
        Path(job.work).mkdir(parents=True, exist_ok=True)
        write_note(part, {"checksum": checksum, "cut": cut, "lines": lines})
    return file, number


def _join(found: tuple[int, Iterable[int]], job: _Job) -> tuple[int, int]:
    """Writes the answers to all chunks of a file to one file.

    Args:
        found: number of the file, and numbers of its chunks.
        job: description of the job.

    Returns:
        The number of records, and the number of truncated records.
    """
    file, numbers = found
    records = cut = 0
    Path(job.work).mkdir(parents=True, exist_ok=True)
    with atomic.writing(job.joined(file)) as output:
        for number in range(max(numbers)):
            part = read_note(job.part(file, number), "A part of the answers")
            if part is None:
                raise RuntimeError(
                    "All workers must have access to the folder of the answers. Received: no file "
                    f"{job.part(file, number)}, which another worker wrote"
                )
            output.write("".join(f"{line}\n" for line in part["lines"]).encode())
            records, cut = records + len(part["lines"]), cut + part["cut"]
    return records, cut


def _sum(found: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Adds up the numbers of records and of truncated records of all files."""
    records = cut = 0
    for pair in found:
        records, cut = records + pair[0], cut + pair[1]
    return records, cut


def _note(counts: tuple[int, int], job: _Job) -> None:
    records, cut = counts
    write_note(job.counts, {"records": records, "cut": cut})


@functools.lru_cache(maxsize=1)
def _model(preset: str, task_module: str | None, checksum: str) -> FineTuningTask:
    """Loads the task, once per process; ValueError if its checksum differs from that of the job."""
    task = _load(preset, task_module)
    if (loaded_checksum := answer_file.model_checksum(task)) != checksum:
        raise ValueError(
            f"All workers must use the same model. Received: another one in {preset} (checksum "
            f"{loaded_checksum}, not {checksum})"
        )
    return task


def _load(preset: str, task_module: str | None) -> FineTuningTask:
    """Loads the task of a preset, after importing the module of a custom task."""
    if task_module is not None:
        late.user_module(task_module)
    return cast(FineTuningTask, Task.from_preset(preset))
