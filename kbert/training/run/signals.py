"""Signals that end a run in an orderly way."""

import contextlib
import signal
import threading
from collections.abc import Callable

STOPPING = (signal.SIGTERM, signal.SIGINT)


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
