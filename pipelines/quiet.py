"""The first import of TensorFlow, without its standard notices.

TensorFlow writes notices about oneDNN and missing GPUs in every process that imports it, before any
setting can silence them. These notices are filtered out; all other messages are printed.
"""

import glob
import os
import sys
import tempfile

from kbert.core.late import without_collection

NOTICES = (
    "port.cc",
    "cudart_stub.cc",
    "cpu_feature_guard.cc",
    "To enable the following instructions",
    "before absl::InitializeLog",
)


def import_tensorflow() -> None:
    """Imports TensorFlow and Keras; shows their messages except `NOTICES`.

    TensorFlow Text, which has no messages, is imported when a tokenizer first needs it. Standard
    error is redirected to a file during the imports, and then printed.
    """
    if "keras" in sys.modules:
        return
    if not glob.glob("/dev/nvidia*"):  # on a host with GPUs the messages may matter
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            with without_collection():
                import tensorflow  # noqa: F401

                import keras  # noqa: F401  # isort: skip
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            messages.seek(0)
            for line in messages.read().decode(errors="replace").splitlines():
                if not any(notice in line for notice in NOTICES):
                    print(line, file=sys.stderr)
