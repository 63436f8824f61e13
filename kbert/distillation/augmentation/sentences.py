"""The words of a text that may be replaced, and the text with others in their place.

What stands around a word stays as it is: white space, punctuation, numbers and stop words.
"""

import dataclasses
import functools
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Each of these is a word, as BERT's tokenizer has it: CJK ideographs.
_IDEOGRAPHS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A text and where its replaceable words stand.

    Attributes:
        text: as a language model reads it.
        spans: start and end of each replaceable word, in characters, from left to right.
        words: for a list of words: the list, of which `text` is the join by blanks.
        numbers: for a list of words: which of them each span is.

    Example:
        >>> sentence = Sentence.of("It's a lovely film, of 1999.", {"it", "s", "a", "of"})
        >>> [sentence.text[start:end] for start, end in sentence.spans]
        ['lovely', 'film']
        >>> sentence.replaced({1: "show"})
        "It's a lovely show, of 1999."
    """

    text: str
    spans: tuple[Span, ...]
    words: tuple[str, ...] | None = None
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: str | Sequence[str], stop_words: Collection[str]) -> "Sentence":
        """The sentence of a text, or of a list of words that are replaced whole.

        Args:
            value: text or words.
            stop_words: in lower case, stay.
        """
        if isinstance(value, str):
            spans: Any = tuple(find_words(value))
            return cls(value, _without(value, spans, stop_words))
        spans, start = [], 0
        for word in value:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        text = " ".join(value)
        kept = [
            number
            for number, word in enumerate(value)
            if is_word(word) and word.lower() not in stop_words
        ]
        return cls(text, tuple(spans[number] for number in kept), tuple(value), tuple(kept))

    def word(self, number: int) -> str:
        """A replaceable word."""
        start, end = self.spans[number]
        return self.text[start:end]

    def replaced(self, words: Mapping[int, str]) -> str | list[str]:
        """The text, or the list of words, with other words.

        Args:
            words: number of a replaceable word -> what takes its place.
        """
        if self.words is not None:
            new = list(self.words)
            for number, word in words.items():
                new[self.numbers[number]] = word
            return new
        parts, behind = [], 0
        for number in sorted(words):
            start, end = self.spans[number]
            parts += [self.text[behind:start], words[number]]
            behind = end
        return "".join([*parts, self.text[behind:]])


def find_words(text: str) -> list[Span]:
    """Where the words of letters stand; a run with a digit in it is none.

    Example:
        >>> text = "Déjà-vu in the 1930s"
        >>> [text[start:end] for start, end in find_words(text)]
        ['Déjà', 'vu', 'in', 'the']
    """
    return [found.span() for found in _pattern().finditer(text) if _of_letters(found[0])]


def is_word(word: str) -> bool:
    """Whether the whole of a string is one word of letters.

    >>> [is_word(word) for word in ("film", "don't", "a1", "")]
    [True, False, False, False]
    """
    return _pattern().fullmatch(word) is not None and _of_letters(word)


def match_case(word: str, other: str) -> str:
    """`other` with a capital letter, or in capitals, where `word` is so.

    >>> match_case("Film", "show"), match_case("USA", "France"), match_case("film", "Paris")
    ('Show', 'FRANCE', 'Paris')
    """
    if word.istitle():
        return other[:1].upper() + other[1:]
    return other.upper() if word.isupper() else other


def _without(text: str, spans: Sequence[Span], stop_words: Collection[str]) -> tuple[Span, ...]:
    return tuple(span for span in spans if text[slice(*span)].lower() not in stop_words)


def _of_letters(run: str) -> bool:
    return run.isalpha() or (not run.isascii() and _marks().sub("", run).isalpha())


@functools.cache
def _pattern() -> re.Pattern:
    """An ideograph, or a run of letters, digits and the marks on them."""
    marks = _marks().pattern[1:-1]
    return re.compile(f"[{_IDEOGRAPHS}]|(?:(?![{_IDEOGRAPHS}])[^\\W_]|[{marks}])+")


@functools.cache
def _marks() -> re.Pattern:
    """Accents and vowel signs: Python's `\\w` leaves them out."""
    codes = range(0x300, min(0x20000, sys.maxunicode))
    marks = [chr(code) for code in codes if unicodedata.category(chr(code))[0] == "M"]
    return re.compile(f"[{''.join(marks)}]")
