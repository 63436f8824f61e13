"""Errors for refused requests, with their HTTP status."""


class Refused(Exception):
    """A refused request: the client gets an error with this status.

    Args:
        status: HTTP status: 400, 401, 403, 404, 405, 408, 413, 415, 429, 503.
        message: the rule and what is wrong, for the client.
        retry_after: seconds after which the client may retry; None = not stated.

    Example:
        >>> Refused(404, "No such model. Received: 'a'").status
        404
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def drop_frames(error: BaseException) -> None:
    """Removes the tracebacks of a handled error and of its causes and contexts.

    A traceback refers to its frames. A frame refers to the request, its body and the task that has
    the error: a reference cycle. The memory of a request would stay in use until Python collects
    cycles, which it rarely does with the million objects of TensorFlow.

    Args:
        error: handled error, of which only the text is still needed.

    Example:
        >>> try:
        ...     raise ValueError("wrong")
        ... except ValueError as error:
        ...     drop_frames(error)
        ...     print(error.__traceback__)
        None
    """
    seen_ids: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen_ids:
            continue
        seen_ids.add(id(current))
        current.__traceback__ = None
        waiting += [current.__cause__, current.__context__]
