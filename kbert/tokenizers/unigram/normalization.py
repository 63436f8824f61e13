"""What ALBERT's and XLNet's own code does to a text before SentencePiece sees it, in the graph.

Source: `preprocess_text` in zihangdai/xlnet (prepro_utils.py) and google-research/albert
(tokenization.py), rebuilt from TensorFlow's and tensorflow-text's C++ kernels.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping

import numpy as np

from kbert.core.late import tf, tf_text
from kbert.tokenizers.normalization import (
    INVALID,
    IS_MARK,
    TABLE_SIZE,
    drop_invalid,
    unless,
)

_PLAIN_ASCII = r"[ -~]*"
# What Python's `str.split` splits at; SentencePiece squeezes the spaces.
_WHITE_SPACE = (
    r"[\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]"
)
# One byte that fills up what was shortened, so that offsets do not move, and is dropped later
# (SentencePiece's own normalisation drops it as well).
_FILLER = "\x01"
_DOUBLED_QUOTES = "``|''"


@functools.cache
def _combining() -> str:
    """Character class of what `unicodedata.combining` is true of.

    It is not `\\p{Mn}`: vowel signs of Indic scripts stay, their viramas go.
    """
    codes = [code for code in range(TABLE_SIZE) if unicodedata.combining(chr(code))]
    starts = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    ranges = zip(starts, ends, strict=True)
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{z:x}}}" for a, z in ranges) + "]"


class TextPreparation:
    """Texts as a SentencePiece model was trained on them.

    Args:
        albert: doubled quotes become one '"', all white space a space, and the other arguments
            apply; else a text stays as it is, but for bytes that are not UTF-8.
        lowercase: by Unicode's rules.
        keep_accents: leave out the compatibility decomposition (NFKD) and its dropping of
            combining characters.
        stand_ins: special token -> the character that stands for it from `hide` on, with a space
            on both sides.
        neutral: an unknown character, for U+0000 and for stand-ins that a text holds itself.
    """

    def __init__(
        self,
        *,
        albert: bool,
        lowercase: bool,
        keep_accents: bool,
        stand_ins: Mapping[str, str],
        neutral: str,
    ) -> None:
        self._albert = albert
        self._lowercase = lowercase
        self._keep_accents = keep_accents
        self._neutral = neutral
        self._stand_ins = list(stand_ins.values())
        self._stand_in = f"[{''.join(self._stand_ins)}]" if stand_ins else None
        self._rewrites = {self._stand_in: neutral} if stand_ins else {}
        for token, stand_in in stand_ins.items():
            fillers = (len(token.encode()) - len(stand_in.encode())) * _FILLER
            self._rewrites[re.escape(token)] = stand_in + fillers
        if albert:
            self._rewrites[_DOUBLED_QUOTES] = '"' + _FILLER

    def hide(self, texts: tf.Tensor) -> tf.Tensor:
        """(B,) texts with one character for each pair of quotes and each special token.

        Every byte offset stays: fillers follow what is shorter than it was.
        """
        if not self._rewrites:
            return texts

        def hidden() -> tf.Tensor:
            out = texts
            for pattern, rewrite in self._rewrites.items():
                out = tf.strings.regex_replace(out, pattern, rewrite)
            return out

        # Most batches have none of them.
        pattern = "|".join(f"(?:{pattern})" for pattern in self._rewrites)
        found = tf.reduce_any(tf.strings.regex_full_match(texts, rf"(?s)\C*(?:{pattern})\C*"))
        return tf.cond(found, hidden, lambda: texts)

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """(B,) texts from `hide` -> (B,) texts for SentencePiece."""
        if not self._albert:
            hidden = drop_invalid(hidden)
            if self._stand_in is None:
                return hidden
            return self._spaced(tf.strings.regex_replace(hidden, _FILLER, ""))
        if self._lowercase:
            # ASCII first: the Unicode kernel takes the locale of the process.
            hidden = tf.strings.lower(hidden)
        return unless(_PLAIN_ASCII, hidden, self._beyond_ascii)

    def _beyond_ascii(self, texts: tf.Tensor) -> tf.Tensor:
        texts = drop_invalid(texts)
        texts = tf.strings.regex_replace(texts, _FILLER, "")
        texts = tf.strings.regex_replace(texts, _WHITE_SPACE, " ")
        # The lower-casing kernel takes U+0000 for the end of the text.
        texts = tf.strings.regex_replace(texts, r"\x{0}", self._neutral)
        if not self._keep_accents:
            texts = tf_text.normalize_utf8(texts, "NFKD")
            texts = tf.strings.regex_replace(texts, _combining(), "")
        if self._lowercase:
            texts = tf.strings.lower(tf.strings.lower(texts), encoding="utf-8")
        return self._spaced(texts)

    def _spaced(self, texts: tf.Tensor) -> tf.Tensor:
        if self._stand_in is None:
            return texts
        return tf.strings.regex_replace(texts, self._stand_in, r" \0 ")

    @functools.cached_property
    def byte_table(self) -> tf.Tensor:
        """What `normalization.byte_table` is for WordPiece: bytes that each code point becomes.

        This is exact, since every step works on single characters: the order of combining
        characters, which NFKD may change, does not matter where they are dropped.
        """
        if self._albert:
            table = _albert_table(self._lowercase, self._keep_accents).copy()
        else:
            codes = np.arange(TABLE_SIZE + 1)
            table = (1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)).astype(np.uint8)
        if self._rewrites:
            table[ord(_FILLER)] = IS_MARK
        for stand_in in self._stand_ins:
            table[ord(stand_in)] = len(f" {stand_in} ".encode())
        table[INVALID] = 0
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(table)


@functools.cache
def _albert_table(lowercase: bool, keep_accents: bool) -> np.ndarray:
    """The entries of `byte_table` that go by the settings alone."""
    prepare = TextPreparation(
        albert=True, lowercase=lowercase, keep_accents=keep_accents, stand_ins={}, neutral="\ue000"
    )
    with tf.init_scope(), tf.device("CPU"):
        codes = np.arange(TABLE_SIZE + 1, dtype=np.int32)
        codes[0xD800:0xE000] = ord("a")  # surrogates are no characters
        characters = tf.strings.unicode_encode(codes[:, None], "UTF-8")
        lengths = tf.strings.length(prepare(characters)).numpy()
    lengths[TABLE_SIZE] = 4
    return (lengths + IS_MARK * (lengths == 0)).astype(np.uint8)
