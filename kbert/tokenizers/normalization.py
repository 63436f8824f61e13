"""Text normalisation in the graph, as BERT's original tokenizer does before it splits words.

Source: `BasicTokenizer` in google-research/bert, tokenization.py, rebuilt from TensorFlow's and
tensorflow-text's C++ kernels so that it runs in `tf.data`, in a `tf.function` and in a SavedModel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from kbert.core.late import tf
from kbert.tokenizers import text_ops

# Dropped as in BERT's `_clean_text`: U+0000, U+FFFD, format characters and controls, but not
# tab, newline and carriage return, which separate words. U+0000 must also be dropped before the
# lower-casing kernel, for which it ends the text.
_DROPPED = (
    r"\x{0000}\x{FFFD}\p{Cf}"
    r"\x{01}-\x{08}\x{0b}\x{0c}\x{0e}-\x{1f}\x{7f}-\x{9f}"
)  # fmt: skip
# Python's `str.split`, which Google's code uses, splits at these; tensorflow-text does not.
_LINE_SEPARATORS = r"\x{2028}\x{2029}"
_SURROGATES = r"\x{D800}-\x{DFFF}"  # invalid UTF-8, but accepted by RE2
# Cheap tests of a whole text: a text that matches needs no processing.
_PLAIN_ASCII = r"[\t\n\r -~]*"
_CLEAN = rf"[^{_DROPPED}{_LINE_SEPARATORS}{_SURROGATES}]*"
_VALID = rf"[^{_SURROGATES}]*"

# Code points from here on (private use planes) normalise to themselves: four bytes, kept.
TABLE_SIZE = 0xE0200
# Stands for bytes that are not valid UTF-8: a surrogate, which no valid text contains.
INVALID = 0xD800
# Flag of `byte_table`: a dropped mark that belongs to the character before it.
IS_MARK = 128


def normalize(
    texts: tf.Tensor, *, lowercase: bool = True, strip_accents: bool | None = None
) -> tf.Tensor:
    """Cleans, lower-cases and strips accents as BERT does; runs in a graph and eagerly.

    Bytes that are not valid UTF-8 are dropped, as in google-research/bert
    (`convert_to_unicode` decodes with "ignore").

    Args:
        texts: string tensor of any shape, UTF-8.
        lowercase: whether to lower-case by Unicode's rules, independently of the locale.
        strip_accents: whether to decompose (NFD) and drop the combining marks. None = the value of
            `lowercase`, which is BERT's rule.

    Returns:
        A string tensor of the same shape: valid UTF-8, words still separated by white space.

    Example:
        >>> import tensorflow as tf
        >>> normalize(tf.constant("Señor\\u200b  Łódź")).numpy().decode()
        'senor  łodz'
    """
    if strip_accents is None:
        strip_accents = lowercase
    shape = tf.shape(texts)
    texts = tf.reshape(texts, [-1])
    if lowercase:
        # ASCII first: the Unicode kernel uses the locale of the process, and a Turkish one would
        # turn "TITLE" into "tıtle".
        texts = tf.strings.lower(texts)

    def beyond_ascii(texts: tf.Tensor) -> tf.Tensor:
        texts = unless(_CLEAN, texts, _clean)
        if lowercase:
            texts = tf.strings.lower(texts, encoding="utf-8")
        if strip_accents:
            texts = text_ops.normalized(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
        return texts

    return tf.reshape(unless(_PLAIN_ASCII, texts, beyond_ascii), shape)


def _clean(texts: tf.Tensor) -> tf.Tensor:
    texts = drop_invalid(texts)
    texts = tf.strings.regex_replace(texts, f"[{_LINE_SEPARATORS}]", " ")
    return tf.strings.regex_replace(texts, f"[{_DROPPED}]", "")


def drop_invalid(texts: tf.Tensor) -> tf.Tensor:
    """Drops the bytes that are not valid UTF-8 from texts (N,).

    >>> drop_invalid(tf.constant([b"caf\\xff\\xc3\\xa9"])).numpy()[0].decode()
    'café'
    """
    return unless(
        _VALID,
        texts,
        lambda x: tf.strings.unicode_transcode(x, "UTF-8", "UTF-8", errors="ignore"),
    )


def unless(pattern: str, texts: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns texts (N,), with `function` applied to those that `pattern` does not match entirely.

    `function` maps texts (M,) to texts (M,).
    """
    rows = tf.where(~tf.strings.regex_full_match(texts, pattern))
    return tf.tensor_scatter_nd_update(texts, rows, function(tf.gather_nd(texts, rows)))


@functools.cache
def byte_table(lowercase: bool, strip_accents: bool) -> np.ndarray:
    """Returns how many bytes each code point becomes under `normalize`; 0 if it is dropped.

    Dropped combining marks also have the flag `IS_MARK`. Normalisation treats each character
    separately, with two exceptions that do not change lengths. A final sigma has the two bytes of
    any sigma. Reordered marks (NFD) are dropped, except for a few musical signs of four bytes each.

    Args:
        lowercase: whether `normalize` lower-cases texts.
        strip_accents: whether `normalize` strips accents; not None.

    Returns:
        A uint8 array; the last entry stands for every code point past it.
    """
    with tf.init_scope(), tf.device("CPU"):
        codes = np.arange(TABLE_SIZE + 1, dtype=np.int32)
        codes[0xD800:0xE000] = 0xFFFD  # surrogates are no characters
        characters = tf.strings.unicode_encode(codes[:, None], "UTF-8")
        options = {"lowercase": lowercase, "strip_accents": strip_accents}
        lengths = tf.strings.length(normalize(characters, **options)).numpy()
        marks = tf.strings.regex_full_match(characters, r"\p{Mn}").numpy()
    lengths[TABLE_SIZE] = 4
    return (lengths + IS_MARK * (marks & (lengths == 0))).astype(np.uint8)
