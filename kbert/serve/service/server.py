"""Runs a service: sets threads and limits of the process, reads token and certificate."""

import asyncio
import dataclasses
import os
import ssl
import sys
from collections.abc import Callable

from absl import logging

from kbert.doctor import usable_cores
from kbert.io.paths import Path, local_only
from kbert.serve.http import server as http
from kbert.serve.service.http_service import HttpService
from kbert.serve.service.loaded import SAVED_MODEL
from kbert.serve.service.metrics import Metrics
from kbert.serve.service.models import Models, version_folders
from kbert.serve.service.settings import ServiceOptions

PACKAGES = (*http.PACKAGES, "prometheus_client")
PACKAGES_OF_GRPC = ("grpc", "tensorflow_serving")
_OTHER_FILES = 256  # open files of a listener in addition to its connections


def serve(options: ServiceOptions, started: Callable[[list[str]], None]) -> None:
    """Serves until SIGTERM or Ctrl-C; then accepts no more requests and finishes accepted ones.

    Args:
        options: settings of the service: models, addresses and limits.
        started: function that is called with the addresses once requests are accepted.

    Raises:
        ValueError: a model does not load.
        OSError: a port is taken, or a file cannot be read.
        ImportError: an extra is not installed.
    """
    options = _share_cores(options)
    http.run_until_signal(lambda stop: run(options, stop, started))


def _share_cores(options: ServiceOptions) -> ServiceOptions:
    """Sets threads and memory of a process that only serves; returns options with `batch_threads`.

    Products of a few short texts are too small for several threads, which would wait for each other
    longer than they compute. So each batch gets one core, and as many batches run as there are
    cores. Each batch of each model gets a thread: with only one thread per core, long requests to
    one model would block requests to the others.
    """
    threads = options.intra_op_threads
    batches = options.batch_threads
    cores = max(int(usable_cores()), 1)
    if "tensorflow" not in sys.modules and not needs_tensorflow(options):
        one_each = batches is None and threads == 1
        return dataclasses.replace(options, batch_threads=cores if one_each else batches)
    # With oneDNN TensorFlow keeps large arrays in a pool of its own, which never shrinks: a retired
    # version's weights would stay. It reads the variable when it first allocates memory.
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        if batches is None and threads == 1 and not tf.config.list_physical_devices("GPU"):
            batches = cores
        models = len(options.folders()) * options.num_versions
        tf.config.threading.set_inter_op_parallelism_threads(max(models * (batches or 1), cores))
    except RuntimeError:
        logging.warning("TensorFlow has already started: `intra_op_threads` is ignored")
        return options
    return dataclasses.replace(options, batch_threads=batches)


def needs_tensorflow(options: ServiceOptions) -> bool:
    """Returns whether the service needs TensorFlow: for SavedModels or gRPC.

    False if a folder cannot be read; loading then raises the error.

    Args:
        options: settings of the service.
    """
    if options.grpc_port is not None:
        return True
    try:
        versions = [version_folders(folder) for folder in options.folders().values()]
        folders = [folder for model_versions in versions for folder in model_versions.values()]
        return any((folder / SAVED_MODEL).is_file() for folder in folders)
    except OSError:  # loading raises it again
        return False


async def run(
    options: ServiceOptions, stop: asyncio.Event, started: Callable[[list[str]], None]
) -> None:
    """Serves until the event is set; unlike `serve`, sets no threads and handles no signals.

    Args:
        options: settings of the service: models, addresses and limits.
        stop: event that stops the service.
        started: function that is called with the addresses once requests are accepted.
    """
    grpc = () if options.grpc_port is None else PACKAGES_OF_GRPC
    http.check_packages("kbert-serve", *PACKAGES, *grpc)
    token = None if options.token_file is None else _read_token(options.token_file)
    pair = _read_tls(options)
    _allow_files(options)
    metrics = Metrics()
    models = Models(options, metrics)
    await http.run(HttpService(models, options, metrics, token, pair), stop, started)


def _allow_files(options: ServiceOptions) -> None:
    """Raises the process's limit of open files to the number that the connections need.

    Raises:
        ValueError: the system allows fewer.
    """
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    listeners = 1 if options.grpc_port is None else 2
    num_files = listeners * (options.max_connections + _OTHER_FILES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    if soft == infinite or soft >= num_files:
        return
    if hard != infinite and hard < num_files:
        raise ValueError(
            f"The connections require {num_files} open files, but a process may have {hard}: raise "
            "the limit (ulimit -n) or lower max_connections. Received: "
            f"max_connections={options.max_connections}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, hard))


def _read_token(path: str) -> bytes:
    """Reads the token in a file, without white space around it; ValueError if it is invalid."""
    token = Path(path).read_bytes().strip()
    if not 8 <= len(token) <= 4096 or any(not 33 <= byte <= 126 for byte in token):
        raise ValueError(
            "A token must be 8 to 4,096 visible ASCII characters on one line. Received: "
            f"{len(token)} bytes in {path}"
        )
    return token


def _read_tls(options: ServiceOptions) -> tuple[bytes, bytes] | None:
    """Reads the files of the TLS certificate.

    Returns:
        Key and certificate in PEM; None without a certificate.

    Raises:
        ValueError: the files are not PEM, or do not belong together.
    """
    if options.tls_certificate is None or options.tls_key is None:
        return None
    certificate = local_only(options.tls_certificate, "A certificate")
    key = local_only(options.tls_key, "A key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"The certificate and its key must be PEM files ({error}). Received: "
            f"tls_certificate={options.tls_certificate}, tls_key={options.tls_key}"
        ) from error
    return Path(key).read_bytes(), Path(certificate).read_bytes()
