"""A server that runs: sockets, signals, a stop that loses nothing."""

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
_BACKLOG = 2048  # connections that wait to be taken, as of uvicorn
_HEAD_BYTES = 2**16  # of a request
_SEND_SECONDS = 1.0  # for the last answers to be sent


def run_until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs a server until SIGTERM or Ctrl-C; a second one ends it at once.

    Args:
        work: serves until the event is set.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in _SIGNALS:  # the next one ends it at once
                loop.remove_signal_handler(number)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        await work(stop)

    asyncio.run(main())


def check_packages(program: str, *packages: str) -> None:
    """Raises ImportError, which names the extra, where one of the packages is not there."""
    for package in packages:
        optional(package, "serve", program)  # some are imported by the first request only


async def run(
    application: Application, stop: asyncio.Event, started: Callable[[list[str]], None]
) -> None:
    """Serves until the event is set; then takes no more, and finishes what it took.

    Args:
        application: what answers.
        stop: ends it.
        started: is called with the addresses once requests are taken.

    Raises:
        OSError: a port is taken.
        Exception: what `load` of the application raises.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """One that leaves the signals alone."""

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
        # It answers that it loads, while it does.
        http = await start_server(server, listener, options.timeout_seconds, application.seats)
        tasks = {
            name: asyncio.create_task(work)
            for name, work in (("server", server.serve(sockets=[])), ("stop", stop.wait()))
        }
        try:
            tasks["load"] = asyncio.create_task(application.load())
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if tasks["load"].done():
                tasks["load"].result()  # raises why it does not load
                more = await application.begin()
                application.is_ready = True
                tasks["watch"] = asyncio.create_task(application.watch())
                scheme = "https" if tls else "http"
                started([address(scheme, options.host, listener.getsockname()[1]), *more])
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
                task.result()  # raises what ended it


async def _drain(seconds: float) -> None:
    """Goes on answering while a balancer notices that /health says no."""
    await asyncio.sleep(seconds)


async def _finish(work: asyncio.Task, server: Any, application: Application) -> None:
    """Answers what was accepted for so long, and refuses the rest."""
    seconds = application.stop_seconds - application.drain_seconds
    ends = {work, asyncio.create_task(application.finish(seconds))}
    await asyncio.wait(ends, timeout=seconds)
    await application.close()
    _, late = await asyncio.wait(ends, timeout=_SEND_SECONDS)
    if late:  # answers that nobody reads
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait(ends, timeout=_SEND_SECONDS)


def _listen(host: str, port: int, seats: Seats) -> Listener:
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, seats)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # where another one listens this is what fails
    except (OSError, OverflowError) as error:
        listener.close()
        raise OSError(f"The port cannot be opened ({error}). Received: {host}:{port}") from error
    return listener


def address(scheme: str, host: str, port: int) -> str:
    """An address as a browser takes it.

    >>> address("http", "::1", 8501)
    'http://[::1]:8501'
    """
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
