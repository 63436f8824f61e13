"""Ends a program at once, without a traceback, on Ctrl-C during its imports.

Nothing has started by then, so nothing is lost. The imports take seconds, mostly in libraries that
convert an interrupt to their own errors.
"""

import multiprocessing
import os
import signal
import sys
import threading
from types import FrameType


def end_at_once(package: str) -> None:
    """Makes Ctrl-C end the process with status 130, if it runs one of kbert's programs.

    Args:
        package: name under which the package of the programs is imported.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and multiprocessing.parent_process() is None  # a worker is ended by its program
        and _is_program(package)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _end)


def raise_as_usual() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, after `end_at_once`."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _is_program(package: str) -> bool:
    """Returns whether this process was started as one of the programs in the package."""
    if sys.argv[:1] == ["-m"]:  # `python -m pipelines.pretrain` is importing its package
        return any(argument.startswith(f"{package}.") for argument in sys.orig_argv)
    return os.path.basename("".join(sys.argv[:1])).startswith("kbert-")
