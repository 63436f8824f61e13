"""Ctrl-C while a program still imports what it needs: it ends at once, without a traceback.

Nothing is started by then, and nothing lost. The imports take seconds, most of them in libraries
that turn an interrupt into errors of their own.
"""

import multiprocessing
import os
import signal
import sys
import threading
from types import FrameType


def end_at_once(package: str) -> None:
    """From now on Ctrl-C ends the process with status 130, where it runs one of our programs.

    Args:
        package: the name under which the programs' package is imported.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and multiprocessing.parent_process() is None  # its program ends a worker
        and _is_program(package)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _end)


def raise_as_usual() -> None:
    """Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def _is_program(package: str) -> bool:
    if sys.argv[:1] == ["-m"]:  # while the package of `python -m pipelines.pretrain` is imported
        return any(argument.startswith(f"{package}.") for argument in sys.orig_argv)
    return os.path.basename("".join(sys.argv[:1])).startswith("kbert-")
