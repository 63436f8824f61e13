"""Runs a server in the background of a process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

_MORE_SECONDS = 30.0  # added to `stop_seconds`, for a chunk that is still being computed


class InThread:
    """A server in its own thread while a `with` block runs.

    Args:
        run: coroutine function that serves until its first argument is set, and calls its second
            with the addresses.
        stop_seconds: seconds within which the server stops.

    Attributes:
        addresses: addresses of the server, that of HTTP first.

    Raises:
        Exception: error of `run` when it starts.
        RuntimeError: at the end of the block, if the server does not stop within half a minute
            after `stop_seconds`.
    """

    def __init__(
        self,
        run: Callable[[asyncio.Event, Callable[[list[str]], None]], Awaitable[None]],
        stop_seconds: float,
    ) -> None:
        self._run, self._stop_seconds = run, stop_seconds
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: Exception | None = None
        self.addresses: list[str] = []
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        """Runs the server until `stop`; the main thread raises its error."""

        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self._run(self._stop, self._started)

        try:
            asyncio.run(main())
        except Exception as error:  # raised again in the main thread
            self._error = error
        finally:
            self._ready.set()

    def _started(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._ready.set()

    def stop(self) -> None:
        """Stops accepting requests; accepted ones are still answered."""
        assert self._loop is not None
        assert self._stop is not None
        with contextlib.suppress(RuntimeError):  # already stopped, with a closed loop
            self._loop.call_soon_threadsafe(self._stop.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
        longest = self._stop_seconds + _MORE_SECONDS
        self._thread.join(longest)
        if self._thread.is_alive():
            raise RuntimeError(
                f"The server did not stop within {longest:.0f} seconds, because it is still "
                "computing; its thread ends with the process"
            )
        if self._error is not None:
            raise self._error
