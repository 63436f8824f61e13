"""Values that belong together by their order."""

from collections.abc import Reversible, Set


def check_order(values: object, what: str) -> None:
    """Raises for a set: their order says which label or answer belongs to which text.

    Args:
        values: a dict's keys, values and items have an order; a set and a frozenset have none.
        what: what the error calls them, in the singular.

    Raises:
        ValueError: the values have no order.

    Example:
        >>> check_order({"a": 1}.keys(), "The column 'text'")
    """
    if isinstance(values, Set) and not isinstance(values, Reversible):
        raise ValueError(
            f"{what} must have an order, by which texts, labels and answers belong together. "
            f"Received: a {type(values).__name__}, which has none; sorted(…) gives it one"
        )
