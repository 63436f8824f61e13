"""Words as bytes, the input of ELMo.

Source: `UnicodeCharsVocabulary` and `Batcher` in allenai/bilm-tf, bilm/data.py (Peters et al.
2018).

Shapes: B sentences, T words of a sentence, W words, C = `max_characters`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kbert.core.in_memory import column_or_rows
from kbert.core.late import tf
from kbert.tokenizers.batching import call_with_batch
from kbert.tokenizers.serializable import Serializable
from kbert.tokenizers.words.spaces import split_at_spaces

# The two words that mark the ends of a sentence and are not spelled.
BEGIN_OF_SENTENCE = "<S>"
END_OF_SENTENCE = "</S>"
MAX_CHARACTERS = 50
# Ids of marks, after the 256 bytes. 257 is the end of a sentence.
_BEGIN_OF_SENTENCE = 256
_BEGIN_OF_WORD = 258
_END_OF_WORD = 259
_FILLER = 260


def character_ids(
    words: Any, max_characters: int = MAX_CHARACTERS, *, padding: bool = True
) -> tf.Tensor | tf.RaggedTensor:
    """Converts words to the ids of their bytes, with marks at the beginning and end of a word.

    A word becomes a begin mark, its first `max_characters - 2` UTF-8 bytes, an end mark, and filler
    up to `max_characters`. Bytes need not be valid UTF-8; an empty word is begin, end and filler.
    The words "<S>" and "</S>" stand for the beginning and the end of a sentence, as in bilm-tf.

    Args:
        words: strings of any shape: a tensor, nested lists or a RaggedTensor.
        max_characters: ids per word, C, 3 or more.
        padding: True = the 262 ids of ELMo's released weights: 0 is the padding of a batch, and the
            id of a byte is its value + 1. False = the 261 ids that bilm-tf uses in training,
            without padding: each id is one less.

    Returns:
        int32, of the shape of `words` with C appended; ragged if `words` is. The result is the same
        eagerly and in a graph.

    Raises:
        ValueError: `max_characters` is below 3.

    Example:
        >>> character_ids(["hé", "<S>"], 7).numpy().tolist()
        [[259, 105, 196, 170, 260, 261, 261], [259, 257, 260, 261, 261, 261, 261]]
    """
    frames = _frames(max_characters) - (0 if padding else 1)
    if isinstance(words, tf.RaggedTensor):
        ids = character_ids(words.flat_values, max_characters, padding=padding)
        return words.with_flat_values(ids)
    with tf.device("CPU"):
        words = tf.convert_to_tensor(words, tf.string)
        is_begin, is_end = words == BEGIN_OF_SENTENCE, words == END_OF_SENTENCE
        # Begin and end of a sentence have the ids after the bytes: bytes 0 and 1, shifted.
        words = tf.where(is_begin, "\0", tf.where(is_end, "\1", words))
        letters = max_characters - 2
        values = tf.io.decode_raw(words, tf.uint8, fixed_length=letters)  # (…, C - 2), 0 after
        mark = tf.zeros_like(values[..., :1])
        values = tf.cast(tf.concat([mark, values, mark], -1), tf.int32)  # (…, C)
        length = tf.minimum(tf.strings.length(words), letters)
        return values + tf.gather(frames, tf.where(is_begin | is_end, letters + 1, length))


@functools.cache
def _frames(max_characters: int) -> np.ndarray:
    """Returns the numbers that turn a word's padded bytes into ids: (C, C) int32, C columns a word.

    Row n is for words of n bytes, from 0 to C - 2; the last row is for "<S>" and "</S>". Raises
    ValueError if `max_characters` is below 3.
    """
    if max_characters < 3:
        raise ValueError(
            "max_characters must be 3 or more, because it includes the begin and the end of a "
            f"word. Received: {max_characters}"
        )
    column = np.arange(max_characters)
    length = np.array([*range(max_characters - 1), 1])[:, None]
    frames = np.select(
        [column == 0, column <= length, column == length + 1],
        [_BEGIN_OF_WORD, 0, _END_OF_WORD],
        _FILLER,
    )
    frames[-1, 1] = _BEGIN_OF_SENTENCE
    return (frames + 1).astype(np.int32)  # 0 is padding


class CharacterTokenizer(Serializable):
    """Splits text at white space and words into characters, the input of ELMo.

    It has no vocabulary and no unknown words, and needs no training. Ids are those of the released
    weights (262, 0 is padding; see `character_ids`), the same eagerly, in `tf.data` and in a
    SavedModel. Text is not normalised: ELMo was trained on cased words, with punctuation split off.

    Args:
        max_characters: ids per word, C; longer words are truncated.

    Attributes:
        pad_id, unk_id, cls_id, sep_id: C ids each: padding, an empty word, and "<S>" and "</S>",
            which begin and end a sequence.

    Raises:
        ValueError: `max_characters` is below 3.

    Example:
        >>> tokenizer = CharacterTokenizer()
        >>> tokenizer.encode("The sun shone .").shape.as_list()
        [4, 50]
        >>> tokenizer.pad_sentences(["The sun", ""])["padding_mask"].numpy().tolist()
        [[1, 1, 1, 1], [1, 1, 0, 0]]
    """

    kind = "characters"
    pair_separators = 1  # as `Tokenizer.pair_separators`

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        frames = _frames(max_characters)  # checks it
        self.max_characters = max_characters
        self.pad_id, self.unk_id = np.zeros_like(frames[0]), frames[0]
        self.cls_id = frames[-1]
        self.sep_id = frames[-1] + (np.arange(max_characters) == 1).astype(np.int32)

    def get_config(self) -> dict[str, Any]:
        return {"max_characters": self.max_characters}

    def _config_file(self) -> dict[str, Any]:
        return {"tokenizer_class": type(self).__name__, **self.settings}

    def encode(self, texts: str | Sequence[str] | tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
        """Returns the character ids of the words of texts.

        Args:
            texts: a list or 1-D tensor of strings, or one string. Words are separated by white
                space.

        Returns:
            An int32 RaggedTensor (B, None, C); for one string, a tensor (T, C).
        """
        return call_with_batch(lambda x: self._characters(split_at_spaces(x)[0]), texts)

    def encode_words(self, words: str | Sequence[str] | tf.Tensor) -> tf.Tensor:
        """Returns the character ids of pre-split words.

        Args:
            words: a list or 1-D tensor of strings, or one string; each string is one word, even
                with white space in it.

        Returns:
            An int32 tensor (W, C); for one string (C,).
        """
        return call_with_batch(self._characters, words)

    def pad_sentences(
        self,
        sentences: Sequence[str] | Sequence[Sequence[str]] | tf.Tensor | tf.RaggedTensor,
        edges: bool = True,
    ) -> dict[str, tf.Tensor]:
        """Makes a batch for `kbert.Elmo`, padded to the longest sentence.

        Args:
            sentences: list of texts (which are split at white space) or of lists of words, 1-D
                tensor of texts, or RaggedTensor (B, None) of words. Sentences may be empty.
            edges: whether to put "<S>" and "</S>" around each sentence, as bilm-tf does.

        Returns:
            `character_ids` (B, T, C) int32, 0 at padding, and `padding_mask` (B, T) int32, 1 at
            words. T includes the edges.

        Raises:
            TypeError: one string, a mix of texts and lists of words, or a word that is not a
                string.
        """
        with tf.device("CPU"):
            words = as_words(sentences)
            if edges:
                begin = tf.fill([words.nrows(), 1], BEGIN_OF_SENTENCE)
                end = tf.fill([words.nrows(), 1], END_OF_SENTENCE)
                words = tf.concat([begin, words, end], 1)
            return {
                "character_ids": self._characters(words).to_tensor(),
                "padding_mask": tf.sequence_mask(words.row_lengths(), dtype=tf.int32),
            }

    def _characters(self, words: tf.Tensor | tf.RaggedTensor) -> tf.Tensor | tf.RaggedTensor:
        return character_ids(words, self.max_characters)


def as_words(sentences: Any) -> tf.RaggedTensor:
    """Returns the words (B, None) of sentences.

    Texts are split at white space; a RaggedTensor or lists of words stay as they are. Raises
    TypeError for one string, a mix of texts and lists, or a word that is not str or bytes.
    """
    if isinstance(sentences, tf.RaggedTensor):
        return sentences
    if isinstance(sentences, tf.Tensor | np.ndarray):
        texts = tf.ensure_shape(tf.convert_to_tensor(sentences, tf.string), [None])
        return split_at_spaces(texts)[0]
    if _is_string(sentences) or not isinstance(sentences, Iterable):
        raise TypeError(
            "Sentences must be a list of texts or of lists of words. Received: one "
            f"{type(sentences).__name__}; put it in a list"
        )
    sentences = list(column_or_rows(sentences, ("words", "text")))
    if all(map(_is_string, sentences)):
        return split_at_spaces(tf.constant(sentences, tf.string))[0]
    for sentence in sentences:
        if not _is_words(sentence):
            raise TypeError(
                "Sentences must be all texts or all lists of words, and a word must be a str or "
                f"bytes. Received: {sentence!r} among {len(sentences)}"
            )
    words = [word for sentence in sentences for word in sentence]
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(words, tf.string), [len(sentence) for sentence in sentences]
    )


def _is_string(value: Any) -> bool:
    return isinstance(value, str | bytes)


def _is_words(value: Any) -> bool:
    return isinstance(value, Iterable) and not _is_string(value) and all(map(_is_string, value))
