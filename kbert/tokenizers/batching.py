"""Texts for training: checked, in batches for a graph, with a progress bar."""

from collections.abc import Iterable, Iterator

# Texts go through the graph in batches of about this size.
_BATCH_BYTES = 1 << 20
_BATCH_TEXTS = 4096


def each_text(texts: Iterable[str | bytes]) -> Iterator[str | bytes]:
    """The texts, one after the other.

    Raises:
        TypeError: `texts` is one string, or holds something else than str and bytes.

    Example:
        >>> list(each_text(["one", b"two"]))
        ['one', b'two']
    """
    if isinstance(texts, str | bytes):
        raise TypeError(
            f"texts is an iterable of str or bytes. Received: one {type(texts).__name__} of "
            f"{len(texts)} characters; put it in a list."
        )
    for text in texts:
        if not isinstance(text, str | bytes):
            raise TypeError(f"A text is a str or bytes. Received: {text!r}")
        yield text


def batches(texts: Iterable[str | bytes]) -> Iterator[list[str | bytes]]:
    """The texts in lists of about a megabyte; raises as `each_text`.

    Example:
        >>> list(batches(["one", "two"]))
        [['one', 'two']]
    """
    batch, size = [], 0
    for text in each_text(texts):
        batch.append(text)
        size += len(text)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_TEXTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def with_progress(texts: Iterable[str | bytes], description: str) -> Iterator[str | bytes]:
    """The texts, and a progress bar of their bytes on stderr."""
    from tqdm import tqdm

    with tqdm(desc=description, unit="B", unit_scale=True) as bar:
        for text in each_text(texts):
            yield text
            bar.update(len(text))
