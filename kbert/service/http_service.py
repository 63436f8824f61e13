"""The service over HTTP: TensorFlow Serving's REST routes, and a few that are shorter."""

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from absl import logging

from kbert.service import json_rows
from kbert.service.connections import Seats
from kbert.service.errors import Refused, drop_frames
from kbert.service.loaded import Arrays, Entry, LoadedModel
from kbert.service.metrics import Metrics
from kbert.service.models import Models, Prepare
from kbert.service.settings import ServiceOptions

_DEFAULT = "serving_default"
_CLOSE = (b"connection", b"close")
_LOADING = "The models are loaded. Try again later."


class HttpService:
    """The application that a server of ASGI runs.

    Args:
        models: what answers.
        options: limits.
        metrics: what it counts in.
        seats: the connections.
        token: that requests must bear; None = none.

    Attributes:
        is_ready: whether the models are loaded; until then all but /health and /live get 503.
        is_stopping: whether it takes requests for the last time: each answer ends its connection.
    """

    def __init__(
        self,
        models: Models,
        options: ServiceOptions,
        metrics: Metrics,
        seats: Seats,
        token: bytes | None = None,
    ) -> None:
        self._models, self._options, self._metrics = models, options, metrics
        self._seats, self._token = seats, token
        self.is_ready = self.is_stopping = False

    def app(self) -> Any:
        """The application."""
        routes = self._routes()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def answer(message: Any) -> None:
                if self.is_stopping and message["type"] == "http.response.start":
                    # A client that is not told so sends its next request into a closed connection.
                    message = {**message, "headers": [*message["headers"], _CLOSE]}
                await send(message)

            await routes(scope, receive, answer)

        return app

    def _routes(self) -> Any:
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
                    if name not in ("health", "live"):
                        self._check_state()
                        self._check_token(request.headers.get("authorization", ""))
                    found = await answer(request)
                    response = found if isinstance(found, Response) else json(found)
                except Refused as error:
                    if error.retry_after is not None:
                        headers["Retry-After"] = str(error.retry_after)
                    if error.status in (408, 413) or self._seats.is_full:
                        headers["Connection"] = "close"
                    if error.status == 401:
                        headers["WWW-Authenticate"] = "Bearer"
                    response = json({"error": str(error)}, error.status, headers)
                    drop_frames(error)
                except _Left as error:
                    response = Response(status_code=499)  # nobody reads it
                    drop_frames(error)
                except Exception as error:
                    logging.exception("A request failed")
                    response = json({"error": "The service failed; its log says how."}, 500)
                    drop_frames(error)
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
            route("live", "/live", "GET", self._live),
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
        if not self.is_ready:
            raise Refused(503, _LOADING, retry_after=1)
        return {"status": "ok"}

    async def _live(self, request: Any) -> dict[str, Any]:
        return {"status": "ok"}

    def _check_state(self) -> None:
        if not self.is_ready:
            raise Refused(503, _LOADING, retry_after=1)
        if self._seats.is_full:
            raise Refused(
                503,
                f"The service has {self._options.max_connections} connections at most. Try again "
                "later. Received: one more",
                retry_after=1,
            )

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
            return entry, json_rows.read_inputs(wanted, entry, self._options.max_texts)

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
            texts, most = wanted.get("texts"), self._options.max_texts
            return entry, {text: json_rows.read_array(texts, entry.inputs[text], "texts", most)}

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
            raise Refused(413, f"A request has {most} bytes at most. Received: {size} or more")
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
