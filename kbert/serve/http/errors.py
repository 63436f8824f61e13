"""What a server refuses, with the status that tells a client why."""


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
