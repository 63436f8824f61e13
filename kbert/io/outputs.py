"""Output that a killed program can resume, with a note that records its progress.

A note is a JSON file. It records what the output is made of (settings and sources), and how much of
it is written. It is saved once the bytes that it describes are on the disk, so a restart may trust
it. The restart truncates growing files to the length in the note. Shards are there whole or not at
all (`kbert.io.atomic`), so it writes those that are missing.
"""

import contextlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from kbert.core.contexts import repeatable
from kbert.io import atomic, fingerprints
from kbert.io.formats import Format
from kbert.io.json_file import read_json
from kbert.io.paths import Path, exists, local_only

Item = TypeVar("Item")
_PART = ".part"
_LONGEST = 200  # shown characters of a value that differs


def read_note(path: str | os.PathLike, what: str) -> dict[str, Any] | None:
    """Reads a note that `write_note` wrote; returns None if there is no such file.

    Args:
        path: the file.
        what: name of the file in an error message.

    Raises:
        ValueError: the file is not a JSON object.
    """
    if not exists(path):
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(
            f"{what} must be JSON, as it was written, but was truncated or changed. {error}"
        ) from error


def write_note(path: str | os.PathLike, note: Mapping[str, Any]) -> None:
    """Writes a note, whole or not at all.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "note.json")
    >>> write_note(path, {"records": 3})
    >>> read_note(path, "The note"), read_note(path + "x", "The note")
    ({'records': 3}, None)
    """
    text = json.dumps(note, indent=2, ensure_ascii=False) + "\n"
    atomic.write(path, text.encode())


def check_same(
    path: str | os.PathLike, note: str | os.PathLike, before: Mapping, now: Mapping[str, Any]
) -> None:
    """Raises if an output that is to be resumed was made of something else.

    A missing name counts as None. So a new version may add an option that is None if unused.

    Args:
        path: the output.
        note: the file that holds `before`.
        before: content of the note; only the names in `now` are compared.
        now: what the output is made of now. In nested dicts the names of both sides are compared.

    Raises:
        ValueError: the two differ; the message has both values.

    Example:
        >>> check_same("out", "note", {"seed": 1, "shape": [2]}, {"seed": 1, "shape": (2,)})
        >>> check_same("out", "note", {"settings": {"seed": 1}}, {"settings": {"words": 2}})
        Traceback (most recent call last):
        ...
        ValueError: out was started with other settings: pass the same settings to resume it, \
choose another output, or remove it and note. Received: settings.seed was 1, is None; \
settings.words was None, is 2
    """
    if changed := changes(before, now):
        raise ValueError(
            f"{path} was started with other settings: pass the same settings to resume it, choose "
            f"another output, or remove it and {note}. Received: {'; '.join(changed)}"
        )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lists the differences between a note and the present values, such as "seed was 1, is 2".

    Only the names in `now` are compared, like in `check_same`. Without differences the list is
    empty.
    """
    now = json.loads(json.dumps(now))  # as it would be read from a file
    return [*_changed({name: before.get(name) for name in now}, now)]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
    """Yields a text such as "seed was 1, is 2" for each entry that differs, also in inner dicts.

    `within` is the prefix of the names, such as "optimizer.".
    """
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _changed(old, new, f"{within}{name}.")
        elif old != new:
            yield f"{within}{name} was {_short(old)}, is {_short(new)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class Output:
    """An output and its note.

    Args:
        path: the output, a file or a folder.
        identity: what the output is made of, as JSON can hold it.
        note: the file of the note; None = `<path>.state.json`.
        former: function that converts a note of any version to the names of this one.
        **progress: further entries in the note of a new output.

    Attributes:
        state: content of the note.

    Raises:
        ValueError: the output exists and was made of something else, or has no note.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "answers")
        >>> Output(path, {"model": "a"}, finished=False).save(finished=True)
        >>> _ = Path(path).write_text("…")
        >>> Output(path, {"model": "a"}).finished
        True
    """

    def __init__(
        self,
        path: str | os.PathLike,
        identity: Mapping[str, Any],
        note: str | os.PathLike | None = None,
        former: Callable[[dict], dict] = dict,
        **progress: Any,
    ) -> None:
        self.path = Path(path)
        self.note = Path(note or f"{self.path}.state.json")
        self.state = {**progress, **identity}
        previous = read_note(self.note, f"The note of {self.path.name}")
        previous = previous and former(previous)
        if previous is not None and self._is_begun(previous):
            self.state = previous
            self.check(identity)
        elif previous is None and _is_written(self.path):
            raise ValueError(
                f"{self.path} already exists without {self.note.name}, the record of what wrote "
                "it; remove it or choose another output"
            )
        elif previous and previous.get("records"):
            warnings.warn(
                f"{self.path} no longer exists, but {self.note.name} lists {previous['records']:,} "
                "records in it: starting over",
                stacklevel=3,
            )

    def _is_begun(self, state: Mapping[str, Any]) -> bool:
        return _is_written(self.path)

    @property
    def finished(self) -> bool:
        """Whether the output is complete."""
        return self.state["finished"]

    @property
    def records(self) -> int:
        """Number of written records."""
        return self.state["records"]

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raises ValueError unless the note has the same `identity`: what the output is made of."""
        check_same(self.path, self.note.name, self.state, identity)

    def save(self, **changes: Any) -> None:
        """Updates the note with these values and writes it."""
        self.state |= changes
        write_note(self.note, self.state)


class GrowingOutput(Output):
    """An output that grows by one chunk of records at a time, with one record per input item.

    A restart reads the input again, which is cheap compared with computing the records. A checksum
    shows whether the beginning of the input is still the same.

    Args:
        path: the file; it must be local, since a file in an object store cannot grow.
        identity: what the output depends on besides the input, as JSON can hold it.
        form: format that converts records to bytes.
        note: the file of the note; None = `<path>.state.json`.
        former: function that converts a note of any version to the names of this one.
        hidden: whether the file is named `<path>.part` until it is complete. The note is then
            removed at the end.

    Raises:
        ValueError: the file exists and was made of something else, or has no note.

    Example:
        >>> import tempfile
        >>> from kbert.io.formats import JsonLines
        >>> path = os.path.join(tempfile.mkdtemp(), "squares.jsonl")
        >>> for most in 1, 3:
        ...     output = GrowingOutput(path, {"of": "squares"}, JsonLines())
        ...     rest = output.rest([1, 2, 3], str)
        ...     with contextlib.suppress(InterruptedError), output.growing():
        ...         for item in rest:
        ...             if item > most:
        ...                 raise InterruptedError
        ...             output.add([str(item**2)], [item])
        ...     print(output.records, output.finished, open(path).read().split())
        1 False ['1']
        3 True ['1', '4', '9']
    """

    def __init__(
        self,
        path: str | os.PathLike,
        identity: Mapping[str, Any],
        form: Format,
        note: str | os.PathLike | None = None,
        former: Callable[[dict], dict] = dict,
        *,
        hidden: bool = False,
    ) -> None:
        path = local_only(path, "A resumable output")
        self.form = form
        self._names = form.names(path)  # the first is the one that readers look for
        self._paths = [name + _PART * hidden for name in self._names]
        self._hidden = hidden
        self._files: list[BinaryIO] = []
        self._text_of: Callable[[Any], str] = str
        super().__init__(path, identity, note, former, records=0, checksum=0, finished=False)

    def _is_begun(self, state: Mapping[str, Any]) -> bool:
        if state["finished"]:  # an input without records has an empty file
            return self.path.exists()
        # Without records nothing is lost if the settings change.
        return bool(state["records"]) and _is_written(Path(self._paths[0]))

    def rest(
        self, items: Iterable[Item], text_of: Callable[[Item], str], source: str = "this one"
    ) -> Iterator[Item]:
        """Returns the items that have no record yet; none if the output is finished.

        Args:
            items: the input, from its beginning.
            text_of: function that returns the text of an item, for the checksum.
            source: name of the input in an error message.

        Raises:
            ValueError: the records were made of other items, or a finished file has lost records.
        """
        remaining = iter(items)
        self._text_of = text_of
        num_read = checksum = 0
        for item in itertools.islice(remaining, self.records):
            num_read, checksum = num_read + 1, fingerprints.crc32([text_of(item)], checksum)
        received = None
        if num_read < self.records:
            received = f"{num_read:,} records, but {self.records:,} are already written"
        elif checksum != self.state.get("checksum", checksum):  # former versions wrote none
            received = f"other records among the first {num_read:,}"
        elif self.finished and next(remaining, None) is not None:
            received = f"more than {num_read:,} records"
        if received:
            raise ValueError(
                f"{self.path} was made from another input than {source}: choose another output, "
                f"or remove it and {self.note.name} to start over. Received: {received}"
            )
        self.state["checksum"] = checksum
        if self.finished:
            for path, size in zip(self._paths, self._sizes(), strict=True):
                _check_size(path, os.path.getsize(path), size)
        return remaining

    @contextlib.contextmanager
    def growing(self) -> Iterator[None]:
        """Opens the files after the last record; the block adds the missing records.

        In the block predictions have the same digits whether or not the run was resumed.

        If the block fails before the first record, the files and the note are removed.

        Raises:
            OSError: a file cannot be written.
            BlockingIOError: another process is writing a file.
            ValueError: a file has lost bytes.
        """
        try:
            self._open()  # first: another process may be writing the note too
            self.save(finished=False)
            try:
                self._write_heads()
                with repeatable():
                    yield
            except BaseException:
                if not self.records:
                    for path in (*self._paths, os.fspath(self.note)):
                        atomic.remove(path)
                raise
            self._write_heads(finished=True)
        finally:
            while self._files:
                self._files.pop().close()
        if self._hidden:
            for name in self._names[::-1]:
                atomic.publish(name + _PART, name)
            atomic.remove(self.note)
        else:
            self.save(finished=True)

    def add(self, records: Any, items: Iterable[Any]) -> None:
        """Writes records to the disk, then updates the note.

        Args:
            records: records, as the format's `encode` takes them.
            items: the input item of each record.
        """
        self._append(self.form.encode(records, self._ends()))
        checksum = fingerprints.crc32(map(self._text_of, items), self.state["checksum"])
        self.save(records=self.records + len(records), checksum=checksum)

    def _open(self) -> None:
        """Opens and locks the files, and cuts what follows the last record of the note.

        Raises:
            OSError: a file cannot be opened.
            BlockingIOError: another process is writing a file.
            ValueError: a file is shorter than the note says.
        """
        for name, path in zip(self._names, self._paths, strict=True):
            if exists(name) and not exists(path):
                os.replace(name, path)  # the process was killed between the renames
        for path, size in zip(self._paths, self._sizes(), strict=True):
            with atomic.naming(path):
                file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            self._files.append(file)
            atomic.claim(file.fileno(), path)
            _check_size(path, file.seek(0, os.SEEK_END), size)
            file.truncate(size)
            file.seek(size)

    def _append(self, chunks: Sequence[bytes]) -> None:
        for file, path, chunk in zip(self._files, self._paths, chunks, strict=True):
            with atomic.naming(path):
                file.write(chunk)
                atomic.sync(file)

    def _write_heads(self, finished: bool = False) -> None:
        """Writes the heads of the files again, for the present number of records.

        `finished` says that no records will follow.
        """
        heads = self.form.heads(self._ends(), finished)
        for file in self._files:
            file.seek(0)
        self._append(heads)
        for file in self._files:
            file.seek(0, os.SEEK_END)

    def _ends(self) -> list[int]:
        return [file.tell() for file in self._files]

    def _sizes(self) -> list[int]:
        """Returns the size in bytes that each file has with the records that the note counts."""
        return (
            self.form.sizes(self._paths, self.records) if self.records else [0] * len(self._paths)
        )


def _check_size(path: str, there: int, size: int) -> None:
    if there < size:
        raise ValueError(
            f"{path} must have the {size} bytes that were written to it. Received: {there}"
        )


def _is_written(path: Path) -> bool:
    """Returns whether a file or folder has any content; temporary files in a folder are none."""
    if path.is_dir():
        return any(not atomic.is_leftover(inner.name) for inner in path.iterdir())
    return path.exists() and path.stat().st_size > 0
