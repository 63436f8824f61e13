"""What errors of TensorFlow mean for a request."""

import re
import sys

# What TensorFlow says around the message of an operation: places of the graph.
_PLACES = re.compile(r"\{\{function_node \S+\}\}\s*|assertion failed: (?=\[)")
_HEADINGS = ("Graph execution error", "Detected at node", "<stack traces", "File ", "[[", "(0) ")


class Retired(Exception):
    """A version that another has taken the place of takes no more requests."""


def is_bad_input(error: Exception) -> bool:
    """Whether TensorFlow says with an error that a model does not take its inputs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return False
    kinds = tensorflow.errors
    return isinstance(error, kinds.InvalidArgumentError | kinds.OutOfRangeError)


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was not memory enough."""
    tensorflow = sys.modules.get("tensorflow")
    exhausted = tensorflow is not None and tensorflow.errors.ResourceExhaustedError
    return isinstance(error, MemoryError) or (exhausted and isinstance(error, exhausted))


def most_said(error: BaseException) -> str:
    """The line of an error's message that says most, or the error's kind.

    TensorFlow's message of a failed function begins with a heading and the places of the graph.

    Example:
        >>> most_said(ValueError("Graph execution error:\\n\\nDetected at node Assert\\n"
        ...                      "assertion failed: [At most 3 bytes. Received:] [5]\\n"
        ...                      "\\t [[{{node Assert}}]] [Op:__inference_f_1]"))
        '[At most 3 bytes. Received:] [5]'
    """
    lines = [_PLACES.sub("", line.strip()) for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_HEADINGS)]
    return (said or [type(error).__name__])[0][:300]
