"""Context managers that pass information between layers and a train step or an export.

The train step collects auxiliary losses that layers add to the task's, such as the ponder cost of
adaptive computation. It also requests that activations are recomputed in the backward pass instead
of stored, and tells layers whether compiling functions pays off. An export turns off the layers'
rounding where the runtime rounds numbers itself. A file that grows over several runs has its model
computed in the same way in each of them.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from kbert.core.types import Tensor

_Pair = tuple[Tensor, Tensor]
_added: contextvars.ContextVar[dict[str, _Pair] | None] = contextvars.ContextVar(
    "added", default=None
)
# Names of the layers that are recomputed; None outside `recomputation`.
_recomputed: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "recomputed", default=None
)
_fused: contextvars.ContextVar[bool] = contextvars.ContextVar("fused", default=True)
_rounded: contextvars.ContextVar[bool] = contextvars.ContextVar("rounded", default=True)
_repeated: contextvars.ContextVar[bool] = contextvars.ContextVar("repeated", default=False)


@contextlib.contextmanager
def auxiliary_losses() -> Iterator[dict[str, _Pair]]:
    """Collects the auxiliary losses that layers add while a task computes its losses.

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
    """Adds a loss to those that `auxiliary_losses` collects; does nothing outside that context.

    Args:
        name: name of the loss; numerators and denominators of losses with one name are summed.
        numerator: sum of the loss over the batch, a scalar.
        denominator: divisor of the numerator, a scalar; both are summed over the global batch
            before the division.
    """
    added = _added.get()
    if added is None:
        return
    previous = added.get(name)
    if previous is not None:
        numerator, denominator = previous[0] + numerator, previous[1] + denominator
    added[name] = (numerator, denominator)


@contextlib.contextmanager
def recomputation(active: bool = True) -> Iterator[list[str]]:
    """Recomputes the layers that `kbert.layers.recompute` runs in training, in the backward pass.

    The context must surround the forward pass (or its tracing); the backward pass may come later.

    Args:
        active: whether layers are recomputed; False changes nothing.

    Yields:
        A list; the names of the recomputed layers are appended to it.

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
    """Returns the list that `recomputation` yields; None outside that context."""
    return _recomputed.get()


@contextlib.contextmanager
def fusion(active: bool) -> Iterator[None]:
    """Whether layers may run functions that are compiled for each shape (`kbert.layers.fused`).

    Like `recomputation`, the context must surround the forward pass.

    Example:
        >>> with fusion(False):
        ...     is_fused()
        False
    """
    token = _fused.set(active)
    try:
        yield
    finally:
        _fused.reset(token)


def is_fused() -> bool:
    """Returns whether layers may run compiled functions: False inside `fusion(False)`."""
    return _fused.get()


@contextlib.contextmanager
def without_rounding() -> Iterator[None]:
    """Turns off the rounding in layers that round numbers to 8 bits.

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
    """Returns whether layers that round numbers do so here: False inside `without_rounding`."""
    return _rounded.get()


@contextlib.contextmanager
def repeatable() -> Iterator[None]:
    """Makes predictions compute the first batch of a process like all others.

    Otherwise a small first batch runs without a graph, which is faster once but rounds otherwise
    (`kbert.inference.compiled`); a run that resumes after a kill would write other last digits.

    Example:
        >>> with repeatable():
        ...     is_repeatable()
        True
    """
    token = _repeated.set(True)
    try:
        yield
    finally:
        _repeated.reset(token)


def is_repeatable() -> bool:
    """Returns whether every batch must be computed in the same way: True inside `repeatable`."""
    return _repeated.get()
