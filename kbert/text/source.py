"""What every source of text shares: counts, progress, and the cutting of over-long documents."""

import re
from collections.abc import Callable, Iterator

from absl import logging

# A block of a shard holds whole documents and a reader holds 64 blocks, so one document must be
# small compared with memory. A long novel has about a million bytes.
MAX_DOCUMENT_BYTES = 1 << 20
# The end of a sentence in bytes: . ! ? and the UTF-8 of 。 ！ ？ । ؟
_SENTENCE_END = re.compile(
    rb"[.!?](?=\s)|\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f|\xe0\xa5\xa4|\xd8\x9f"
)


class Source:
    """One file or data set that gives documents.

    Attributes:
        name: what messages call it.
        size: bytes on disk, the whole of the progress bar.
        consumed: bytes of `size` read so far.
        cut_documents: documents beyond `MAX_DOCUMENT_BYTES` that were cut into parts.
        replaced_characters: bytes of invalid UTF-8 that became U+FFFD.
        aligned: whether a document is a text and its translation, a line each.
    """

    aligned = False

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.consumed = 0
        self.cut_documents = 0
        self.replaced_characters = 0

    def documents(self) -> Iterator[bytes]:
        """UTF-8 texts, lines separated by "\\n", of at most `MAX_DOCUMENT_BYTES` each."""
        raise NotImplementedError

    def identity(self) -> dict:
        """A value that changes with the content: a restart compares it."""
        raise NotImplementedError

    def expansion(self) -> float:
        """Bytes of text per byte on disk, estimated from the beginning."""
        return 1.0

    def note_cut(self, where: str) -> None:
        """Counts a document that had to be cut, and logs it."""
        self.cut_documents += 1
        logging.warning(
            "%s: a document of more than %d bytes begins here; it is cut into parts at the ends "
            "of lines or sentences. Separate documents by blank lines to avoid it.",
            where,
            MAX_DOCUMENT_BYTES,
        )

    def parts(self, text: bytes, where: Callable[[], str]) -> list[bytes]:
        """The document itself, or its parts when it is too long."""
        pieces = cut_document(text)
        if len(pieces) > 1:
            self.note_cut(where())
        return pieces


def cut_document(text: bytes) -> list[bytes]:
    """Cuts UTF-8 text into parts of at most `MAX_DOCUMENT_BYTES`.

    The cut is made at the last end of a line within the limit; without one at the last end of a
    sentence, then of a word, then between two characters. All parts but the last depend on the
    text before their end alone, so a text that is still growing can be cut as it comes.
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
    # Continuation bytes of UTF-8 are 10xxxxxx; the cut goes before the lead byte of the last
    # character, which may itself be incomplete.
    while size > 1 and head[size - 1] & 0xC0 == 0x80:
        size -= 1
    return max(size - 1, 1)


def check_bad_utf8_policy(on_bad_utf8: str) -> None:
    """Raises unless the value is one that sources know."""
    if on_bad_utf8 not in ("fail", "replace"):
        raise ValueError(f"on_bad_utf8 is 'fail' or 'replace'. Received: {on_bad_utf8!r}")
