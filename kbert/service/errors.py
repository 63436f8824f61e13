"""What the service refuses, with the status that tells a client why."""

import re
import sys

# What TensorFlow says around the message of an operation: places of the graph.
_PLACES = re.compile(r"\{\{function_node \S+\}\}\s*|assertion failed: (?=\[)")
_HEADINGS = ("Graph execution error", "Detected at node", "<stack traces", "File ", "[[", "(0) ")


class Refused(Exception):
    """A request that gets no answer.

    Args:
        status: of HTTP: 400, 401, 404, 408, 413, 415, 429, 503.
        message: what is wrong and the rule, for the client.
        retry_after: seconds after which it may be tried again.

    Example:
        >>> Refused(404, "No such model. Received: 'a'").status
        404
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


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


def drop_frames(error: BaseException) -> None:
    """Removes the tracebacks of an error that was handled, and of those behind it.

    A traceback holds the frames it went through, and a frame the request, its body and the task
    that holds the error: a cycle. Memory of a request would stay until Python happens to look for
    cycles, which beside TensorFlow's million objects it rarely does.

    Args:
        error: no longer needed but for its text.

    Example:
        >>> try:
        ...     raise ValueError("wrong")
        ... except ValueError as error:
        ...     drop_frames(error)
        ...     print(error.__traceback__)
        None
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        waiting += [each.__cause__, each.__context__]


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
