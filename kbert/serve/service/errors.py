"""Classifies errors of TensorFlow for a request."""

import re
import sys

# Text that TensorFlow adds around an operation's message: locations in the graph.
_PLACES = re.compile(r"\{\{function_node \S+\}\}\s*|assertion failed: (?=\[)")
_HEADINGS = ("Graph execution error", "Detected at node", "<stack traces", "File ", "[[", "(0) ")


class Retired(Exception):
    """The version was replaced by another and accepts no more requests."""


def is_bad_input(error: Exception) -> bool:
    """Returns whether an error of TensorFlow means that the model rejects its inputs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    kinds = tensorflow.errors
    return isinstance(error, kinds.InvalidArgumentError | kinds.OutOfRangeError)


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error, of Python or of TensorFlow, means that memory did not suffice."""
    tensorflow = sys.modules.get("tensorflow")
    exhausted = tensorflow is not None and tensorflow.errors.ResourceExhaustedError
    return isinstance(error, MemoryError) or (exhausted and isinstance(error, exhausted))


def most_said(error: BaseException) -> str:
    """Returns the most informative line of an error's message, or the name of its type.

    TensorFlow's message for a failed function begins with a heading and locations in the graph.

    Example:
        >>> most_said(ValueError("Graph execution error:\\n\\nDetected at node Assert\\n"
        ...                      "assertion failed: [At most 3 bytes. Received:] [5]\\n"
        ...                      "\\t [[{{node Assert}}]] [Op:__inference_f_1]"))
        '[At most 3 bytes. Received:] [5]'
    """
    lines = [_PLACES.sub("", line.strip()) for line in str(error).splitlines()]
    informative_lines = [line for line in lines if line and not line.startswith(_HEADINGS)]
    return (informative_lines or [type(error).__name__])[0][:300]
