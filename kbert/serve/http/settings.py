"""Settings of every HTTP server of kbert."""

from kbert.core.options import Options, option


class HttpOptions(Options):
    """Settings of an HTTP server: address and limits.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> HttpOptions(port=0).host
        '127.0.0.1'
    """

    host: str = option("127.0.0.1", help="Address to listen at; 0.0.0.0 for all of this machine.")
    port: int = option(
        8501, help="Port of HTTP; 0 for any that is free, which is printed.", at_least=0
    )
    timeout_seconds: float = option(
        30.0, help="Longest time for a request, and for a client to send or read it.", above=0
    )
    max_body_bytes: int = option(2**20, help="Largest request.", at_least=1)
    max_connections: int = option(
        512,
        help="Most open connections. Idle ones make room for new ones, and where all have a "
        "request under way one beyond gets 503.",
        at_least=1,
    )
