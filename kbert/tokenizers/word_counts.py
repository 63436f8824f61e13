"""Counted words on their way to a trainer."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.tokenizers.batching import batches, with_progress

# Different words held at a time (about 1 GB); past it the words seen once are forgotten.
_MAX_WORDS = 8_000_000
# A trainer takes text, not counts: a word goes to it as often as it was seen, in strings of about
# this many characters.
_FEED_CHARACTERS = 50_000


def count(
    texts: Iterable[str | bytes],
    divide: Callable[[tf.Tensor], tf.RaggedTensor],
    spell: Callable[[bytes], str],
    *,
    progress: bool = False,
) -> Counter[str]:
    """Counts the words of texts in a graph, a batch at a time.

    Args:
        texts: lines or documents, UTF-8.
        divide: (B,) texts -> (B, None) words. The same function each time: its graph is kept.
        spell: a word as the trainer will read it.
        progress: show a progress bar.

    Returns:
        Word -> how often it was seen.

    Example:
        >>> sorted(count(["so so", "it"], tf.strings.split, bytes.decode).items())
        [('it', 1), ('so', 2)]
    """
    distinct = _distinct_words(divide)
    counts: Counter[str] = Counter()
    for batch in batches(with_progress(texts, "counting words") if progress else texts):
        words, repeats = distinct(tf.constant(batch))
        for word, times in zip(words.numpy(), repeats.numpy().tolist(), strict=True):
            counts[spell(word)] += times
        counts = limited(counts)
    return counts


@functools.cache
def _distinct_words(
    divide: Callable[[tf.Tensor], tf.RaggedTensor],
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """A batch of texts -> its different words and how often each is in it. Traced once."""

    def distinct(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        words, _, repeats = tf.unique_with_counts(divide(batch).flat_values)
        return words, repeats

    return on_cpu(distinct, tf.TensorSpec([None], tf.string))


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
