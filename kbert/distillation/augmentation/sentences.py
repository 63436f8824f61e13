"""Finds the words of a text that may be replaced, and replaces them.

White space, punctuation, numbers and stop words around them do not change.
"""

import dataclasses
import functools
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# CJK ideographs: each of them is a word, as in BERT's tokenizer.
_IDEOGRAPHS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A text and the positions of its replaceable words.

    Attributes:
        text: the text for a language model.
        spans: start and end of each replaceable word, in characters, from left to right.
        words: the words, if the value is a list of words; `text` joins them with blanks.
        numbers: number in `words` of the word at each span, if the value is a list of words.

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
        """Creates a sentence from a text, or from a list of words that are replaced as a whole.

        Args:
            value: text or list of words.
            stop_words: words that are not replaced, in lower case.
        """
        if isinstance(value, str):
            spans: Any = tuple(find_words(value))
            return cls(value, _without(value, spans, stop_words))
        spans, start = [], 0
        for word in value:
            spans.append((start, start + len(word)))
            start += len(word) + 1
        text = " ".join(value)
        numbers = [
            number
            for number, word in enumerate(value)
            if is_word(word) and word.lower() not in stop_words
        ]
        return cls(text, tuple(spans[number] for number in numbers), tuple(value), tuple(numbers))

    def word(self, number: int) -> str:
        """Returns replaceable word number `number`, from 0."""
        start, end = self.spans[number]
        return self.text[start:end]

    def replaced(self, words: Mapping[int, str]) -> str | list[str]:
        """Returns the text, or the list of words, with words replaced.

        Args:
            words: number of a replaceable word -> its replacement.
        """
        if self.words is not None:
            new_words = list(self.words)
            for number, word in words.items():
                new_words[self.numbers[number]] = word
            return new_words
        parts, position = [], 0
        for number in sorted(words):
            start, end = self.spans[number]
            parts += [self.text[position:start], words[number]]
            position = end
        return "".join([*parts, self.text[position:]])


def find_words(text: str) -> list[Span]:
    """Returns (start, end) of each word of letters; a run with a digit in it is not a word.

    Example:
        >>> text = "Déjà-vu in the 1930s"
        >>> [text[start:end] for start, end in find_words(text)]
        ['Déjà', 'vu', 'in', 'the']
    """
    return [match.span() for match in _pattern().finditer(text) if _of_letters(match[0])]


def is_word(word: str) -> bool:
    """Whether a whole string is one word of letters.

    >>> [is_word(word) for word in ("film", "don't", "a1", "")]
    [True, False, False, False]
    """
    return _pattern().fullmatch(word) is not None and _of_letters(word)


def match_case(word: str, other: str) -> str:
    """Returns `other` capitalised or in upper case, if `word` is.

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
    """Returns a pattern for an ideograph, or a run of letters, digits and their marks."""
    marks = _marks().pattern[1:-1]
    return re.compile(f"[{_IDEOGRAPHS}]|(?:(?![{_IDEOGRAPHS}])[^\\W_]|[{marks}])+")


@functools.cache
def _marks() -> re.Pattern:
    """Returns a pattern for accents and vowel signs, which Python's `\\w` does not match."""
    codes = range(0x300, min(0x20000, sys.maxunicode))
    marks = [chr(code) for code in codes if unicodedata.category(chr(code))[0] == "M"]
    return re.compile(f"[{''.join(marks)}]")
