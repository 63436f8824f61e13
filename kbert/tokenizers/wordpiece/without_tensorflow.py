"""WordPiece ids without TensorFlow: BERT's rules with Python's Unicode tables, then `tokenizers`.

`tokenizers` has BERT's rules too, but no final sigma. It also drops private characters and has the
punctuation of an old Unicode version. So texts are passed to it as words separated by spaces.

Source: `BasicTokenizer` in google-research/bert, tokenization.py.
"""

from __future__ import annotations

import re
import unicodedata

# Tab, newline and carriage return count as white space, not as controls.
_SPACES = "\t\n\r\u2028\u2029"
_CHINESE = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df"
    "\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_ASCII_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# Marks of musical notes, which are not dropped and which NFD reorders.
_ORDERED = re.compile("[\U0001d165\U0001d166\U0001d16d-\U0001d172]")
_SIGMA = "Σ"


class WordSpacing(dict):
    """Normalises texts and separates their words by spaces.

    This is a table for `str.translate` that computes an entry when a character first occurs.

    Args:
        lowercase: whether letters become lower case.
        strip_accents: whether combining marks are dropped.
        split_chinese: whether each Chinese character is a word.

    Example:
        >>> WordSpacing(True, True, True)("Élan, vite!").split()
        ['elan', ',', 'vite', '!']
    """

    def __init__(self, lowercase: bool, strip_accents: bool, split_chinese: bool) -> None:
        super().__init__()
        self._lowercase, self._strip_accents = lowercase, strip_accents
        self._split_chinese = split_chinese

    def __call__(self, text: str) -> str:
        if self._lowercase and _SIGMA in text:  # at the end of a word it becomes another letter
            text = "".join(x for x in text if self[ord(x)]).lower()
        if self._strip_accents and _ORDERED.search(text):
            text = unicodedata.normalize("NFD", text)
        return text.translate(self)

    def __missing__(self, code: int) -> str:
        self[code] = spaced = "".join(map(self._spaced, self._normal(chr(code))))
        return spaced

    def _normal(self, character: str) -> str:
        """Returns a character after normalisation: a space, nothing, or other characters.

        White space becomes a space, control characters vanish.
        """
        if character in _SPACES:
            return " "
        if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Cs"):
            return ""
        if self._lowercase:
            character = character.lower()
        if self._strip_accents:
            decomposed = unicodedata.normalize("NFD", character)
            character = "".join(x for x in decomposed if unicodedata.category(x) != "Mn")
        return character

    def _spaced(self, character: str) -> str:
        """Returns a character, with spaces around it if it is punctuation or Chinese."""
        category = unicodedata.category(character)
        if category == "Zs":
            return " "
        is_punctuation = character in _ASCII_MARKS or category.startswith("P")
        if is_punctuation or (self._split_chinese and _CHINESE.match(character)):
            return f" {character} "
        return character
