"""What the service refuses, with the status that tells a client why."""


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
