"""A service that runs: sockets, signals, a stop that loses nothing."""

import asyncio
import contextlib
import dataclasses
import logging as python_logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any

from absl import logging

from kbert.core.late import optional
from kbert.doctor import usable_cores
from kbert.io.paths import Path, local_only
from kbert.service.connections import Listener, Seats, start_server
from kbert.service.http_service import HttpService
from kbert.service.loaded import SAVED_MODEL
from kbert.service.metrics import Metrics
from kbert.service.models import Models, version_folders
from kbert.service.settings import ServiceOptions

PACKAGES = ("h11", "orjson", "prometheus_client", "starlette", "uvicorn")
PACKAGES_OF_GRPC = ("grpc", "tensorflow_serving")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048  # connections that wait to be taken, as of uvicorn
_HEAD_BYTES = 2**16  # of a request
_SEND_SECONDS = 1.0  # for the last answers to be sent
_OTHER_FILES = 256  # open files beside the connections of a listener


def serve(options: ServiceOptions, started: Callable[[list[str]], None]) -> None:
    """Serves until SIGTERM or Ctrl-C; then takes no more, and finishes what it took.

    Args:
        options: what, where, and within which limits.
        started: is called with the addresses once requests are taken.

    Raises:
        ValueError: a model does not load.
        OSError: a port is taken, or a file cannot be read.
        ImportError: an extra is not installed.
    """
    options = _share_cores(options)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            stop.set()
            for number in _SIGNALS:  # the next one ends it at once
                loop.remove_signal_handler(number)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        await run(options, stop, started)

    asyncio.run(main())


def _share_cores(options: ServiceOptions) -> ServiceOptions:
    """The options with a number of batches, for a process of its own.

    Products of a few short texts are too small for several threads: those wait for each other
    longer than they compute. So each batch has one core, and as many run as there are cores. A
    thread for each batch of each model: where they were as few as the cores, long requests to one
    model would keep those to the others waiting.
    """
    threads = options.intra_op_threads
    batches = options.batch_threads
    cores = max(int(usable_cores()), 1)
    if "tensorflow" not in sys.modules and not needs_tensorflow(options):
        one_each = batches is None and threads == 1
        return dataclasses.replace(options, batch_threads=cores if one_each else batches)
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if batches is None and threads == 1 and not tf.config.list_physical_devices("GPU"):
            batches = cores
        models = len(options.folders()) * options.num_versions
        tf.config.threading.set_inter_op_parallelism_threads(max(models * (batches or 1), cores))
    except RuntimeError:
        logging.warning("TensorFlow runs already: `intra_op_threads` stays as it was")
        return options
    return dataclasses.replace(options, batch_threads=batches)


def needs_tensorflow(options: ServiceOptions) -> bool:
    """Whether what is served is known to need TensorFlow: SavedModels, and gRPC.

    Args:
        options: the service's settings.
    """
    if options.grpc_port is not None:
        return True
    try:
        versions = [version_folders(folder) for folder in options.folders().values()]
        folders = [folder for each in versions for folder in each.values()]
        return any((folder / SAVED_MODEL).is_file() for folder in folders)
    except OSError:  # told where it is loaded
        return True


async def run(
    options: ServiceOptions, stop: asyncio.Event, started: Callable[[list[str]], None]
) -> None:
    """Serves until the event is set; otherwise as `serve`."""
    for package in (*PACKAGES, *(PACKAGES_OF_GRPC if options.grpc_port is not None else ())):
        optional(package, "serve", "kbert-serve")  # some are imported by the first request only
    import uvicorn

    class Server(uvicorn.Server):
        """One that leaves the signals alone."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    token = None if options.token_file is None else _read_token(options.token_file)
    pair = _read_tls(options)
    _allow_files(options)
    metrics, seats = Metrics(), Seats(options.max_connections)
    models = Models(options, metrics)
    service = HttpService(models, options, metrics, seats, token)
    with _listen(options.host, options.port, seats) as listener:
        grpc_server, grpc_port = None, None
        if options.grpc_port is not None:
            from kbert.service.grpc_service import make_server

            grpc_server, grpc_port = make_server(models, options, token, pair)
        tls: dict[str, Any] = {}
        if pair is not None:
            tls = {"ssl_certfile": options.tls_certificate, "ssl_keyfile": options.tls_key}
        config = uvicorn.Config(
            service.app(),
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
        # It answers /health and /live while the models are loaded.
        http = await start_server(server, listener, options.timeout_seconds, seats)
        tasks = {
            name: asyncio.create_task(work)
            for name, work in (("server", server.serve(sockets=[])), ("stop", stop.wait()))
        }
        try:
            tasks["load"] = asyncio.create_task(models.load())
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if tasks["load"].done():
                tasks["load"].result()  # raises why one does not load
                if grpc_server is not None:
                    await grpc_server.start()
                service.is_ready = True
                tasks["watch"] = asyncio.create_task(models.watch())
                scheme = "https" if tls else "http"
                addresses = [_address(scheme, options.host, listener.getsockname()[1])]
                if grpc_port is not None:
                    scheme = "grpcs" if tls else "grpc"
                    addresses.append(_address(scheme, options.host, grpc_port))
                started(addresses)
                waiting = [tasks[name] for name in ("server", "stop", "watch")]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            logging.info("Stopping")
        finally:
            service.is_stopping = True
            if service.is_ready:
                await _drain(options.drain_seconds)
            http.close()
            server.should_exit = True
            for name in tasks.keys() - {"server"}:
                tasks[name].cancel()
            seconds = options.stop_seconds - options.drain_seconds
            await _finish(tasks["server"], server, grpc_server, models, seconds)
        for task in tasks.values():
            if task.done() and not task.cancelled():
                task.result()  # raises what ended it


async def _drain(seconds: float) -> None:
    """Goes on answering while a balancer notices that /health says no."""
    await asyncio.sleep(seconds)


async def _finish(
    work: asyncio.Task, server: Any, grpc_server: Any, models: Models, seconds: float
) -> None:
    """Answers what was accepted for so long, and refuses the rest."""
    ends = {work}
    if grpc_server is not None:
        ends.add(asyncio.create_task(grpc_server.stop(seconds)))
    await asyncio.wait(ends, timeout=seconds)
    await models.close()
    _, late = await asyncio.wait(ends, timeout=_SEND_SECONDS)
    if late:  # answers that nobody reads
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await asyncio.wait(ends, timeout=_SEND_SECONDS)


def _allow_files(options: ServiceOptions) -> None:
    """Raises the process's limit of open files to what the connections take."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    listeners = 1 if options.grpc_port is None else 2
    wanted = listeners * (options.max_connections + _OTHER_FILES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    if soft == infinite or soft >= wanted:
        return
    if hard != infinite and hard < wanted:
        raise ValueError(
            f"The connections take {wanted} open files. A process may have {hard}: raise the limit "
            f"(ulimit -n) or lower it. Received: max_connections={options.max_connections}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _read_token(path: str) -> bytes:
    token = Path(path).read_bytes().strip()
    if not 8 <= len(token) <= 4096 or any(not 33 <= byte <= 126 for byte in token):
        raise ValueError(
            "A token is 8 to 4,096 visible ASCII characters on one line. "
            f"Received: {len(token)} bytes in {path}"
        )
    return token


def _read_tls(options: ServiceOptions) -> tuple[bytes, bytes] | None:
    if options.tls_certificate is None or options.tls_key is None:
        return None
    certificate = local_only(options.tls_certificate, "A certificate")
    key = local_only(options.tls_key, "A key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"A certificate and its own key are PEM files ({error}). Received: "
            f"tls_certificate={options.tls_certificate}, tls_key={options.tls_key}"
        ) from error
    return Path(key).read_bytes(), Path(certificate).read_bytes()
