"""Vocabularies of whole words: reading, checking and writing them, one word per line.

Source: `Vocabulary` in allenai/bilm-tf, bilm/data.py.
"""

import os
from collections.abc import Sequence

from kbert.io import atomic
from kbert.tokenizers.lines import check_entries, read_lines
from kbert.tokenizers.words.characters import BEGIN_OF_SENTENCE, END_OF_SENTENCE

UNKNOWN = "<UNK>"
# A vocabulary made by kbert begins with these.
SPECIAL_WORDS = (END_OF_SENTENCE, BEGIN_OF_SENTENCE, UNKNOWN)
# Occurs in vocabulary files of the One Billion Word Benchmark and has no id.
NO_WORD = "!!!MAXTERMID"


def read_words(path: str | os.PathLike) -> list[str]:
    """Reads and checks a vocabulary file in bilm-tf's format.

    Args:
        path: file with one word per line, including </S>, <S> and <UNK>. A line !!!MAXTERMID is
            skipped.

    Returns:
        The words in the order of their ids.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8, an empty line, a duplicate word (the message names file and line), or
            a missing special word (it names the file).

    Example:
        >>> import pathlib
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/vocab.txt"
        >>> _ = pathlib.Path(path).write_text("<S>\\n</S>\\n<UNK>\\nthe\\n!!!MAXTERMID\\n")
        >>> read_words(path)
        ['<S>', '</S>', '<UNK>', 'the']
    """
    lines = [line.strip(" \t") for line in read_lines(path)]
    numbered = [(number, word) for number, word in enumerate(lines, start=1) if word != NO_WORD]
    words = [word for _, word in numbered]
    check_words(words, str(path), [number for number, _ in numbered])
    return words


def save_words(words: Sequence[str], path: str | os.PathLike) -> None:
    """Writes a vocabulary that passed `check_words`, atomically."""
    atomic.write(path, "".join(word + "\n" for word in words).encode())


def check_words(
    words: Sequence[str], source: str | None = None, lines: Sequence[int] | None = None
) -> None:
    """Raises ValueError for an empty or duplicate word, or a missing special word.

    Raises too if a word has a line end, white space around it, or is !!!MAXTERMID; and TypeError if
    it is not a str.

    Args:
        words: words in the order of their ids.
        source: the file of the words, for error messages; None = they come from a list.
        lines: line number of each word in the file, from 1; None = one word per line.
    """
    check_entries(words, "word", SPECIAL_WORDS, _broken_rule, source, lines)


def _broken_rule(word: str) -> str | None:
    """Returns the rule that a word of a vocabulary breaks, as a sentence; None = it breaks none."""
    if "\n" not in word and word == word.strip(" \t\r") and word != NO_WORD:
        return None
    return (
        "A word must fit on one line of a vocabulary file, without spaces around it, and not be "
        f"{NO_WORD}"
    )
