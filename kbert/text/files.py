"""Text files and JSON lines, plain or gzipped, read in blocks.

A text file contains documents separated by blank lines, as for google-research/bert's
create_pretraining_data.py. A JSON-lines file has one document per line. Errors name the file and
the line or byte.
"""

import codecs
import functools
import gzip
import re
import stat
import zlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

from kbert.io.json_file import parse_json
from kbert.io.paths import Path, absolute, exists, is_remote
from kbert.text import source

# Unlike text, a line of JSON cannot be split.
MAX_JSON_LINE_BYTES = 64 << 20
COLUMNAR = (".parquet", ".arrow", ".feather")  # suffixes of `kbert.text.columnar.ColumnarFile`
_READ_BYTES = 4 << 20
_BLANK_LINE = re.compile(rb"\n[ \t\f\v]*\n\s*")
_ARRAY = re.compile(r"\s*\[\s*(\{|$)")


class File(source.Source):
    """A file of UTF-8 text.

    Args:
        path: path of the file; `.gz` is unpacked while reading.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.
    """

    # Advice in the error about a bad byte, in addition to converting the file.
    remedy = ", or put U+FFFD in place of bad bytes with on_bad_utf8='replace'"

    def __init__(self, path: str, on_bad_utf8: str) -> None:
        source.check_bad_utf8_policy(on_bad_utf8)
        super().__init__(path, Path(path).stat().st_size)
        self.is_stream = is_stream(path)
        if self.size == 0 and not self.is_stream:
            raise ValueError(f"{path} is empty (0 bytes)")
        self.path = path
        self.errors = "strict" if on_bad_utf8 == "fail" else "replace"

    def identity(self) -> dict:
        status = Path(self.path).stat()
        return {
            "name": absolute(self.path),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
        }

    def expansion(self) -> float:
        if not self.path.endswith(".gz"):
            return 1.0
        blocks = self.blocks()
        size = len(next(blocks, b""))
        blocks.close()
        return size / self.consumed

    def blocks(self) -> Generator[bytes, None, None]:
        """Yields the content in blocks of valid UTF-8; no character spans two blocks.

        Invalid gzip data, or invalid UTF-8 with on_bad_utf8="fail", raises ValueError.
        """
        with Path(self.path).open("rb") as raw:
            # Closing `raw` is enough: the gzip file has nothing else to close.
            file: Any = gzip.open(raw) if self.path.endswith(".gz") else raw  # noqa: SIM115
            offset = 0  # byte position of `data` in the unpacked file
            lines = 0
            pending = b""  # an incomplete character at the end of the last block
            while True:
                data = self._read(file, offset)
                final = not data
                data = pending + data
                try:
                    text, used = codecs.utf_8_decode(data, self.errors, final)
                except UnicodeDecodeError as error:
                    line = lines + data.count(b"\n", 0, error.start) + 1
                    raise ValueError(self._bad_utf8(offset, line, error)) from None
                self.consumed = self.consumed + len(data) if self.is_stream else raw.tell()
                pending = data[used:]
                block = data[:used]
                if self.errors == "replace":
                    # Encoded again only here: a strict decode proves that the bytes are valid.
                    valid_bytes = text.encode()
                    self.replaced_characters += valid_bytes.count(source.REPLACEMENT)
                    self.replaced_characters -= block.count(source.REPLACEMENT)
                    block = valid_bytes
                if offset == 0:
                    block = block.removeprefix(codecs.BOM_UTF8)
                offset += used
                lines += block.count(b"\n")
                if block:
                    yield block
                if final:
                    return

    def numbered_lines(
        self, max_bytes: float = float("inf"), what: str = "a line"
    ) -> Iterator[tuple[int, bytes]]:
        """Yields (number from 1, line without its newline). Only "\\n" ends a line.

        Args:
            max_bytes: length of a line beyond which ValueError is raised.
            what: name for a line in the error message.
        """
        unfinished = b""
        number = 1
        for block in self.blocks():
            *lines, unfinished = (unfinished + block).split(b"\n")
            for line in lines:
                self._check_length(line, number, max_bytes, what)
                yield number, line
                number += 1
            # Before the line is read to its end.
            self._check_length(unfinished, number, max_bytes, what)
        if unfinished:
            if number == 1:
                self._check_line_end(_has_inner_return(unfinished))
            yield number, unfinished

    def _check_line_end(self, has_inner_return: bool) -> None:
        """Raises ValueError if the only line of the file has a carriage return inside."""
        if has_inner_return:
            raise ValueError(
                f"{self.name}: lines must end in \\n or \\r\\n; `tr '\\r' '\\n'` converts a "
                "file whose lines end in \\r. Received: one line, with \\r inside"
            )

    def _check_length(self, line: bytes, number: int, max_bytes: float, what: str) -> None:
        """Raises ValueError if a line, or the part of it that was read, has more bytes."""
        if len(line) > max_bytes:
            raise ValueError(
                f"{self.path}, line {number}: {what} may have at most {max_bytes} bytes. "
                f"Received: {len(line)} or more"
            )

    def _read(self, file: BinaryIO, offset: int) -> bytes:
        """Returns the next bytes of an open file, `b""` at its end.

        `offset` is the number of bytes of text before them, for the message. Damaged gzip data
        raise ValueError.
        """
        try:
            return file.read(_READ_BYTES)
        except EOFError:
            raise ValueError(
                f"{self.path} is truncated: its gzip data ends early, after at least {offset} "
                "bytes of text"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{self.path} is not valid gzip data, after at least {offset} bytes of text: "
                f"{error}"
            ) from None

    def _bad_utf8(self, offset: int, line: int, error: UnicodeDecodeError) -> str:
        """Returns the message for bytes that are not UTF-8.

        Args:
            offset: position in the text of the decoded block, in bytes.
            line: number of the line, from 1.
            error: error of decoding the block.
        """
        position = offset + error.start
        bad_bytes = error.object[error.start : error.start + 4]
        hint = ""
        if position == 0 and bad_bytes[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            hint = "; the file begins with the byte-order mark of UTF-16"
        return (
            f"{self.path}: invalid UTF-8 at byte {position} (line {line}): {error.reason}{hint}. "
            f"Convert the file{self.remedy}. Received: bytes {bad_bytes.hex(' ')}"
        )


def _has_inner_return(line: bytes) -> bool:
    """Returns whether a line has a carriage return that is not at its end."""
    return b"\r" in line.rstrip(b"\r")


def is_stream(path: str) -> bool:
    """Whether a path is a pipe, terminal or socket: of unknown size, and readable only once.

    >>> is_stream("/dev/null"), is_stream("gs://bucket/texts.csv")
    (True, False)
    """
    if is_remote(path) or not exists(path):
        return False
    mode = Path(path).stat().st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def refuse_array(name: str, line: str) -> None:
    """Raises ValueError if `line`, a file's first line with text, begins a JSON array of objects.

    `name` names the file in the message, which explains JSON lines.
    """
    if _ARRAY.match(line):
        raise ValueError(
            f"{name} is a JSON array, but JSON lines are required, one object per line (`jq -c "
            f"'.[]'` writes them). Received: {line[:80]!r}"
        )


class TextFile(File):
    """Documents separated by blank lines; any line length, any document length."""

    def documents(self) -> Iterator[bytes]:
        unfinished = b""  # the beginning of a document whose end has not been read yet
        line = 1
        continued = False  # whether parts of the document in `unfinished` were yielded
        empty = True
        carriage_return = b""  # a carriage return whose newline may be in the next block
        has_newline = has_inner_return = False
        for block in self.blocks():
            block = carriage_return + block
            carriage_return = b"\r" if block.endswith(b"\r") else b""
            has_newline = has_newline or b"\n" in block
            has_inner_return = has_inner_return or _has_inner_return(block)
            buffer = unfinished + block.removesuffix(b"\r").replace(b"\r\n", b"\n")
            start = 0
            for blank in _BLANK_LINE.finditer(buffer):
                if blank.end() == len(buffer):
                    break  # the separator may continue in the next block
                parts = source.cut_document(buffer[start : blank.start()].strip())
                if len(parts) > 1 and not continued:
                    self._note_cut(line + buffer.count(b"\n", 0, start))
                for part in filter(None, parts):
                    empty = False
                    yield part
                start, continued = blank.end(), False
            unfinished = buffer[start:]
            text = unfinished.rstrip()
            if len(text) > source.MAX_DOCUMENT_BYTES:
                *parts, tail = source.cut_document(text.lstrip())
                if parts and not continued:
                    self._note_cut(line + buffer.count(b"\n", 0, start))
                    continued = True
                empty = False
                yield from parts
                unfinished = tail + unfinished[len(text) :]
            line += buffer.count(b"\n") - unfinished.count(b"\n")
        self._check_line_end(has_inner_return and not has_newline)
        for part in filter(None, source.cut_document(unfinished.strip())):
            empty = False
            yield part
        if empty:
            raise ValueError(f"{self.path} holds no text, only white space")

    def _note_cut(self, line: int) -> None:
        self.note_cut(f"{self.path}, line {line}")


class JsonLinesFile(File):
    """A file with one JSON object per line, whose string `field` is a document's text."""

    def __init__(self, path: str, field: str, on_bad_utf8: str) -> None:
        super().__init__(path, on_bad_utf8)
        self.field = field

    def identity(self) -> dict:
        return {**super().identity(), "field": self.field}

    def documents(self) -> Iterator[bytes]:
        empty = True
        for number, line in self.numbered_lines(MAX_JSON_LINE_BYTES, "a line of JSON"):
            if not line.strip():
                continue
            if empty:
                refuse_array(self.path, line.decode(errors="replace"))
            empty = False
            where = f"{self.path}, line {number}"
            text = self.text(line, where)
            yield from self.parts(
                text.replace(b"\r\n", b"\n").strip(), functools.partial(str, where)
            )
        if empty:
            raise ValueError(f"{self.path} holds no text, only white space")

    def text(self, line: bytes, where: str) -> bytes:
        """Returns the text of a line's JSON object as UTF-8.

        A line without the string raises ValueError, whose message begins with `where`. Half a
        surrogate pair does so too, or becomes U+FFFD with on_bad_utf8="replace".
        """
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ValueError(
                f"{where} is not JSON: {error}. Received: {line[:80].decode(errors='replace')!r}"
            ) from None
        if not isinstance(record, dict) or not isinstance(record.get(self.field), str):
            received = sorted(record) if isinstance(record, dict) else type(record).__name__
            raise ValueError(
                f"{where}: a line must be an object with a string {self.field!r} (another field "
                f"can be chosen). Received: {received}"
            )
        text = record[self.field]
        try:
            return text.encode()
        except UnicodeEncodeError as error:  # an escape such as \ud800 without its other half
            if self.errors == "strict":
                raise ValueError(
                    f"{where}: {self.field!r} contains half a surrogate pair at character "
                    f"{error.start}; on_bad_utf8='replace' replaces it by U+FFFD"
                ) from None
            self.replaced_characters += 1
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
