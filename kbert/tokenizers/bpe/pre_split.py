"""Splitting of texts into words like GPT-2 and Llama 3, in the graph.

Sources: the patterns in openai/gpt-2, encoder.py, and in meta-llama/llama3, llama/tokenizer.py. RE2
has no lookahead and older Unicode tables.

Shapes: B texts, W words of all texts together.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers.token_segments import CUT, WHITE_SPACE

# RE2's tables, and the additions of Unicode 15 and 16 (Hugging Face `tokenizers` 0.23).
_LETTERS = (
    r"\p{L}\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}"
    r"\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{11380}-\x{11389}\x{1138B}"
    r"\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}"
    r"\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1E5D0}-\x{1E5ED}"
    r"\x{1E5F0}\x{2EBF0}-\x{2EE5D}"
)
_NUMBERS = (
    r"\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{16130}-\x{16139}"
    r"\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E5F1}-\x{1E5FA}"
)
_GPT2 = (
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{_LETTERS}]+| ?[{_NUMBERS}]+"
    rf"| ?[^{WHITE_SPACE}{_LETTERS}{_NUMBERS}]+|[{WHITE_SPACE}]+"
)
# Both have `\s+(?!\S)`: white space before a word leaves its last character to the word.
_BEFORE_WORD = rf"([{WHITE_SPACE}])([{WHITE_SPACE}][^{WHITE_SPACE}])"
# In Llama 3 a line includes the white space at its end, so a last character that ends a line does
# not belong to the next word.
_LLAMA3 = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n{_LETTERS}{_NUMBERS}]?[{_LETTERS}]+|[{_NUMBERS}]{{1,3}}"
    rf"| ?[^{WHITE_SPACE}{_LETTERS}{_NUMBERS}]+[\r\n]*|[{WHITE_SPACE}]*[\r\n]+|[{WHITE_SPACE}]+"
)
_NO_LINE_END = r"\t\x{0B}\x{0C} " + WHITE_SPACE.removeprefix(r"\t-\r ")
_BEFORE_LLAMA3 = rf"([{WHITE_SPACE}])([{_NO_LINE_END}][^{WHITE_SPACE}])"
# Kind of word splitting -> pattern of the first cuts, pattern of a word.
PATTERNS = {"gpt2": (_BEFORE_WORD, _GPT2), "llama3": (_BEFORE_LLAMA3, _LLAMA3)}


def prefix_space(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts a space before texts that are not empty and do not begin with a space.

    Args:
        texts: (B,) valid UTF-8.

    Returns:
        The texts (B,), and the number of bytes added before each (B,) int32.

    Example:
        >>> import tensorflow as tf
        >>> prefix_space(tf.constant(["so", " so", ""]))[0].numpy().tolist()
        [b' so', b' so', b'']
    """
    needs_space = ~tf.strings.regex_full_match(texts, r"(?s)( .*)?")
    return tf.where(needs_space, " " + texts, texts), tf.cast(needs_space, tf.int32)


def split_words(texts: tf.Tensor, words: str = "gpt2") -> tf.RaggedTensor:
    """Splits texts (B,) into words (B, None), whose concatenation is the text.

    Args:
        texts: (B,) valid UTF-8.
        words: kind of word splitting, a key of `PATTERNS`.

    Example:
        >>> import tensorflow as tf
        >>> split_words(tf.constant(["it's  so  "])).to_list()
        [[b'it', b"'s", b' ', b' so', b'  ']]
        >>> split_words(tf.constant(["so: 12345\\n\\n it"]), "llama3").to_list()
        [[b'so', b':', b' ', b'123', b'45', b'\\n\\n', b' it']]
    """
    first_pattern, second_pattern = PATTERNS[words]
    cut = tf.strings.regex_replace(texts, first_pattern, rb"\1" + CUT + rb"\2")
    return _split(tf.strings.regex_replace(cut, second_pattern, rb"\0" + CUT))


def _split(cut: tf.Tensor) -> tf.RaggedTensor:
    """Splits texts (B,) at the separator `CUT` into words (B, None); drops empty words."""
    parts = tf.strings.split(cut, CUT)
    flat = parts.flat_values
    keep = tf.not_equal(flat, "")
    num_kept = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int64))], 0)
    return tf.RaggedTensor.from_row_splits(
        tf.boolean_mask(flat, keep), tf.gather(num_kept, parts.row_splits), validate=False
    )
