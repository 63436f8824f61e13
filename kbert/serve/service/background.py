"""A service beside other work of the same process: in notebooks and tests."""

import dataclasses

from absl import logging

from kbert.serve.http.background import InThread
from kbert.serve.service.server import run
from kbert.serve.service.settings import ServiceOptions


class Background(InThread):
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
        shared = dataclasses.replace(options, intra_op_threads=0)
        super().__init__(lambda stop, started: run(shared, stop, started), options.stop_seconds)
