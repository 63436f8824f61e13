"""HTTP connections: limits their number, closes idle ones for new ones, and closes gracefully."""

import asyncio
import socket
from typing import Any

_RESERVE = 32  # connections beyond the limit: they get 503, and /health still answers on them
_LINGER_SECONDS = 5.0  # time for a client to read why the rest of its body is not read
_HANDSHAKE_SECONDS = 10.0  # longest TLS handshake


class Seats:
    """The open connections of a listener.

    A new connection replaces one that has no request under way, the longest idle first. So idle
    connections, and those that never finish a handshake, block nobody.

    Args:
        most: most connections at the same time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, socket.socket] = {}  # by file descriptor
        self._idle: dict[int, socket.socket] = {}  # the idle ones of them, the longest idle first

    @property
    def is_full(self) -> bool:
        """Whether more requests are under way than the limit of connections."""
        return len(self._open) - len(self._idle) > self._most

    def take(self, connection: socket.socket) -> bool:
        """Adds a new connection if there is room, closing idle ones; returns whether there was."""
        most = self._most
        if len(self._open) - len(self._idle) >= most:  # closing idle ones would make no room
            most += _RESERVE
        while len(self._open) >= most and self._idle:
            oldest = next(iter(self._idle))
            leaving = self._idle.pop(oldest)
            del self._open[oldest]
            try:
                leaving.shutdown(socket.SHUT_RDWR)  # its reader sees the end and closes it
            except OSError:  # the client has closed it already
                continue
        if len(self._open) >= self._most + _RESERVE:
            return False
        number = connection.fileno()
        self._open[number] = self._idle[number] = connection
        return True

    def leave(self, connection: socket.socket) -> None:
        """Removes a closed connection."""
        number = connection.fileno()
        if self._open.get(number) is connection:
            del self._open[number]
            self._idle.pop(number, None)

    def set_idle(self, number: int, is_idle: bool) -> None:
        """Sets whether a connection (by file descriptor) is idle, with no request under way."""
        connection = self._idle.pop(number, None) or self._open.get(number)
        if is_idle and connection is not None:
            self._idle[number] = connection


class _Connection(socket.socket):
    """A connection that is removed from `seats` when it is closed."""

    seats: Seats

    def close(self) -> None:
        if self.fileno() >= 0:
            self.seats.leave(self)
        super().close()


class Listener(socket.socket):
    """A listening socket whose connections are counted.

    Args:
        family: address family, such as `socket.AF_INET`.
        seats: open connections, which new ones are added to.
    """

    def __init__(self, family: int, seats: Seats) -> None:
        # Without the protocol asyncio does not recognise a TCP socket and leaves Nagle's algorithm
        # on: the body of a response would wait 40 ms for the client to acknowledge its head.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._seats = seats

    def accept(self) -> tuple[socket.socket, Any]:
        """Waits for the next connection that there is room for, and returns it; closes others."""
        while True:
            accepted, address = super().accept()
            kind = (accepted.family, accepted.type, accepted.proto)
            connection = _Connection(*kind, fileno=accepted.detach())
            connection.seats = self._seats
            if self._seats.take(connection):
                return connection, address
            connection.close()


async def start_server(server: Any, listener: Listener, seconds: float, seats: Seats) -> Any:
    """Accepts connections for a uvicorn server, which has no such limits itself.

    Args:
        server: a `uvicorn.Server`.
        listener: listening socket.
        seconds: longest time for a client to send a request's whole head, to read a response, and
            for the TLS handshake (at most 10 seconds).
        seats: open connections of the listener.

    Returns:
        The `asyncio.Server`.
    """
    loop, config = asyncio.get_running_loop(), server.config
    connection = _connection_class(seconds, seats)

    def made() -> Any:
        return connection(config=config, server_state=server.server_state, app_state={}, _loop=loop)

    tls: dict[str, Any] = {}
    if config.ssl is not None:
        wait = min(seconds, _HANDSHAKE_SECONDS)
        tls = {"ssl": config.ssl, "ssl_handshake_timeout": wait, "ssl_shutdown_timeout": wait}
    return await loop.create_server(made, sock=listener, backlog=config.backlog, **tls)


class _Lingering:
    """A transport that is closed only after the client could read the response.

    If a socket is closed while bytes from the client are unread, it sends a reset and the client
    loses the response. A client that sends a large body would see a broken pipe instead of the
    reason.

    Args:
        transport: asyncio's transport of the connection.
        is_sending: function that returns whether the client is still sending a request.
        loop: event loop of the connection.
    """

    def __init__(self, transport: Any, is_sending: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._is_sending, self._loop = transport, is_sending, loop
        self._end: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._end is not None or self._transport.is_closing()

    def close(self) -> None:
        """Closes the connection; up to 5 seconds later if the client is still sending."""
        if self.is_closing():
            return
        if not self._is_sending():
            self._transport.close()
            return
        self._end = self._loop.call_later(_LINGER_SECONDS, self._transport.close)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    def close_now(self) -> None:
        self._transport.close()

    def forget(self) -> None:
        if self._end is not None:
            self._end.cancel()


def _connection_class(seconds: float, seats: Seats) -> Any:
    """Makes uvicorn's connection class with timeouts for idle connections and slow readers.

    Args:
        seconds: time after which a connection without a whole request head, or with an unread
            response, is closed.
        seats: open connections, which learn whether they are idle.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection that is closed if it is idle, or its client reads nothing, for too long."""

        _idle: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            def is_sending() -> bool:
                return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

            self._number = transport.get_extra_info("socket").fileno()
            super().connection_made(_Lingering(transport, is_sending, self.loop))  # type: ignore[arg-type]
            self._wait_for_request()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()

        def on_response_complete(self) -> None:
            self._wait_for_request()
            super().on_response_complete()  # may start the next request
            if not self.cycle.response_complete:
                self._stop_waiting()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer("_unread")

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._stop_timer("_idle")
            self._stop_timer("_unread")
            self.transport.forget()  # type: ignore[attr-defined]

        def shutdown(self) -> None:
            if self.transport.is_closing():  # the response was sent, only the client is slow
                self.transport.close_now()  # type: ignore[attr-defined]
            else:
                super().shutdown()

        def _wait_for_request(self) -> None:
            self._stop_timer("_idle")
            self._idle = self.loop.call_later(seconds, self.transport.close)
            seats.set_idle(self._number, True)

        def _stop_waiting(self) -> None:
            self._stop_timer("_idle")
            seats.set_idle(self._number, False)

        def _stop_timer(self, name: str) -> None:
            timer = getattr(self, name)
            if timer is not None:
                timer.cancel()
                setattr(self, name, None)

    return Connection
