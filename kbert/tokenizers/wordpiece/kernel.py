"""WordPiece of normalised text: tensorflow-text's kernel, and Google's limit on long words.

Shapes: B texts, P tokens of all texts together, W words of all texts together.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.tokenizers import text_ops

# Longer words become [UNK] (WordpieceTokenizer in google-research/bert, tokenization.py).
MAX_WORD_CHARACTERS = 200
# The kernel counts bytes; no UTF-8 character has more.
BYTES_PER_CHARACTER = 4

# Word splitting without splitting Chinese characters: white space is dropped, punctuation kept.
# ASCII symbols count as punctuation, as in BERT.
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
SPACES = r"[\t\n\r\p{Zs}]"
_DELIMITER = rf"{SPACES}+|{_PUNCTUATION}"
# The blocks that BERT splits into characters (`_is_chinese_char` in tokenization.py).
CHINESE = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}"
    r"\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}\x{2F800}-\x{2FA1F}]"
)


def space_words(texts: tf.Tensor, split_chinese: bool) -> tf.Tensor:
    """Puts spaces around punctuation marks in normalised texts, so that spaces separate all words.

    With `split_chinese` Chinese characters are separate words too, as in `WordPieceKernel`.

    Example:
        >>> import tensorflow as tf
        >>> space_words(tf.constant("it's"), True).numpy()
        b"it ' s"
    """
    alone = f"{_PUNCTUATION}|{CHINESE}" if split_chinese else _PUNCTUATION
    return tf.strings.regex_replace(texts, alone, r" \0 ")


def split_words(
    texts: tf.Tensor,
) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Splits normalised texts (B,) into words.

    Punctuation marks and Chinese characters are separate words; white space is dropped.

    Returns:
        Words, and the bytes where they start and end (int64), each (B, None).

    Example:
        >>> import tensorflow as tf
        >>> split_words(tf.constant(["it's 1."]))[0].to_list()
        [[b'it', b"'", b's', b'1', b'.']]
    """
    return text_ops.split_at(texts, f"{_DELIMITER}|{CHINESE}", f"{_PUNCTUATION}|{CHINESE}")


class WordPieceKernel:
    """Greedy longest-match-first WordPiece of normalised texts, with byte ranges.

    Args:
        vocabulary: tokens in the order of their ids.
        unk_id: id of words that the vocabulary cannot spell, and of words that are too long.
        split_chinese: whether every Chinese character is a separate word.
        max_word_characters: maximum length of a word; longer words are unknown.
    """

    def __init__(
        self,
        vocabulary: list[str],
        unk_id: int,
        split_chinese: bool,
        max_word_characters: int = MAX_WORD_CHARACTERS,
    ) -> None:
        # Eager constants, so that every graph that uses them can contain them.
        with tf.init_scope(), tf.device("CPU"):
            self._continuation = tf.constant([piece.startswith("##") for piece in vocabulary])
            try:
                model = text_ops.wordpiece_model(
                    vocabulary,
                    vocabulary[unk_id],
                    longest=BYTES_PER_CHARACTER * max_word_characters,
                    splits_words=split_chinese,
                )
            except RuntimeError as error:
                raise ValueError(
                    f"tensorflow-text does not support this vocabulary: {error}"
                ) from error
            self._model = tf.constant(model)
        self._unk_id = unk_id
        self._split_chinese = split_chinese
        self._longest = max_word_characters

    def __call__(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Splits a batch of texts into tokens.

        Args:
            texts: (B,) normalised texts.

        Returns:
            Ids, starts and ends, int32 RaggedTensors (B, None); the ranges count bytes.
        """
        if self._split_chinese:
            ids, starts, ends = text_ops.wordpiece(self._model, texts)
        else:
            words, word_begins, _ = text_ops.split_at(texts, _DELIMITER, _PUNCTUATION)
            ids, starts, ends = text_ops.wordpiece(self._model, words.flat_values)
            shift = tf.repeat(tf.cast(word_begins.flat_values, tf.int32), ids.row_lengths())
            ids = words.with_flat_values(ids).merge_dims(1, 2)
            starts = ids.with_flat_values(starts.flat_values + shift)
            ends = ids.with_flat_values(ends.flat_values + shift)
        # Only a long text can contain a long word.
        return tf.cond(
            tf.reduce_any(tf.strings.length(texts) > self._longest),
            lambda: self._limit_words(texts, ids, starts, ends),
            lambda: (ids, starts, ends),
        )

    def word_starts(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns whether each token of `ids` (B, None) begins a word, (P,) bool."""
        return tf.logical_not(tf.gather(self._continuation, ids.flat_values))

    def _limit_words(
        self,
        texts: tf.Tensor,
        ids: tf.RaggedTensor,
        starts: tf.RaggedTensor,
        ends: tf.RaggedTensor,
    ) -> tuple[tf.RaggedTensor, ...]:
        """Replaces the tokens of each too long word by one [UNK], whose range is the word.

        `ids`, `starts` and `ends` (B, None) are the tokens of `texts` (B,); returns the same three.
        """
        is_first = self.word_starts(ids)
        first = tf.where(is_first)[:, 0]  # (W,)
        last = tf.concat([first[1:], tf.size(is_first, tf.int64)[None]], 0) - 1
        begins = tf.gather(starts.flat_values, first)
        num_bytes = tf.gather(ends.flat_values, last[: tf.size(first)]) - begins

        def limited() -> tuple[tf.Tensor, ...]:
            rows = tf.gather(ids.value_rowids(), first)
            words = tf.strings.substr(tf.gather(texts, rows), begins, num_bytes)
            too_long = tf.strings.length(words, unit="UTF8_CHAR") > self._longest  # (W,)
            word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
            in_long = tf.gather(too_long, word)  # (P,)
            word_ends = tf.gather(begins + num_bytes, word)
            keep = is_first | ~in_long
            return (
                tf.boolean_mask(tf.where(in_long, self._unk_id, ids.flat_values), keep),
                tf.boolean_mask(starts.flat_values, keep),
                tf.boolean_mask(tf.where(in_long, word_ends, ends.flat_values), keep),
                tf.gather(tf.cumsum(tf.cast(tf.pad(keep, [[1, 0]]), tf.int64)), ids.row_splits),
            )

        flat_ids, flat_starts, flat_ends, row_splits = tf.cond(
            tf.reduce_any(num_bytes > self._longest),
            limited,
            lambda: (ids.flat_values, starts.flat_values, ends.flat_values, ids.row_splits),
        )
        ids = tf.RaggedTensor.from_row_splits(flat_ids, row_splits, validate=False)
        return ids, ids.with_flat_values(flat_starts), ids.with_flat_values(flat_ends)
