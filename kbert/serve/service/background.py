"""Runs a service in the background of a process, for notebooks and tests."""

import dataclasses

from absl import logging

from kbert.serve.http.background import InThread
from kbert.serve.service.server import run
from kbert.serve.service.settings import ServiceOptions


class BackgroundService(InThread):
    """A service in its own thread while a `with` block runs.

    Args:
        options: settings of the service. `intra_op_threads` is ignored, since the process has
            TensorFlow's threads already. With port=0 a free port is chosen. One batch of a model
            runs at a time, unless `batch_threads` is set.

    Attributes:
        addresses: addresses of the service, that of HTTP first.

    Raises:
        ValueError, OSError, ImportError: the service does not start (see `serve`).
        RuntimeError: at the end of the block, if the service does not stop within half a minute
            after `stop_seconds`.

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
        >>> with BackgroundService(ServiceOptions(model=[f"size={folder}"], port=0)) as service:
        ...     kbert.Client(service.addresses[0]).predict("size", ["four", ""])
        [4, 0]
    """

    def __init__(self, options: ServiceOptions) -> None:
        if options.intra_op_threads != ServiceOptions.intra_op_threads:
            logging.warning(
                "`intra_op_threads` is supported by kbert-serve only; a service in the background "
                "uses the threads of its process"
            )
        shared = dataclasses.replace(options, intra_op_threads=0)
        super().__init__(lambda stop, started: run(shared, stop, started), options.stop_seconds)
