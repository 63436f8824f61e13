"""A stream of items in lists of bounded size."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def chunks(
    items: Iterable[Item],
    most_items: int,
    most_size: float = float("inf"),
    size_of: Callable[[Item], int] = lambda item: 0,
) -> Iterator[list[Item]]:
    """The items in lists, each ended by the item that makes it full.

    Args:
        items: any number of them.
        most_items: in a list.
        most_size: a list that reaches it is full.
        size_of: an item's share of that.

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
