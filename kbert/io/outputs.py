"""Output that a killed program resumes: a note of what is written, and how far it is.

A note is a file of JSON: what the output is made of, settings and sources, and how much of it is
there. It is published when the bytes that it describes are on the disk, so a restart may trust it:
of files that grow it cuts off what came after, and of shards, each of which is there whole or not
at all (`kbert.io.atomic`), it writes those that are missing.
"""

import contextlib
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from kbert.io import atomic, fingerprints
from kbert.io.formats import Format
from kbert.io.json_file import read_json
from kbert.io.paths import Path, exists, local_only

Item = TypeVar("Item")
_PART = ".part"
_LONGEST = 200  # letters of a value that differs


def read_note(path: str | os.PathLike, what: str) -> dict[str, Any] | None:
    """What `write_note` wrote; None where there is no such file.

    Args:
        path: the file.
        what: what an error calls it.

    Raises:
        ValueError: the file is no JSON object.
    """
    if not exists(path):
        return None
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(
            f"{what} must be JSON, as it was written, and was cut off or changed. {error}"
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
    """Refuses to resume an output that was made of something else.

    What is not there counts as None: so an option may be added that is None where it is not used.

    Args:
        path: the output.
        note: the file that holds `before`.
        before: what a note says; it may say more than what it is made of.
        now: what the output is made of. Of a dict in it, all names are compared.

    Raises:
        ValueError: the two differ; the message has both values.

    Example:
        >>> check_same("out", "note", {"seed": 1, "shape": [2]}, {"seed": 1, "shape": (2,)})
        >>> check_same("out", "note", {"settings": {"seed": 1}}, {"settings": {"words": 2}})
        Traceback (most recent call last):
        ...
        ValueError: out was begun with other settings: give the same to resume it, choose another \
output, or remove it and note. Received: settings.seed was 1, is None; settings.words was None, \
is 2
    """
    if changed := changes(before, now):
        raise ValueError(
            f"{path} was begun with other settings: give the same to resume it, choose another "
            f"output, or remove it and {note}. Received: {'; '.join(changed)}"
        )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs from a note, with both values, as `check_same` compares it."""
    now = json.loads(json.dumps(now))  # as it comes back from a file
    return [*_changed({name: before.get(name) for name in now}, now)]


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> Iterator[str]:
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
        path: a file or a folder.
        identity: what it is made of, as JSON can hold it.
        note: the file of the note; None = `<path>.state.json`.
        former: gives a note of any version the names of this one.
        **progress: what the note of a new output says besides.

    Attributes:
        state: what the note says.

    Raises:
        ValueError: the output is there, and made of something else.

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
        before = read_note(self.note, f"The note of {self.path.name}")
        before = before and former(before)
        if before is not None and self._is_begun(before):
            self.state = before
            self.check(identity)
        elif before is None and _is_written(self.path):
            raise ValueError(
                f"{self.path} already exists, without {self.note.name}, which would say what wrote "
                "it; remove it, or choose another output"
            )
        elif before and before.get("records"):
            warnings.warn(
                f"{self.path} is not there any more, with the {before['records']:,} records of "
                f"{self.note.name}: starting over",
                stacklevel=3,
            )

    def _is_begun(self, state: Mapping[str, Any]) -> bool:
        return _is_written(self.path)

    @property
    def finished(self) -> bool:
        """Whether all of it is there."""
        return self.state["finished"]

    @property
    def records(self) -> int:
        """How many records are there."""
        return self.state["records"]

    def check(self, identity: Mapping[str, Any]) -> None:
        """Raises ValueError unless the output is made of this."""
        check_same(self.path, self.note.name, self.state, identity)

    def save(self, **changes: Any) -> None:
        """Writes the note, with these values instead of those before."""
        self.state |= changes
        write_note(self.note, self.state)


class GrowingOutput(Output):
    """An output that gets a chunk of records at a time, each from an item of the input.

    A restart reads the input again, which is cheap compared with what is made of it, and knows by a
    checksum whether its beginning is still the same.

    Args:
        path: the file; a local one, since an object store cannot grow a file.
        identity: what the output depends on besides the input, as JSON can hold it.
        form: how records become bytes.
        note: the file of the note; None = `<path>.state.json`.
        former: gives a note of any version the names of this one.
        hidden: the file has another name, `<path>.part`, until it is whole; then the note goes.

    Raises:
        ValueError: the file is there, and made of something else.

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
        path = local_only(path, "Output that grows while it is made")
        self.form = form
        self._names = form.names(path)  # the one first that readers look for
        self._paths = [name + _PART * hidden for name in self._names]
        self._hidden = hidden
        self._files: list[BinaryIO] = []
        self._text_of: Callable[[Any], str] = str
        super().__init__(path, identity, note, former, records=0, checksum=0, finished=False)

    def _is_begun(self, state: Mapping[str, Any]) -> bool:
        if state["finished"]:  # an input without records has an empty file
            return self.path.exists()
        # Before the first record nothing is lost by other settings.
        return bool(state["records"]) and _is_written(Path(self._paths[0]))

    def rest(
        self, items: Iterable[Item], text_of: Callable[[Item], str], source: str = "this one"
    ) -> Iterator[Item]:
        """The items that have no record yet; none of an output that is finished.

        Args:
            items: the input, from its beginning.
            text_of: what an item is recognised by.
            source: what an error calls the input.

        Raises:
            ValueError: these items are others than those that the records are of, or the file has
                lost some of these.
        """
        rest = iter(items)
        self._text_of = text_of
        read = checksum = 0
        for item in itertools.islice(rest, self.records):
            read, checksum = read + 1, fingerprints.crc32([text_of(item)], checksum)
        received = None
        if read < self.records:
            received = f"{read:,} records, of {self.records:,} that are written"
        elif checksum != self.state.get("checksum", checksum):  # None of before this version
            received = f"others among the first {read:,} records"
        elif self.finished and next(rest, None) is not None:
            received = f"more than {read:,} records"
        if received:
            raise ValueError(
                f"{self.path} was made of another input than {source}: choose another output, or "
                f"remove it and {self.note.name} to start over. Received: {received}"
            )
        self.state["checksum"] = checksum
        if self.finished:
            for path, size in zip(self._paths, self._sizes(), strict=True):
                _check_size(path, os.path.getsize(path), size)
        return rest

    @contextlib.contextmanager
    def growing(self) -> Iterator[None]:
        """Opens the files behind the last record; the block adds the others.

        Where the block fails before the first record nothing is left.

        Raises:
            OSError: a file cannot be written.
            BlockingIOError: another process is writing it.
            ValueError: a file has lost bytes.
        """
        try:
            self._open()  # first: another process may be writing the note too
            self.save(finished=False)
            try:
                self._write_heads()
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
        """Writes records, on the disk when this returns, and then says so in the note.

        Args:
            records: as the format takes them.
            items: what each was made of.
        """
        self._append(self.form.encode(records, self._ends()))
        checksum = fingerprints.crc32(map(self._text_of, items), self.state["checksum"])
        self.save(records=self.records + len(records), checksum=checksum)

    def _open(self) -> None:
        for name, path in zip(self._names, self._paths, strict=True):
            if exists(name) and not exists(path):
                os.replace(name, path)  # a kill came between the names
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
        heads = self.form.heads(self._ends(), finished)
        for file in self._files:
            file.seek(0)
        self._append(heads)
        for file in self._files:
            file.seek(0, os.SEEK_END)

    def _ends(self) -> list[int]:
        return [file.tell() for file in self._files]

    def _sizes(self) -> list[int]:
        """Bytes of the records that the note counts."""
        return (
            self.form.sizes(self._paths, self.records) if self.records else [0] * len(self._paths)
        )


def _check_size(path: str, there: int, size: int) -> None:
    if there < size:
        raise ValueError(
            f"{path} must have the {size} bytes that were written to it. Received: {there}"
        )


def _is_written(path: Path) -> bool:
    """Whether a file or folder holds anything."""
    if path.is_dir():
        return any(not atomic.is_leftover(inner.name) for inner in path.iterdir())
    return path.exists() and path.stat().st_size > 0
