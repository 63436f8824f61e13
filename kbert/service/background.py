"""A service beside other work of the same process: in notebooks and tests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from typing import Any, Self

from absl import logging

from kbert.service.server import run
from kbert.service.settings import ServiceOptions

_MORE_SECONDS = 30.0  # than `stop_seconds`, for a chunk that is computed still


class Background:
    """A service in a thread of its own, while a `with` block runs.

    Args:
        options: as of `serve`, but for `intra_op_threads`, since TensorFlow's threads are those of
            the process; with port=0 the port is a free one. One batch of a model runs at a time,
            unless `batch_threads` says otherwise.

    Attributes:
        addresses: of the service, that of HTTP first.

    Raises:
        ValueError, OSError, ImportError: as of `serve`, when it starts.
        RuntimeError: at the end of the block, where it does not stop half a minute after
            `stop_seconds`.

    Example:
        >>> import tempfile
        >>> import kbert
        >>> import tensorflow as tf
        >>> from kbert.export import export_saved_model
        >>> from kbert.signatures import Signature
        >>> count = Signature(lambda text: {"bytes": tf.strings.length(text)},
        ...                   [tf.TensorSpec([None], tf.string, "text")])
        >>> folder = tempfile.mkdtemp()
        >>> _ = export_saved_model(folder, {"count": count})
        >>> with Background(ServiceOptions(model=[f"size={folder}"], port=0)) as service:
        ...     kbert.Client(service.addresses[0]).predict("size", ["four", ""])
        [4, 0]
    """

    def __init__(self, options: ServiceOptions) -> None:
        if options.intra_op_threads != ServiceOptions.intra_op_threads:
            logging.warning("`intra_op_threads` is for kbert-serve: here they are the process's")
        self._options = dataclasses.replace(options, intra_op_threads=0)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: Exception | None = None
        self.addresses: list[str] = []
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await run(self._options, self._stop, self._started)

        try:
            asyncio.run(main())
        except Exception as error:  # told to whoever waits
            self._error = error
        finally:
            self._ready.set()

    def _started(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self._ready.set()

    def stop(self) -> None:
        """Takes no more requests; those that were taken are still answered."""
        assert self._loop is not None
        assert self._stop is not None
        with contextlib.suppress(RuntimeError):  # it has stopped, and its loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
        longest = self._options.stop_seconds + _MORE_SECONDS
        self._thread.join(longest)
        if self._thread.is_alive():
            raise RuntimeError(
                f"A service stops within {longest:.0f} seconds. Received: one that computes "
                "on; its thread ends with the process"
            )
        if self._error is not None:
            raise self._error
