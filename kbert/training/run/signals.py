"""Signals that end a run in an orderly way, and how `fit` says that one did."""

import contextlib
import signal
import threading
from collections.abc import Callable

STOPPING = (signal.SIGTERM, signal.SIGINT)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run after a checkpoint was written; the same call goes on.

    Attributes:
        signal: the signal.
        step: updates made.
    """

    def __init__(self, number: int, step: int) -> None:
        self.signal, self.step = signal.Signals(number), step
        super().__init__(
            f"stopped by {self.signal.name} after step {step}; the same call goes on from there"
        )


class Terminated(SystemExit):
    """The same of SIGTERM, which ends the process as a shell would say it: with 143."""

    def __init__(self, number: int, step: int) -> None:
        self.signal, self.step = signal.Signals(number), step
        super().__init__(128 + number)


def raise_stopped(number: int, step: int) -> None:
    """Raises what the signal would have, had nobody saved a checkpoint first."""
    raise (Interrupted if number == signal.SIGINT else Terminated)(number, step)


@contextlib.contextmanager
def stopping(stop: Callable[[int], None]):
    """Turns SIGTERM and SIGINT into a call of `stop(number)`, which asks for an orderly end.

    Signals reach the main thread only. One that is ignored stays so (SIGINT in a background job),
    and the second of a kind does what it did before.

    Args:
        stop: Called between two instructions of whatever runs; it should only take a note.

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
    before = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}

    def handle(number, frame) -> None:
        stop(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
