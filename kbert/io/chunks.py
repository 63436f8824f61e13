"""Splits a stream of items into lists of bounded size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def chunks(
    items: Iterable[Item],
    most_items: int,
    most_size: float = float("inf"),
    size_of: Callable[[Item], int] = lambda item: 0,
) -> Iterator[list[Item]]:
    """Yields the items in lists; a list ends with the item that makes it full.

    Args:
        items: any number of items.
        most_items: maximum number of items in a list.
        most_size: total size at which a list is full.
        size_of: function that returns the size of an item.

    Example:
        >>> list(chunks(["a", "bcd", "e", "f", "g"], 2, most_size=4, size_of=len))
        [['a', 'bcd'], ['e', 'f'], ['g']]
    """
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += size_of(item)
        if len(chunk) == most_items or size >= most_size:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
