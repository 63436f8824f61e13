"""Files that are written beside the training, by a thread, one after the other."""

import concurrent.futures
from collections.abc import Callable
from typing import Self


class Background:
    """Does one thing at a time beside the training; what goes wrong there is raised here.

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
        """Begins some work, once what was begun before is done.

        Raises:
            Exception: What went wrong in the work before, such as OSError of a full disk.
        """
        self.wait()
        self._running = self._executor.submit(work)

    def check(self) -> None:
        """Raises what went wrong, if that is known already; waits for nothing."""
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Returns once all work is done, or raises what went wrong in it."""
        running, self._running = self._running, None
        if running is not None:
            running.result()
