"""Word counts for the trainers of tokenizers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.tokenizers.batching import batches, with_progress

# Maximum number of distinct words in memory (about 1 GB); beyond it, words seen once are dropped.
_MAX_WORDS = 8_000_000
# A trainer accepts text, not counts: each word is repeated as often as it was seen, in strings of
# about this many characters.
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
        divide: function from texts (B,) to words (B, None). Pass the same function each time: its
            graph is cached.
        spell: function from a word to the string for the trainer.
        progress: whether to show a progress bar.

    Returns:
        Word -> its count.

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
    """Returns a graph from texts (B,) to their distinct words (U,) and the counts (U,).

    It is traced once for each `divide`, a function from texts (B,) to words (B, None).
    """

    def distinct(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        words, _, repeats = tf.unique_with_counts(divide(batch).flat_values)
        return words, repeats

    return on_cpu(distinct, tf.TensorSpec([None], tf.string))


def limited(counts: Counter[str]) -> Counter[str]:
    """Returns the counts; if there are more than 8 million words, without those seen once.

    Example:
        >>> limited(Counter("abba"))
        Counter({'a': 2, 'b': 2})
    """
    if len(counts) <= _MAX_WORDS:
        return counts
    return Counter({word: count for word, count in counts.items() if count > 1})


def repeated(counts: Mapping[str, int]) -> Iterator[str]:
    """Yields every word as often as it was counted, in strings of words separated by spaces.

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
