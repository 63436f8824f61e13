"""The words of Chinese, which are written without blanks: a segmenter, and a lexicon from it."""

import collections
import functools
import logging
import re
from collections.abc import Callable, Iterable

from kbert.core.late import optional

_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{2,}")


@functools.cache
def segmenter() -> Callable[[str], list[str]]:
    """jieba's cut of a text into words, with the dictionary that comes with it.

    Raises:
        ImportError: jieba is not installed.
    """
    jieba = optional("jieba", "chinese", "Cutting Chinese words")
    jieba.setLogLevel(logging.WARNING)  # it tells how it loads its dictionary
    return jieba.Tokenizer().lcut


def chinese_lexicon(
    texts: Iterable[str],
    *,
    min_count: int = 1,
    segment: Callable[[str], list[str]] | None = None,
) -> list[str]:
    """The Chinese words of texts, which masking="phrase" masks whole.

    Characters are tokens to BERT's and ERNIE's tokenizers, so a word of a single one is a unit
    anyway and left out. In rows of tokens words are found again as the longest of the lexicon from
    the left, which is not always how the segmenter cut them.

    Args:
        texts: in any language; what is not Chinese is skipped.
        min_count: words that are rarer are left out.
        segment: text -> its words; None is jieba's.

    Returns:
        Words of two characters or more, the most frequent first, equals by their spelling.

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
    found = [(-count, word) for word, count in counts.items() if count >= min_count]
    return [word for _, word in sorted(found)]
