"""Vocabularies: reading, checking and writing BERT's vocab.txt (one token per line, UTF-8)."""

import os
from collections.abc import Sequence

from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tokenizers.lines import check_entries, read_lines

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# MPNet's special tokens, in the same order of roles. MPNet's vocabulary begins with <s>, <pad> and
# </s>, fairseq's order.
FAIRSEQ_TOKENS = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
_FAIRSEQ_BEGINNING = ["<s>", "<pad>", "</s>"]
# tensorflow-text's limit.
MAX_PIECE_BYTES = 256


def special_tokens(vocabulary: Sequence[str]) -> tuple[str, ...]:
    """Returns five special tokens: padding, unknown word, beginning, end and mask.

    These are MPNet's if the vocabulary begins like fairseq's, otherwise BERT's. MPNet's vocabulary
    also contains BERT's special tokens, as ordinary tokens.

    Example:
        >>> special_tokens(["<s>", "<pad>", "</s>", "[CLS]", "[UNK]", "pen", "<mask>"])
        ('<pad>', '[UNK]', '<s>', '</s>', '<mask>')
    """
    fairseq = list(vocabulary[:3]) == _FAIRSEQ_BEGINNING
    return FAIRSEQ_TOKENS if fairseq else SPECIAL_TOKENS


def read_vocabulary(path: str | os.PathLike) -> list[str]:
    r"""Reads and checks a vocab.txt.

    A line ends with "\n" or "\r\n" and with nothing else: vocabularies contain tokens such as
    U+2028, at which other readers end a line. A byte order mark is dropped.

    Args:
        path: the vocab.txt file, with or without a byte order mark.

    Returns:
        The tokens in the order of their ids.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not UTF-8, the last line is empty, a line is repeated, too long or
            contains U+0000 (the message names file and line), or a special token is missing (it
            names the file).

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/vocab.txt"
        >>> save_vocabulary([*SPECIAL_TOKENS, "pen"], path)
        >>> read_vocabulary(path)[5]
        'pen'
    """
    pieces = read_lines(path)
    check_vocabulary(pieces, source=str(path))
    return pieces


def save_vocabulary(vocabulary: Sequence[str], path: str | os.PathLike) -> None:
    """Checks a vocabulary and writes it atomically as vocab.txt.

    Args:
        vocabulary: tokens in the order of their ids.
        path: the file to write; its folder is created if it does not exist.

    Raises:
        ValueError: the vocabulary breaks a rule of `check_vocabulary`.
    """
    check_vocabulary(vocabulary)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, "".join(piece + "\n" for piece in vocabulary).encode())


def check_vocabulary(vocabulary: Sequence[str], source: str | None = None) -> None:
    """Raises ValueError for a duplicate token, an empty last one, or a missing special token.

    Raises too if a token has a line end or U+0000 or, without "##", more than 256 bytes; and
    TypeError if it is not a str.

    Args:
        vocabulary: tokens in the order of their ids.
        source: the file of the vocabulary, for error messages; None = it comes from a list.
    """
    # Legal-BERT has an empty piece; an empty last line is one line end too many.
    allow_empty = list(vocabulary[-1:]) != [""]
    specials = special_tokens(vocabulary)
    check_entries(vocabulary, "piece", specials, _broken_rule, source, allow_empty=allow_empty)


def _broken_rule(piece: str) -> str | None:
    if "\n" in piece or "\0" in piece or piece.endswith("\r"):
        return "A piece must fit on one line of a vocab.txt, and not contain U+0000"
    if len(piece.removeprefix("##").encode()) > MAX_PIECE_BYTES:
        return f'A piece must have at most {MAX_PIECE_BYTES} bytes, without "##"'
    return None
