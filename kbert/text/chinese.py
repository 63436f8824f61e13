"""Chinese words, which are written without spaces: a segmenter, and a lexicon made with it."""

import collections
import functools
import logging
import re
from collections.abc import Callable, Iterable

from kbert.core.late import optional

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{2,}")


@functools.cache
def segmenter() -> Callable[[str], list[str]]:
    """Returns jieba's function that splits a text into words, with its default dictionary.

    Raises:
        ImportError: jieba is not installed.
    """
    jieba = optional("jieba", "chinese", "Cutting Chinese words")
    jieba.setLogLevel(logging.WARNING)  # jieba logs how it loads its dictionary
    return jieba.Tokenizer().lcut


def chinese_lexicon(
    texts: Iterable[str],
    *,
    min_count: int = 1,
    segment: Callable[[str], list[str]] | None = None,
) -> list[str]:
    """Returns the Chinese words of texts, for masking="phrase" to mask as whole units.

    BERT's and ERNIE's tokenizers make each Chinese character a token. A word of one character is
    therefore a unit anyway, and is left out. Masking matches the lexicon in token sequences from
    left to right, the longest word first. This may differ from the segmenter's split.

    Args:
        texts: texts in any language; words that are not Chinese are skipped.
        min_count: least number of occurrences; rarer words are left out.
        segment: function that splits a text into words; None uses jieba.

    Returns:
        Words of two characters or more, the most frequent first, ties ordered by spelling.

    Raises:
        ImportError: `segment` is None, and jieba is not installed.
        ValueError: `min_count` is less than 1.

    Example:
        >>> chinese_lexicon(["语言 模型 的 语言"], segment=str.split)
        ['语言', '模型']
    """
    if min_count < 1:
        raise ValueError(f"`min_count` must be at least 1. Received: {min_count}")
    segment = segment or segmenter()
    counts = collections.Counter(
        word for text in texts for word in segment(text) if _HAN.fullmatch(word)
    )
    ranked_words = [(-count, word) for word, count in counts.items() if count >= min_count]
    return [word for _, word in sorted(ranked_words)]
