"""Base class of text sources: counts, progress, and the splitting of over-long documents."""

import re
from collections.abc import Callable, Iterator

from absl import logging

# A block of a shard contains whole documents, and a reader keeps 64 blocks in memory, so a
# document must be small compared with memory. A long novel has about a million bytes.
MAX_DOCUMENT_BYTES = 1 << 20
REPLACEMENT = "\ufffd".encode()
# The end of a sentence in bytes: . ! ? and the UTF-8 of 。 ！ ？ । ؟
_SENTENCE_END = re.compile(
    rb"[.!?](?=\s)|\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f|\xe0\xa5\xa4|\xd8\x9f"
)


class Source:
    """A file or data set that yields documents.

    Attributes:
        name: name of the source in messages.
        size: bytes on disk, the total of the progress bar.
        consumed: bytes of `size` read so far.
        cut_documents: number of documents beyond `MAX_DOCUMENT_BYTES` that were split into parts.
        replaced_characters: number of U+FFFD inserted for invalid UTF-8.
        aligned: whether a document is a text and its translation, one line each.
        errors: "strict" raises at invalid UTF-8, "replace" inserts U+FFFD instead.
    """

    aligned = False
    errors = "strict"

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.consumed = 0
        self.cut_documents = 0
        self.replaced_characters = 0

    def documents(self) -> Iterator[bytes]:
        """Yields UTF-8 texts of at most `MAX_DOCUMENT_BYTES` each, lines separated by "\\n"."""
        raise NotImplementedError

    def identity(self) -> dict:
        """Returns a dict for JSON that changes with the content; a resumed run compares it."""
        raise NotImplementedError

    def expansion(self) -> float:
        """Estimates the bytes of text per byte on disk from the beginning of the source."""
        return 1.0

    def decoded(self, value: object, where: str, field: str) -> bytes:
        """Returns the value of a text field as valid UTF-8; counts replaced characters.

        Another type than bytes, or invalid UTF-8 with errors="strict", raises ValueError, whose
        message begins with `where` and names the `field`.
        """
        if not isinstance(value, bytes):
            raise ValueError(
                f"{where}: the field {field!r} must be text. Received: {type(value).__name__}"
            )
        try:
            text = value.decode("utf-8", self.errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{where}: invalid UTF-8 at byte {error.start}: {error.reason}. "
                "on_bad_utf8='replace' replaces it by U+FFFD"
            ) from None
        valid_bytes = text.encode()
        self.replaced_characters += valid_bytes.count(REPLACEMENT) - value.count(REPLACEMENT)
        return valid_bytes

    def note_cut(self, where: str) -> None:
        """Counts a document that was split, and logs a warning; `where` is its place, for that."""
        self.cut_documents += 1
        logging.warning(
            "%s: a document of more than %d bytes begins here; it is split into parts at the "
            "ends of lines or sentences. Separate documents by blank lines to avoid this.",
            where,
            MAX_DOCUMENT_BYTES,
        )

    def parts(self, text: bytes, where: Callable[[], str]) -> list[bytes]:
        """Returns a document's text as a list of one, or its parts if it is too long.

        A document with several parts (`cut_document`) is counted and logged; `where` returns its
        place for the log.
        """
        pieces = cut_document(text)
        if len(pieces) > 1:
            self.note_cut(where())
        return pieces


def cut_document(text: bytes) -> list[bytes]:
    """Splits UTF-8 text into parts of at most `MAX_DOCUMENT_BYTES`.

    Each split is at the last line end within the limit. Without one, it is at the last sentence
    end, else at the last space, else between two characters. Every part but the last depends only
    on the text before its end, so a text can be split while it is being read.
    """
    parts = []
    start = 0
    while len(text) - start > MAX_DOCUMENT_BYTES:
        head = text[start : start + MAX_DOCUMENT_BYTES]
        size = _cut_position(head)
        parts.append(head[:size].strip())
        start += size
        while text[start : start + 1].isspace():
            start += 1
    parts.append(text[start:])
    return parts


def _cut_position(head: bytes) -> int:
    """Returns how many bytes of a text that is too long are its first part, at least 1.

    `head` are its first `MAX_DOCUMENT_BYTES`; see `cut_document` for the preferred places.
    """
    newline = head.rfind(b"\n")
    if newline > 0:
        return newline
    ends = [match.end() for match in _SENTENCE_END.finditer(head)]
    if ends:
        return ends[-1]
    space = head.rfind(b" ")
    if space > 0:
        return space
    size = len(head)
    # Continuation bytes of UTF-8 are 10xxxxxx. The split is before the lead byte of the last
    # character, since that character may be incomplete.
    while size > 1 and head[size - 1] & 0xC0 == 0x80:
        size -= 1
    return max(size - 1, 1)


def check_bad_utf8_policy(on_bad_utf8: str) -> None:
    """Raises ValueError unless the value is "fail" or "replace"."""
    if on_bad_utf8 not in ("fail", "replace"):
        raise ValueError(f"on_bad_utf8 must be 'fail' or 'replace'. Received: {on_bad_utf8!r}")
