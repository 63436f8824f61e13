"""Losses that layers add to those of a task, such as the cost of thinking longer."""

import contextlib
import contextvars
from collections.abc import Iterator

from kbert.core.types import Tensor

_Pair = tuple[Tensor, Tensor]
_added: contextvars.ContextVar[dict[str, _Pair] | None] = contextvars.ContextVar(
    "added", default=None
)


@contextlib.contextmanager
def auxiliary_losses() -> Iterator[dict[str, _Pair]]:
    """Collects what layers add while a task computes its losses.

    Yields:
        Name -> (numerator, denominator), as in `kbert.training.TrainStep.loss_terms`.

    Example:
        >>> with auxiliary_losses() as added:
        ...     add_auxiliary_loss("ponder_loss", 3.0, 2.0)
        ...     add_auxiliary_loss("ponder_loss", 1.0, 2.0)
        >>> added
        {'ponder_loss': (4.0, 4.0)}
    """
    added: dict[str, _Pair] = {}
    token = _added.set(added)
    try:
        yield added
    finally:
        _added.reset(token)


def add_auxiliary_loss(name: str, numerator: Tensor, denominator: Tensor) -> None:
    """Adds to the losses that are collected; where nobody collects, nothing.

    Args:
        name: of the loss; of several with one name the numerators and denominators are added.
        numerator: its sum over the batch, a scalar.
        denominator: what that is divided by, over the global batch.
    """
    added = _added.get()
    if added is None:
        return
    before = added.get(name)
    if before is not None:
        numerator, denominator = before[0] + numerator, before[1] + denominator
    added[name] = (numerator, denominator)
