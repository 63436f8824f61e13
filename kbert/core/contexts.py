"""What a train step or an export and the layers tell each other around a forward pass.

The step collects losses that layers add to those of a task, such as the cost of thinking longer,
and says that activations are computed again in the backward pass instead of kept. An export says
that the runtime rounds numbers itself.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from kbert.core.types import Tensor

_Pair = tuple[Tensor, Tensor]
_added: contextvars.ContextVar[dict[str, _Pair] | None] = contextvars.ContextVar(
    "added", default=None
)
# Names of the layers that are computed again; None outside of `recomputation`.
_recomputed: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "recomputed", default=None
)
_rounded: contextvars.ContextVar[bool] = contextvars.ContextVar("rounded", default=True)


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


@contextlib.contextmanager
def recomputation(active: bool = True) -> Iterator[list[str]]:
    """In this context layers that `kbert.layers.recompute` runs in training are computed twice.

    It is about where the forward part is computed or traced; the backward part may come later.

    Args:
        active: False changes nothing.

    Yields:
        A list, to which the names of these layers are added.

    Example:
        >>> from keras import ops
        >>> from kbert.layers import Dropout
        >>> from kbert.layers.recompute import run_layer
        >>> with recomputation() as run:
        ...     x = run_layer(Dropout(0.1, name="dropout"), ops.ones((2, 3)), training=True)
        >>> run
        ['dropout']
    """
    run: list[str] = []
    if not active:
        yield run
        return
    token = _recomputed.set(run)
    try:
        yield run
    finally:
        _recomputed.reset(token)


def recomputed_layers() -> list[str] | None:
    """The list of `recomputation`, for whoever runs a layer; None outside of it."""
    return _recomputed.get()


@contextlib.contextmanager
def without_rounding() -> Iterator[None]:
    """In this context layers that round numbers to 8 bits compute with them as they are.

    Example:
        >>> with without_rounding():
        ...     is_rounded()
        False
    """
    token = _rounded.set(False)
    try:
        yield
    finally:
        _rounded.reset(token)


def is_rounded() -> bool:
    """Whether layers that round numbers do so here."""
    return _rounded.get()
