"""A service that runs: sockets, signals, a stop that loses nothing."""

import asyncio
import contextlib
import dataclasses
import logging as python_logging
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any

from absl import logging

from kbert.doctor import usable_cores
from kbert.files import Path, local_only
from kbert.service.http_service import HttpService, connection_class
from kbert.service.metrics import Metrics
from kbert.service.models import Models
from kbert.service.settings import ServiceOptions

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BACKLOG = 2048  # connections that wait to be taken, as of uvicorn
_HEAD_BYTES = 2**16  # of a request


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
    longer than they compute. So each batch has one core, and as many run as there are cores.
    """
    import tensorflow as tf

    threads = options.intra_op_threads
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
    except RuntimeError:
        logging.warning("TensorFlow runs already: `intra_op_threads` stays as it was")
        return options
    if options.batch_threads is not None or threads != 1:
        return options
    if tf.config.list_physical_devices("GPU"):
        return options
    return dataclasses.replace(options, batch_threads=max(int(usable_cores()), 1))


async def run(
    options: ServiceOptions, stop: asyncio.Event, started: Callable[[list[str]], None]
) -> None:
    """Serves until the event is set; otherwise as `serve`."""
    import uvicorn

    class Server(uvicorn.Server):
        """One that leaves the signals alone."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    token = None if options.token_file is None else _read_token(options.token_file)
    pair = _read_tls(options)
    metrics = Metrics()
    models = Models(options, metrics)
    service = HttpService(models, options, metrics, token)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(options.host, options.port))
        grpc_server, grpc_port = None, None
        if options.grpc_port is not None:
            from kbert.service.grpc_service import make_server

            grpc_server, grpc_port = make_server(models, options, token, pair)
        tls: dict[str, Any] = {}
        if pair is not None:
            tls = {"ssl_certfile": options.tls_certificate, "ssl_keyfile": options.tls_key}
        config = uvicorn.Config(
            service.app(),
            http=connection_class(options.timeout_seconds, options.max_connections),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(options.timeout_seconds) + 1,
            timeout_graceful_shutdown=max(1, round(options.stop_seconds)),
            h11_max_incomplete_event_size=_HEAD_BYTES,
            **tls,
        )
        python_logging.getLogger("uvicorn.error").setLevel(python_logging.WARNING)
        config.load()  # reads the certificate
        server = Server(config)
        stopping = None
        try:
            await models.load()
            if grpc_server is not None:
                await grpc_server.start()
            work = asyncio.create_task(server.serve(sockets=[listener]))
            watch = asyncio.create_task(models.watch())
            while not (server.started or work.done()):
                await asyncio.sleep(0.01)
            scheme = "https" if tls else "http"
            addresses = [_address(scheme, options.host, listener.getsockname()[1])]
            if grpc_port is not None:
                scheme = "grpcs" if tls else "grpc"
                addresses.append(_address(scheme, options.host, grpc_port))
            started(addresses)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({stopping, work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()  # raises what ended it
            logging.info("Stopping")
            service.is_stopping = True
            watch.cancel()
            server.should_exit = True
            await work
        finally:
            if stopping is not None:
                stopping.cancel()
            if grpc_server is not None:
                await grpc_server.stop(options.stop_seconds)
            await models.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Of a socket that does not name the protocol asyncio does not know that it is TCP's, and leaves
    # Nagle's algorithm on: an answer's body waits 40 ms for the client to acknowledge its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
