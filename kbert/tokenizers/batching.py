"""Batches of texts for a graph, with input checks and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbert.core.in_memory import each_text
from kbert.core.late import tf
from kbert.io.chunks import chunks
from kbert.io.progress import Progress

# Texts go through the graph in batches of about this size.
_BATCH_BYTES = 1 << 20
_BATCH_TEXTS = 4096


def call_with_batch(function: Callable[[tf.Tensor], Any], texts: Any) -> Any:
    """Calls a function of a batch of strings; also accepts one string.

    Args:
        function: function from strings (B,) to tensors, all with B rows.
        texts: a list or 1-D tensor of strings, or one string.

    Returns:
        The result of the function; for one string its only row.

    Raises:
        ValueError: strings with more than one dimension.

    Example:
        >>> call_with_batch(tf.strings.length, "three").numpy().item()
        5
    """
    texts = tf.convert_to_tensor(texts, tf.string)
    rank = texts.shape.rank
    if rank not in (0, 1):
        raise ValueError(
            "Texts must be one string or a 1-D list or tensor of strings. Received: a tensor of "
            f"shape {texts.shape}"
        )
    out = function(texts[None] if rank == 0 else texts)
    return tf.nest.map_structure(lambda x: x[0], out) if rank == 0 else out


def batches(texts: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
    """Yields the texts in lists of at most 4096 texts and about a megabyte.

    Raises TypeError if `texts` is one string, or an item is neither str nor bytes.

    Example:
        >>> list(batches(["one", "two"]))
        [['one', 'two']]
    """
    return chunks(each_text(texts), _BATCH_TEXTS, _BATCH_BYTES, len)


def with_progress(texts: Iterable[str | bytes], description: str) -> Iterator[str | bytes]:
    """Yields the texts; shows on stderr a progress bar of their bytes, labelled `description`."""
    num_bytes = 0
    with Progress(description, None, "B") as bar:
        for text in each_text(texts):
            yield text
            num_bytes += len(text)
            bar.show(num_bytes)
