"""A background thread that writes files during training, one after another."""

import concurrent.futures
from collections.abc import Callable
from typing import Self


class Background:
    """Runs one task at a time in a thread; its errors are raised in the training thread.

    Example:
        >>> done = []
        >>> with Background() as background:
        ...     background.start(lambda: done.append("written"))
        >>> done
        ['written']
    """

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "kbert-checkpoint")
        self._running: concurrent.futures.Future | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.wait()
        finally:
            self._executor.shutdown()

    def start(self, work: Callable[[], None]) -> None:
        """Starts `work` in the thread, after waiting for the previous work.

        Raises:
            Exception: The error of the previous work, such as OSError for a full disk.
        """
        self.wait()
        self._running = self._executor.submit(work)

    def check(self) -> None:
        """Raises the error of the started work if it has failed; does not wait."""
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the started work is done, and raises its error if it failed."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
