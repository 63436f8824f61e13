"""The service over HTTP: TensorFlow Serving's REST routes, and a few shorter ones."""

import hmac
import re
from collections.abc import Callable, Sequence
from typing import Any

from kbert.serve.http.application import Application
from kbert.serve.http.errors import Refused
from kbert.serve.http.server import address
from kbert.serve.service import json_rows
from kbert.serve.service.loaded import Arrays, Entry, LoadedModel
from kbert.serve.service.metrics import Metrics
from kbert.serve.service.models import Models, Prepare
from kbert.serve.service.settings import ServiceOptions

_DEFAULT = "serving_default"


class HttpService(Application):
    """The HTTP routes of a service; they also start and stop its gRPC server, if it has one.

    Args:
        models: models that answer the requests.
        options: settings of the service: addresses and limits.
        metrics: counters of the service.
        token: token that requests must send; None = no token is needed.
        pair: key and certificate in PEM for gRPC; None = no TLS.
    """

    always = frozenset({"health", "live"})

    def __init__(
        self,
        models: Models,
        options: ServiceOptions,
        metrics: Metrics,
        token: bytes | None = None,
        pair: tuple[bytes, bytes] | None = None,
    ) -> None:
        super().__init__(options)
        self._models, self._limits, self._metrics = models, options, metrics
        self._token, self._pair = token, pair
        self._grpc: Any = None
        self.stop_seconds, self.drain_seconds = options.stop_seconds, options.drain_seconds
        if options.tls_certificate is not None and options.tls_key is not None:
            self.tls = options.tls_certificate, options.tls_key

    def open(self) -> None:
        if self._limits.grpc_port is None:
            return
        from kbert.serve.service.grpc_service import make_server

        self._grpc, port = make_server(self._models, self._limits, self._token, self._pair)
        scheme = "grpc" if self.tls is None else "grpcs"
        self._grpc_address = address(scheme, self.options.host, port)

    async def load(self) -> None:
        await self._models.load()

    async def begin(self) -> list[str]:
        if self._grpc is None:
            return []
        await self._grpc.start()
        return [self._grpc_address]

    async def watch(self) -> None:
        await self._models.watch()

    async def finish(self, seconds: float) -> None:
        if self._grpc is not None:
            await self._grpc.stop(seconds)

    async def close(self) -> None:
        await self._models.close()

    def check(self, request: Any) -> None:
        if self._token is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Constant-time comparison: the time must not reveal how much of the token is right.
        is_right = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token)
        if scheme.lower() != "bearer" or not is_right:
            raise Refused(
                401, "A request must have the service's token. Received: none, or another"
            )

    def count(self, request: Any, route: str, status: int, seconds: float) -> None:
        # Unknown names are not counted separately: each guess would be a new counter.
        model = request.path_params.get("model", "")
        label = model if self._models.has(model) else ""
        self._metrics.requests.labels(label, route, status).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)

    def routes(self) -> list[Any]:
        from starlette.responses import Response

        async def metrics(request: Any) -> Any:
            return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

        model = "/v1/models/{model}"
        routes = [
            self.route("health", "/health", "GET", self._health),
            self.route("live", "/live", "GET", self._live),
            self.route("metrics", "/metrics", "GET", metrics),
            self.route("embed", "/embed", "POST", self._embed),
            self.route("fill_mask", "/fill_mask", "POST", self._fill_mask),
        ]
        for path in (model, model + "/versions/{version}"):
            routes += [
                self.route("predict", path + ":predict", "POST", self._predict),
                self.route("verb", path + ":{verb}", "POST", self._other_verb),
                self.route("metadata", path + "/metadata", "GET", self._metadata),
                self.route("status", path, "GET", self._status),
            ]
        return routes

    async def _health(self, request: Any) -> dict[str, Any]:
        if self.is_stopping:
            raise Refused(503, "The service is stopping.")
        self.check_ready()
        return {"status": "ok"}

    async def _live(self, request: Any) -> dict[str, Any]:
        return {"status": "ok"}

    async def _status(self, request: Any) -> dict[str, Any]:
        name = request.path_params["model"]
        if name.endswith(":predict") and not self._models.has(name):
            raise Refused(405, "Predictions must be requested by POST. Received: GET")
        return self._models.status(name, _version(request))

    async def _metadata(self, request: Any) -> dict[str, Any]:
        name = request.path_params["model"]
        version = self._models.find(name).find(_version(request))
        signatures = {"signature_def": version.loaded.signature_defs()}
        spec = {"name": name, "signature_name": "", "version": str(version.number)}
        return {"model_spec": spec, "metadata": {"signature_def": signatures}}

    async def _other_verb(self, request: Any) -> None:
        verb = request.path_params["verb"][:100]
        raise Refused(404, f"Models support only :predict. Received: {f':{verb}'!r}")

    async def _predict(self, request: Any) -> dict[str, Any]:
        content = await self.read(request)
        json_rows.refuse_unknown(content, ("signature_name", "instances", "inputs"))
        signature = json_rows.text_of(content, "signature_name", _DEFAULT) or _DEFAULT

        def prepare(loaded: LoadedModel) -> Any:
            entry = loaded.entry(signature)
            return entry, json_rows.read_inputs(content, entry, self._limits.max_texts)

        name = request.path_params["model"]
        _, entry, parts = await self._run(request, name, _version(request), prepare)
        if "inputs" in content:
            return {"outputs": json_rows.write_columns(parts)}
        rows = len(content["instances"])
        return {"predictions": json_rows.write_rows(entry, parts, rows)}

    async def _embed(self, request: Any) -> dict[str, Any]:
        parts, entry = await self._answer_texts(request, LoadedModel.vectors, "embeds texts")
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
        """Runs the signature of an ability on the `texts` of a request.

        Args:
            request: request with `texts` and optionally `model`.
            find: function from a `LoadedModel` to the signature with the ability, or None.
            what: the ability in words, for messages, such as "embeds texts".
            ragged: whether rows may share a batch with others even if their outputs are then padded
                to the widest.

        Returns:
            The parts of the outputs, and the signature.
        """
        content = await self.read(request)
        json_rows.refuse_unknown(content, ("texts", "model"))
        name = self._models.only(json_rows.text_of(content, "model", None), find, what)

        def prepare(loaded: LoadedModel) -> tuple[Entry, Arrays]:
            entry = find(loaded)
            if entry is None:  # a newer version may no longer have the signature
                raise Refused(400, f"`model` must be one that {what}. Received: {name!r}")
            (text,) = entry.inputs
            texts, most = content.get("texts"), self._limits.max_texts
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
        """Runs a model while the client of a request waits; arguments as in `Models.run`.

        Returns:
            The version's number, the signature, and the parts of the outputs.
        """
        return await self.wait_for(request, self._models.run(name, version, prepare, ragged=ragged))


def _version(request: Any) -> int | None:
    """Returns the version in the path of a request, or None; `Refused` if it is not a number."""
    version = request.path_params.get("version")
    if version is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", version):
        raise Refused(400, f"A version must be a whole number. Received: {version[:100]!r}")
    return int(version)
