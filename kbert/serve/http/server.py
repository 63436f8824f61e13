"""Runs a server: sockets, signals, and a shutdown that finishes accepted requests."""

import asyncio
import contextlib
import logging as python_logging
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from absl import logging

from kbert.core.late import optional
from kbert.serve.http.application import Application
from kbert.serve.http.connections import Listener, Seats, start_server

PACKAGES = ("h11", "orjson", "starlette", "uvicorn")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048  # connections that wait to be accepted, uvicorn's default
_HEAD_BYTES = 2**16  # most bytes of a request's head
_SEND_SECONDS = 1.0  # time to send the last responses


def run_until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs a server until SIGTERM or Ctrl-C; a second signal ends it at once.

    Args:
        work: coroutine function that serves until the event is set.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in _SIGNALS:  # the next signal ends it at once
                loop.remove_signal_handler(number)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        await work(stop)

    asyncio.run(main())


def check_packages(program: str, *packages: str) -> None:
    """Raises ImportError, with the extra "serve" in its message, if a package is missing.

    Args:
        program: name of the program, for the message.
        *packages: names of modules.
    """
    for package in packages:
        optional(package, "serve", program)  # the first request would import some of them


async def run(
    application: Application, stop: asyncio.Event, started: Callable[[list[str]], None]
) -> None:
    """Serves until the event is set; then accepts no more requests and finishes accepted ones.

    Args:
        application: application that answers the requests.
        stop: event that stops the server.
        started: function that is called with the addresses once requests are accepted.

    Raises:
        OSError: a port is taken.
        Exception: error of the application's `load`.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """A uvicorn server that does not handle signals."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    options = application.options
    tls: dict[str, Any] = {}
    if application.tls is not None:
        tls = dict(zip(("ssl_certfile", "ssl_keyfile"), application.tls, strict=True))
    with _listen(options.host, options.port, application.seats) as listener:
        application.open()
        config = uvicorn.Config(
            application.app(),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(options.timeout_seconds) + 1,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            **tls,
        )
        python_logging.getLogger("uvicorn.error").setLevel(python_logging.WARNING)
        config.load()  # reads the certificate
        server = Server(config)
        # The server already answers during loading, with 503.
        http = await start_server(server, listener, options.timeout_seconds, application.seats)
        tasks = {
            name: asyncio.create_task(work)
            for name, work in (("server", server.serve(sockets=[])), ("stop", stop.wait()))
        }
        try:
            tasks["load"] = asyncio.create_task(application.load())
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if tasks["load"].done():
                tasks["load"].result()  # raises the error of loading
                more_addresses = await application.begin()
                application.is_ready = True
                tasks["watch"] = asyncio.create_task(application.watch())
                scheme = "https" if tls else "http"
                started([address(scheme, options.host, listener.getsockname()[1]), *more_addresses])
                waiting = [tasks[name] for name in ("server", "stop", "watch")]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            logging.info("Stopping")
        finally:
            application.is_stopping = True
            if application.is_ready:
                await _drain(application.drain_seconds)
            http.close()
            server.should_exit = True
            for name in tasks.keys() - {"server"}:
                tasks[name].cancel()
            await _finish(tasks["server"], server, application)
        for task in tasks.values():
            if task.done() and not task.cancelled():
                task.result()  # raises the error of the task


async def _drain(seconds: float) -> None:
    """Waits, while requests are still answered, until a load balancer sees that /health fails."""
    await asyncio.sleep(seconds)


async def _finish(work: asyncio.Task, server: Any, application: Application) -> None:
    """Answers accepted requests within the time of the shutdown, and refuses the rest.

    Args:
        work: task of the uvicorn server, which ends when no request is left.
        server: the `uvicorn.Server`.
        application: the application, whose `finish` and `close` are called.
    """
    seconds = application.stop_seconds - application.drain_seconds
    ends = {work, asyncio.create_task(application.finish(seconds))}
    await asyncio.wait(ends, timeout=seconds)
    await application.close()
    _, late = await asyncio.wait(ends, timeout=_SEND_SECONDS)
    if late:  # responses that nobody reads
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait(ends, timeout=_SEND_SECONDS)


def _listen(host: str, port: int, seats: Seats) -> Listener:
    """Opens a TCP port for HTTP, 0 = any free one; OSError if it is taken."""
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, seats)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # fails if another socket listens on the port
    except (OSError, OverflowError) as error:
        listener.close()
        raise OSError(f"The port cannot be opened ({error}). Received: {host}:{port}") from error
    return listener


def address(scheme: str, host: str, port: int) -> str:
    """Returns the address of a server in the form that a browser accepts.

    >>> address("http", "::1", 8501)
    'http://[::1]:8501'
    """
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
