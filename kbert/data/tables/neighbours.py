"""Neighbouring sentences of a corpus as a table: the data of Quick-Thought and Skip-Thought."""

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kbert.data.tables.table import Table
from kbert.text import documents
from kbert.text.source import Source


def neighbours(
    sources: str | os.PathLike | Source | Iterable[str | os.PathLike | Source],
    *,
    both_sides: bool = False,
    negatives: int = 0,
    max_rows: int | None = None,
    seed: int = 0,
    field: str = "text",
    on_bad_utf8: str = "fail",
) -> Table:
    """Returns the neighbouring sentences of a corpus.

    Pairs are data of `TextEmbedder.fit`, whose ranking finds the next sentence among all of the
    batch (Quick-Thought: Logeswaran & Lee 2018, section 3, https://arxiv.org/abs/1803.02893).
    There the candidates are contiguous sentences, and two encoders embed the two sides. Here `fit`
    shuffles the rows, `negatives` adds candidates of the same document, and one encoder embeds both
    sides.

    Sentences with both neighbours are data of `SkipThought.fit` (Kiros et al. 2015, section 2.2,
    https://arxiv.org/abs/1506.06726).

    Equal neighbours are skipped: nothing is learned from them. The rows are in memory; the corpus
    is read at constant memory.

    Args:
        sources: text files, patterns, JSON lines, `tfds:…`, `docs:`, or open sources; see
            `kbert.text.open_sources`. A blank line separates documents of a text file. Prepared
            shards hold token ids, not texts; pass the text that they were made of.
        both_sides: whether a row is a sentence with both neighbours instead of a pair.
        negatives: number of further sentences for each pair: the nearest to its first sentence in
            the document, without the two neighbours. Short documents have fewer.
        max_rows: number of rows to sample uniformly from the corpus; None = all.
        seed: seed of the sample.
        field: name of the text field in JSON lines and TensorFlow data sets.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.

    Returns:
        A table in the order of the corpus. Its columns are `first`, `second`, with `negatives` also
        `negatives`; with `both_sides` they are `previous`, `text`, `next`.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: an argument is out of range, or no document has two different neighbouring
            sentences (three with `both_sides`).

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "one.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("It rained. We stayed in. Nobody called.\\n\\nThe sun shone.\\n")
        >>> pairs = neighbours(path)
        >>> list(zip(pairs["first"], pairs["second"]))
        [('It rained.', 'We stayed in.'), ('We stayed in.', 'Nobody called.')]
        >>> neighbours(path, both_sides=True).columns
        {'previous': ['It rained.'], 'text': ['We stayed in.'], 'next': ['Nobody called.']}
    """
    if negatives < 0 or (max_rows is not None and max_rows < 1):
        raise ValueError(
            "negatives must be at least 0, and max_rows at least 1 or None. Received: "
            f"negatives={negatives}, max_rows={max_rows}"
        )
    if both_sides and negatives:
        raise ValueError(
            "negatives require pairs, whose candidates they are: leave out both_sides. Received: "
            f"both_sides=True, negatives={negatives}"
        )
    names = ["previous", "text", "next"] if both_sides else ["first", "second", "negatives"]
    texts = documents(sources, field=field, on_bad_utf8=on_bad_utf8)
    rows = (
        row
        for sentences in texts
        for row in (_middles(sentences) if both_sides else _pairs(sentences, negatives))
    )
    sample = list(rows) if max_rows is None else _sample(rows, max_rows, seed)
    if not sample:
        raise ValueError(
            f"A document must have at least {2 + both_sides} sentences, and neighbours must "
            "differ; a blank line begins a new document. Received: no such document"
        )
    columns = map(list, zip(*sample, strict=True))
    return Table(dict(zip(names, columns, strict=False)))  # pairs may have no negatives


def _pairs(sentences: Sequence[str], negatives: int) -> Iterator[tuple[Any, ...]]:
    """Yields the neighbours of a document, with `negatives` also a list of other sentences."""
    for i, pair in enumerate(itertools.pairwise(sentences)):
        if pair[0] != pair[1]:
            yield (*pair, _others(sentences, i, negatives)) if negatives else pair


def _others(sentences: Sequence[str], i: int, count: int) -> list[str]:
    """Returns the `count` sentences nearest to sentence `i`, from two sentences away."""
    distances = range(2, min(count + 2, len(sentences)))
    nearest = [j for d in distances for j in (i + d, i - d) if 0 <= j < len(sentences)]
    return [sentences[j] for j in nearest[:count]]


def _middles(sentences: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields the sentences of a document that have two neighbours, between these."""
    for row in zip(sentences[:-2], sentences[1:-1], sentences[2:], strict=True):
        if row[1] not in (row[0], row[2]):
            yield row


def _sample(rows: Iterator, count: int, seed: int) -> list:
    """Returns a uniform sample of rows in their order, at memory for `count` rows.

    (Vitter 1985, algorithm R, https://doi.org/10.1145/3147.3165.)
    """
    draw = random.Random(seed)
    kept: list[tuple[int, Any]] = []
    for number, row in enumerate(rows):
        if number < count:
            kept.append((number, row))
        elif (place := draw.randrange(number + 1)) < count:
            kept[place] = (number, row)
    return [row for _, row in sorted(kept, key=lambda numbered: numbered[0])]
