"""The service over HTTP: TensorFlow Serving's REST routes, and a few that are shorter."""

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from absl import logging

from kbert.service import json_rows
from kbert.service.errors import Refused
from kbert.service.loaded import Arrays, Entry, LoadedModel
from kbert.service.metrics import Metrics
from kbert.service.models import Models, Prepare
from kbert.service.settings import ServiceOptions

_READ_ON = 8  # so many times the largest body is read to its end, that the client sees why it fails
_DEFAULT = "serving_default"
# Before there is a request.
_FULL_BODY = b'{"error":"The service has as many connections as it may. Try again later."}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)


class HttpService:
    """The application that a server of ASGI runs.

    Args:
        models: what answers.
        options: limits.
        metrics: what it counts in.
        token: that requests must bear; None = none.
    """

    def __init__(
        self, models: Models, options: ServiceOptions, metrics: Metrics, token: bytes | None = None
    ) -> None:
        self._models, self._options, self._metrics = models, options, metrics
        self._token = token
        self.is_stopping = False

    def app(self) -> Any:
        """The application."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import Request
        from starlette.responses import Response
        from starlette.routing import Route

        def json(content: Any, status: int = 200, headers: Any = None) -> Response:
            body = json_rows.dump(content)
            return Response(body, status, headers, media_type="application/json")

        def route(
            name: str, path: str, method: str, answer: Callable[[Request], Awaitable[Any]]
        ) -> Route:
            async def endpoint(request: Request) -> Response:
                start = time.perf_counter()
                headers: dict[str, str] = {}
                try:
                    if name != "health":
                        self._check_token(request.headers.get("authorization", ""))
                    found = await answer(request)
                    response = found if isinstance(found, Response) else json(found)
                except Refused as error:
                    if error.retry_after is not None:
                        headers["Retry-After"] = str(error.retry_after)
                    if error.status in (408, 413):  # the rest of its body may still come
                        headers["Connection"] = "close"
                    if error.status == 401:
                        headers["WWW-Authenticate"] = "Bearer"
                    response = json({"error": str(error)}, error.status, headers)
                except _Left:
                    response = Response(status_code=499)  # nobody reads it
                except Exception:
                    logging.exception("A request failed")
                    response = json({"error": "The service failed; its log says how."}, 500)
                # A name that nobody serves would be a new counter for each guess.
                model = request.path_params.get("model", "")
                known = model if self._models.has(model) else ""
                self._metrics.requests.labels(known, name, response.status_code).inc()
                self._metrics.request_seconds.labels(name).observe(time.perf_counter() - start)
                return response

            return Route(path, endpoint, methods=[method])

        async def metrics(request: Request) -> Response:
            return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

        async def refuse(request: Request, error: Any) -> Response:
            return json({"error": error.detail}, error.status_code, error.headers)

        model = "/v1/models/{model}"
        routes = [
            route("health", "/health", "GET", self._health),
            route("metrics", "/metrics", "GET", metrics),
            route("embed", "/embed", "POST", self._embed),
            route("fill_mask", "/fill_mask", "POST", self._fill_mask),
        ]
        for place in (model, model + "/versions/{version}"):
            routes += [
                route("predict", place + ":predict", "POST", self._predict),
                route("verb", place + ":{verb}", "POST", self._other_verb),
                route("metadata", place + "/metadata", "GET", self._metadata),
                route("status", place, "GET", self._status),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: refuse})

    async def _health(self, request: Any) -> dict[str, Any]:
        if self.is_stopping:
            raise Refused(503, "The service is stopping.")
        return {"status": "ok"}

    async def _status(self, request: Any) -> dict[str, Any]:
        name = request.path_params["model"]
        if name.endswith(":predict") and not self._models.has(name):
            raise Refused(405, "A prediction is asked for by POST. Received: GET")
        return self._models.status(name, _version(request))

    async def _metadata(self, request: Any) -> dict[str, Any]:
        name = request.path_params["model"]
        version = self._models.find(name).find(_version(request))
        signatures = {"signature_def": version.loaded.signature_defs()}
        spec = {"name": name, "signature_name": "", "version": str(version.number)}
        return {"model_spec": spec, "metadata": {"signature_def": signatures}}

    async def _other_verb(self, request: Any) -> None:
        verb = request.path_params["verb"][:100]
        raise Refused(404, f"Models answer to :predict. Received: {f':{verb}'!r}")

    async def _predict(self, request: Any) -> dict[str, Any]:
        wanted = await self._read(request)
        json_rows.refuse_unknown(wanted, ("signature_name", "instances", "inputs"))
        signature = json_rows.text_of(wanted, "signature_name", _DEFAULT) or _DEFAULT

        def prepare(loaded: LoadedModel) -> Any:
            entry = loaded.entry(signature)
            return entry, json_rows.read_inputs(wanted, entry)

        name = request.path_params["model"]
        _, entry, parts = await self._run(request, name, _version(request), prepare)
        if "inputs" in wanted:
            return {"outputs": json_rows.write_columns(parts)}
        rows = len(wanted["instances"])
        return {"predictions": json_rows.write_rows(entry, parts, rows)}

    async def _embed(self, request: Any) -> dict[str, Any]:
        parts, entry = await self._answer_texts(request, LoadedModel.vectors, "gives vectors")
        return {"embeddings": json_rows.joined(parts)[entry.vectors or ""]}

    async def _fill_mask(self, request: Any) -> dict[str, Any]:
        parts, _ = await self._answer_texts(
            request, LoadedModel.fill_mask, "fills masks", ragged=True
        )
        return {"answers": json_rows.write_masks(parts)}

    async def _answer_texts(
        self,
        request: Any,
        find: Callable[[LoadedModel], Entry | None],
        what: str,
        *,
        ragged: bool = False,
    ) -> tuple[Sequence[Arrays], Entry]:
        wanted = await self._read(request)
        json_rows.refuse_unknown(wanted, ("texts", "model"))
        name = self._models.only(json_rows.text_of(wanted, "model", None), find, what)

        def prepare(loaded: LoadedModel) -> tuple[Entry, Arrays]:
            entry = find(loaded)
            if entry is None:  # a newer version may have lost it
                raise Refused(400, f"The model is one that {what}. Received: {name!r}")
            (text,) = entry.inputs
            texts = wanted.get("texts")
            return entry, {text: json_rows.read_array(texts, entry.inputs[text], "texts")}

        _, entry, parts = await self._run(request, name, None, prepare, ragged=ragged)
        return parts, entry

    async def _run(
        self,
        request: Any,
        name: str,
        version: int | None,
        prepare: Prepare,
        *,
        ragged: bool = False,
    ) -> tuple[int, Entry, Sequence[Arrays]]:
        """What the model answers; stops waiting for it where the client has left."""
        work = asyncio.create_task(self._models.run(name, version, prepare, ragged=ragged))
        left = asyncio.create_task(request.receive())  # behind the body, it can only leave
        try:
            done, _ = await asyncio.wait(
                {work, left},
                timeout=self._options.timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work in done:
                return work.result()
            if left in done:
                raise _Left
            raise Refused(
                503,
                f"A request is computed in {self._options.timeout_seconds:g} seconds at most. "
                "Received: one that takes longer",
                retry_after=1,
            )
        finally:
            work.cancel()
            left.cancel()

    async def _read(self, request: Any) -> dict[str, Any]:
        """The body's object, within the limits of bytes and time."""
        try:
            async with asyncio.timeout(self._options.timeout_seconds):
                return json_rows.parse(await self._read_body(request))
        except TimeoutError:
            raise Refused(
                408,
                f"A request is sent in {self._options.timeout_seconds:g} seconds at most. "
                "Received: a part of it",
            ) from None

    async def _read_body(self, request: Any) -> bytearray:
        from starlette.requests import ClientDisconnect

        most = self._options.max_body_bytes
        # The server has refused what is no number.
        size = int(request.headers.get("content-length", "0"))
        body = bytearray()
        received = 0
        if size <= _READ_ON * most:
            try:
                async for chunk in request.stream():
                    received += len(chunk)
                    if received > _READ_ON * most:
                        break
                    if received <= most:
                        body += chunk
            except ClientDisconnect:
                raise _Left from None
        if max(size, received) > most:
            raise Refused(
                413,
                f"A request has {most} bytes at most. Received: {max(size, received)} or more",
            )
        return body

    def _check_token(self, header: str) -> None:
        if self._token is None:
            return
        scheme, _, token = header.partition(" ")
        # Compared in a time that does not tell how much of it is right.
        is_right = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token)
        if scheme.lower() != "bearer" or not is_right:
            raise Refused(401, "A request bears the service's token. Received: none, or another")


class _Left(Exception):
    """The client has closed its connection."""


def _version(request: Any) -> int | None:
    version = request.path_params.get("version")
    if version is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", version):
        raise Refused(400, f"A version is a whole number. Received: {version[:100]!r}")
    return int(version)


def connection_class(seconds: float, most: int) -> Any:
    """The server's class of connections, of which none is held open for nothing.

    Args:
        seconds: the longest time without a request, its whole head counted, and the longest for
            the client to take in an answer.
        most: connections at the same time; the next is told so and closed.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        _idle: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_request()
            if len(self.connections) > most:
                transport.write(_FULL)
                transport.close()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer("_idle")

        def on_response_complete(self) -> None:
            self._wait_for_request()
            super().on_response_complete()  # which may begin with the next
            if not self.cycle.response_complete:
                self._stop_timer("_idle")

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

        def _wait_for_request(self) -> None:
            self._stop_timer("_idle")
            self._idle = self.loop.call_later(seconds, self.transport.close)

        def _stop_timer(self, name: str) -> None:
            timer = getattr(self, name)
            if timer is not None:
                timer.cancel()
                setattr(self, name, None)

    return Connection
