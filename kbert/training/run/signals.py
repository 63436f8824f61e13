"""Signals that end a run after a checkpoint, and the exceptions that `fit` then raises."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run after a checkpoint was written; the same call resumes.

    Attributes:
        signal: signal that ended the run.
        step: updates made.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal, self.step = signal.Signals(number), step
        super().__init__(
            f"stopped by {self.signal.name} after step {step}; the same call resumes from there"
        )


class Terminated(SystemExit):
    """Like `Interrupted`, for SIGTERM: the process ends with status 143, as in a shell."""

    def __init__(self, number: int, step: int) -> None:
        self.signal, self.step = signal.Signals(number), step
        super().__init__(128 + number)


def raise_stopped(number: int, step: int) -> None:
    """Raises `Interrupted` for SIGINT, else `Terminated`; `step` is the number of updates made."""
    raise (Interrupted if number == signal.SIGINT else Terminated)(number, step)


@contextlib.contextmanager
def stopping(stop: Callable[[int], None]) -> Iterator[None]:
    """Turns SIGTERM and SIGINT into a call of `stop(number)`, which requests an orderly end.

    Signals reach the main thread only; in other threads this does nothing. An ignored signal stays
    ignored (SIGINT in a background job). The second signal of a kind has its usual effect.

    Args:
        stop: Function called by the signal handler, between any two instructions; it should only
            set a variable.

    Example:
        >>> seen = []
        >>> with stopping(seen.append):
        ...     signal.raise_signal(signal.SIGTERM)
        >>> seen == [signal.SIGTERM]
        True
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    previous_handlers = {
        n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN
    }

    def handle(number: int, frame: FrameType | None) -> None:
        stop(number)
        signal.signal(number, previous_handlers[signal.Signals(number)])

    for number in previous_handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
