"""HTTP applications: routes, and the checks that every request passes before them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from absl import logging

from kbert.serve.http import json_body
from kbert.serve.http.connections import Seats
from kbert.serve.http.errors import Refused, drop_frames
from kbert.serve.http.settings import HttpOptions

_CLOSE = (b"connection", b"close")


class Application:
    """An ASGI application of a server.

    A subclass defines `routes`, each made by `route`. It can define `check` and `count`, which
    apply to each request, and `open`, `load`, `begin`, `watch`, `finish` and `close`, which `run`
    calls in this order.

    Args:
        options: settings of the server: address and limits.

    Attributes:
        seats: open connections.
        is_ready: whether it is loaded; until then all but the `always` routes get 503.
        is_stopping: whether the server is stopping: each response then closes its connection.
    """

    always: frozenset[str] = frozenset()  # names of routes that answer before it is ready
    headers: tuple[tuple[bytes, bytes], ...] = ()  # headers of every response
    failure = "The service failed; see its log."  # error message for internal errors
    tls: tuple[str, str] | None = None  # files of the certificate and its key
    stop_seconds = 2.0  # longest time of a shutdown
    drain_seconds = 0.0  # part of `stop_seconds` in which requests are still accepted

    def __init__(self, options: HttpOptions) -> None:
        self.options = options
        self.seats = Seats(options.max_connections)
        self.is_ready = self.is_stopping = False

    def routes(self) -> Iterable[Any]:
        """Returns the routes, each made by `route`."""
        raise NotImplementedError(f"{type(self).__name__} must define `routes`.")

    def check(self, request: Any) -> None:
        """Raises `Refused` for requests that must not reach a route; not called for `always`."""

    def count(self, request: Any, route: str, status: int, seconds: float) -> None:
        """Counts an answered request.

        Args:
            request: the request.
            route: name of its route.
            status: HTTP status of the response.
            seconds: time from the request's head to the response.
        """

    def open(self) -> None:
        """Acquires shared resources, such as more ports, before loading."""

    async def load(self) -> None:
        """Loads the models; an error stops the server."""

    async def begin(self) -> list[str]:
        """Starts what needs the loaded models; returns addresses in addition to that of HTTP."""
        return []

    async def watch(self) -> None:
        """Runs background work until cancelled."""
        await asyncio.Event().wait()

    async def finish(self, seconds: float) -> None:
        """Finishes requests that came by another way than HTTP, within `seconds`."""

    async def close(self) -> None:
        """Refuses requests that are still under way, and frees resources."""

    def app(self) -> Any:
        """Returns the ASGI application, which adds `headers` to every response."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException

        async def refuse(request: Any, error: Any) -> Any:
            return response({"error": error.detail}, error.status_code, error.headers)

        inner = Starlette(routes=[*self.routes()], exception_handlers={HTTPException: refuse})

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def answer(message: Any) -> None:
                if message["type"] == "http.response.start":
                    # Otherwise the client would send its next request into a closed connection.
                    extra_headers = (*self.headers, *((_CLOSE,) if self.is_stopping else ()))
                    message = {**message, "headers": [*message["headers"], *extra_headers]}
                await send(message)

            await inner(scope, receive, answer)

        return app

    def route(
        self, name: str, path: str, method: str, answer: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        """Makes a route whose requests are checked and counted, and whose errors become JSON.

        Args:
            name: name of the route for `count` and `always`.
            path: path pattern of Starlette.
            method: HTTP method.
            answer: coroutine function from a request to a JSON value or a Starlette response.
        """
        from starlette.responses import Response
        from starlette.routing import Route

        async def endpoint(request: Any) -> Any:
            start = time.perf_counter()
            headers: dict[str, str] = {}
            try:
                if name not in self.always:
                    self._check_state()
                    self.check(request)
                result = await answer(request)
                answered = result if isinstance(result, Response) else response(result)
            except Refused as error:
                if error.retry_after is not None:
                    headers["Retry-After"] = str(error.retry_after)
                if error.status in (408, 413) or self.seats.is_full:
                    headers["Connection"] = "close"
                if error.status == 401:
                    headers["WWW-Authenticate"] = "Bearer"
                answered = response({"error": str(error)}, error.status, headers)
                drop_frames(error)
            except _Left as error:
                answered = Response(status_code=499)  # nobody reads it
                drop_frames(error)
            except Exception as error:
                logging.exception("A request failed")
                answered = response({"error": self.failure}, 500)
                drop_frames(error)
            self.count(request, name, answered.status_code, time.perf_counter() - start)
            return answered

        return Route(path, endpoint, methods=[method])

    def check_ready(self) -> None:
        """Raises `Refused` while the models are being loaded."""
        if not self.is_ready:
            raise Refused(503, "The models are still loading. Try again later.", retry_after=1)

    def _check_state(self) -> None:
        """Raises `Refused` (503) while models are loading or if too many requests are running."""
        self.check_ready()
        if self.seats.is_full:
            raise Refused(
                503,
                f"The service accepts at most {self.options.max_connections} connections. Try "
                "again later. Received: one more",
                retry_after=1,
            )

    async def wait_for(self, request: Any, work: Awaitable[Any]) -> Any:
        """Waits for the result of a request, but not longer than its client stays connected.

        Args:
            request: the request, whose body has been read.
            work: awaitable of the result; cancelled if the client leaves or the time is over.

        Returns:
            The result of `work`.

        Raises:
            Refused: `work` takes longer than `timeout_seconds`.
        """
        computed = asyncio.ensure_future(work)
        # After the body only a disconnect can come.
        disconnect = asyncio.create_task(request.receive())
        seconds = self.options.timeout_seconds
        try:
            done, _ = await asyncio.wait(
                {computed, disconnect}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if computed in done:
                return computed.result()
            if disconnect in done:
                raise _Left
            raise Refused(
                503,
                f"A request must be computed within {seconds:g} seconds. Received: one that takes "
                "longer",
                retry_after=1,
            )
        finally:
            computed.cancel()
            disconnect.cancel()

    async def read(self, request: Any) -> dict[str, Any]:
        """Reads the JSON object in a request's body.

        Raises:
            Refused: the body has more than `max_body_bytes`, takes longer than `timeout_seconds`,
                or is not a JSON object.
        """
        try:
            async with asyncio.timeout(self.options.timeout_seconds):
                return json_body.parse(await self._read_bytes(request))
        except TimeoutError:
            raise Refused(
                408,
                f"A request must be sent within {self.options.timeout_seconds:g} seconds. "
                "Received: a part of it",
            ) from None

    async def _read_bytes(self, request: Any) -> bytearray:
        """Returns the body of a request; raises `Refused` (413) above `max_body_bytes`."""
        from starlette.requests import ClientDisconnect

        most = self.options.max_body_bytes
        # The server has already refused values that are not numbers.
        size = int(request.headers.get("content-length", "0"))
        body = bytearray()
        if size <= most:
            try:
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        break
            except ClientDisconnect:
                raise _Left from None
        size = max(size, len(body))
        if size > most:
            raise Refused(
                413, f"A request must have at most {most} bytes. Received: {size} or more"
            )
        return body


def response(content: Any, status: int = 200, headers: Any = None) -> Any:
    """Returns a Starlette response whose body is `content` as JSON."""
    from starlette.responses import Response

    return Response(json_body.dump(content), status, headers, media_type="application/json")


class _Left(Exception):
    """Raised if the client has closed its connection before the answer."""
