"""Text preparation of ALBERT's and XLNet's original code before SentencePiece, in the graph.

Source: `preprocess_text` in zihangdai/xlnet (prepro_utils.py) and google-research/albert
(tokenization.py), rebuilt from TensorFlow's and tensorflow-text's C++ kernels.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping

import numpy as np

from kbert.core.late import tf
from kbert.tokenizers import text_ops
from kbert.tokenizers.normalization import (
    INVALID,
    IS_MARK,
    TABLE_SIZE,
    drop_invalid,
    unless,
)

_PLAIN_ASCII = r"[ -~]*"
# The characters at which Python's `str.split` splits; SentencePiece merges repeated spaces.
_WHITE_SPACE = (
    r"[\t-\r\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]"
)
# Fills up shortened texts, so that offsets do not move, and is dropped later (SentencePiece's own
# normalisation drops it as well).
_FILLER = "\x01"
_DOUBLED_QUOTES = "``|''"


@functools.cache
def _combining() -> str:
    """Returns the character class for which `unicodedata.combining` is not 0.

    It differs from `\\p{Mn}`: vowel signs of Indic scripts are kept, their viramas are dropped.
    """
    codes = [code for code in range(TABLE_SIZE) if unicodedata.combining(chr(code))]
    starts = [code for code in codes if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in codes if not unicodedata.combining(chr(code + 1))]
    ranges = zip(starts, ends, strict=True)
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{z:x}}}" for a, z in ranges) + "]"


class TextPreparation:
    """Prepares texts in the same way as the training texts of a SentencePiece model.

    Args:
        albert: whether to prepare texts like ALBERT: doubled quotes become one '"', all white space
            becomes spaces, and `lowercase` and `keep_accents` apply. False = only bytes that are
            not UTF-8 are dropped.
        lowercase: whether to lower-case by Unicode's rules.
        keep_accents: whether to skip the compatibility decomposition (NFKD) and the dropping of
            combining characters.
        stand_ins: special token -> character that stands for it from `hide` on, with a space on
            both sides.
        neutral: a character unknown to the model; replaces U+0000, and stand-ins that occur in the
            original text.
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
        """Replaces each doubled quote and each special token in texts (B,) by one character.

        Quotes are replaced only for ALBERT, and only special tokens that have a stand-in. Byte
        offsets do not change: fillers follow whatever became shorter.
        """
        if not self._rewrites:
            return texts

        def hidden() -> tf.Tensor:
            out = texts
            for pattern, rewrite in self._rewrites.items():
                out = tf.strings.regex_replace(out, pattern, rewrite)
            return out

        # Most batches contain none of them.
        pattern = "|".join(f"(?:{pattern})" for pattern in self._rewrites)
        has_match = tf.reduce_any(tf.strings.regex_full_match(texts, rf"(?s)\C*(?:{pattern})\C*"))
        return tf.cond(has_match, hidden, lambda: texts)

    def __call__(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns texts (B,) as SentencePiece reads them, from the result of `hide`.

        Fillers and invalid UTF-8 are dropped and stand-ins get spaces around them; for ALBERT the
        text is also normalised.
        """
        if not self._albert:
            hidden = drop_invalid(hidden)
            if self._stand_in is None:
                return hidden
            return self._spaced(tf.strings.regex_replace(hidden, _FILLER, ""))
        if self._lowercase:
            # ASCII first: the Unicode kernel uses the locale of the process.
            hidden = tf.strings.lower(hidden)
        return unless(_PLAIN_ASCII, hidden, self._beyond_ascii)

    def _beyond_ascii(self, texts: tf.Tensor) -> tf.Tensor:
        """Prepares texts (B,) like ALBERT, for texts with characters other than plain ASCII."""
        texts = drop_invalid(texts)
        texts = tf.strings.regex_replace(texts, _FILLER, "")
        texts = tf.strings.regex_replace(texts, _WHITE_SPACE, " ")
        # For the lower-casing kernel U+0000 ends the text.
        texts = tf.strings.regex_replace(texts, r"\x{0}", self._neutral)
        if not self._keep_accents:
            texts = text_ops.normalized(texts, "NFKD")
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
        """The number of bytes that each code point becomes, see `normalization.byte_table`.

        This is exact, because every step works on single characters. NFKD may reorder combining
        characters, but those are dropped.
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
    """Returns the `byte_table` of ALBERT's preparation without special tokens, uint8."""
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
