"""Counted words on their way to a trainer."""

from collections import Counter
from collections.abc import Iterator, Mapping

# Different words held at a time (about 1 GB); past it the words seen once are forgotten.
_MAX_WORDS = 8_000_000
# A trainer takes text, not counts: a word goes to it as often as it was seen, in strings of about
# this many characters.
_FEED_CHARACTERS = 50_000


def limited(counts: Counter[str]) -> Counter[str]:
    """The counts, without the words seen once where there are too many.

    Example:
        >>> limited(Counter("abba"))
        Counter({'a': 2, 'b': 2})
    """
    if len(counts) <= _MAX_WORDS:
        return counts
    return Counter({word: count for word, count in counts.items() if count > 1})


def repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Every word as often as it was counted, in strings of words between spaces.

    Example:
        >>> list(repeated({"low": 2, "new": 1}))
        ['low low new ']
    """
    parts, size = [], 0
    for word, count in counts.items():
        per_string = max(1, _FEED_CHARACTERS // (len(word) + 1))
        for start in range(0, count, per_string):
            parts.append((word + " ") * min(per_string, count - start))
            size += len(parts[-1])
            if size >= _FEED_CHARACTERS:
                yield "".join(parts)
                parts, size = [], 0
    yield "".join(parts)
