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

    host: str = option(
        "127.0.0.1", help="Address to listen on; 0.0.0.0 for all addresses of this machine."
    )
    port: int = option(
        8501, help="Port for HTTP; 0 for any free port, which is printed.", at_least=0
    )
    timeout_seconds: float = option(
        30.0, help="Maximum time for a request, and for a client to send or read it.", above=0
    )
    max_body_bytes: int = option(2**20, help="Maximum size of a request.", at_least=1)
    max_connections: int = option(
        512,
        help="Maximum number of open connections. Idle ones are closed for new ones; if every "
        "connection has a request, a further one gets 503.",
        at_least=1,
    )
