"""Vocabularies of whole words, counted in texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kbert.core.late import tf
from kbert.tokenizers.normalization import drop_invalid
from kbert.tokenizers.word_counts import count
from kbert.tokenizers.words.spaces import split_at_spaces
from kbert.tokenizers.words.vocabulary import NO_WORD, SPECIAL_WORDS


def train_words(
    texts: Iterable[str | bytes], vocabulary_size: int = 0, *, progress: bool = False
) -> list[str]:
    """Builds a vocabulary for `WordTokenizer`: the most frequent words between white space.

    The texts are streamed once: memory grows with the number of distinct words only. Equal texts
    give the same list, on any number of threads and in any order of the texts.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: maximum number of words, including the special ones. 0 = all (beyond eight
            million distinct words, those seen once are dropped).
        progress: whether to show a progress bar.

    Returns:
        "</S>", "<S>", "<UNK>", then words by falling frequency; equally frequent words are in the
        order of their bytes.

    Raises:
        TypeError: `texts` is one string, or an item is neither str nor bytes.
        ValueError: no words in the texts, or a `vocabulary_size` that only fits the special words.

    Example:
        >>> train_words(["the sun and the moon", "the sea"], 6)
        ['</S>', '<S>', '<UNK>', 'the', 'and', 'moon']
    """
    budget = vocabulary_size - len(SPECIAL_WORDS)
    if vocabulary_size and budget < 1:
        raise ValueError(
            f"vocabulary_size must include a word besides {', '.join(SPECIAL_WORDS)}, or be 0 for "
            f"all words. Received: {vocabulary_size}"
        )
    counts = count_spaced_words(texts, progress=progress)
    for word in (*SPECIAL_WORDS, NO_WORD):
        del counts[word]
    if not counts:
        raise ValueError("Training a vocabulary requires texts with words. Received: none.")
    # Python sorts strings in the order of their UTF-8 bytes.
    words = sorted(counts, key=lambda word: (-counts[word], word))
    return [*SPECIAL_WORDS, *(words[:budget] if vocabulary_size else words)]


def count_spaced_words(texts: Iterable[str | bytes], *, progress: bool = False) -> Counter[str]:
    """Counts words as the tokenizer will see them: separated by white space.

    Args:
        texts: lines or documents, UTF-8.
        progress: whether to show a progress bar.

    Returns:
        Word -> its count.

    Example:
        >>> sorted(count_spaced_words(["so , so", "So"]).items())
        [(',', 1), ('So', 1), ('so', 2)]
    """
    return count(texts, _divide, bytes.decode, progress=progress)


def _divide(texts: tf.Tensor) -> tf.RaggedTensor:
    return split_at_spaces(drop_invalid(texts))[0]
