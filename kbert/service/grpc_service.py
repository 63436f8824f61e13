"""The service over gRPC: TensorFlow Serving's own PredictionService and ModelService."""

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from kbert.service import json_rows
from kbert.service.errors import Refused
from kbert.service.loaded import Arrays, Entry, LoadedModel
from kbert.service.models import Models
from kbert.service.settings import ServiceOptions

_DEFAULT = "serving_default"
_ANSWER_BYTES = 2**28
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def make_server(
    models: Models,
    options: ServiceOptions,
    token: bytes | None,
    tls: tuple[bytes, bytes] | None,
) -> tuple[Any, int]:
    """A server that is not started yet, and its port.

    Args:
        models: what answers.
        options: limits.
        token: that requests must bear; None = none.
        tls: key and certificate in PEM; None = plain.

    Raises:
        OSError: the port is taken.
        ImportError: the extra `[grpc]` is not installed.
    """
    import grpc
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

    async def guarded(context: Any, answer: Callable[[], Any]) -> Any:
        try:
            _check_token(context, token)
            left = context.time_remaining()
            limit = options.timeout_seconds
            async with asyncio.timeout(limit if left is None else min(left, limit)):
                return await answer()
        except Refused as error:
            code, text = _CODES.get(error.status, "UNKNOWN"), str(error)
        except TimeoutError:
            code, text = "DEADLINE_EXCEEDED", "The request was not computed in time."
        except Exception:
            logging.exception("A request failed")
            code, text = "INTERNAL", "The service failed; its log says how."
        return await context.abort(getattr(grpc.StatusCode, code), text)

    class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
        async def Predict(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._predict(request))

        async def _predict(self, request: Any) -> Any:
            import tensorflow as tf

            name, version = _model_of(request.model_spec)
            signature = request.model_spec.signature_name or _DEFAULT

            def prepare(loaded: LoadedModel) -> tuple[Entry, Arrays]:
                entry = loaded.entry(signature)
                most = options.max_body_bytes
                return entry, {k: _read(k, x, most) for k, x in request.inputs.items()}

            number, entry, parts = await models.run(name, version, prepare)
            outputs = json_rows.joined(parts)
            wanted = list(request.output_filter) or list(outputs)
            if unknown := sorted(set(wanted) - set(outputs)):
                raise Refused(
                    400,
                    f"The signature {entry.name!r} gives {', '.join(outputs)}. "
                    f"Received: {unknown[0][:100]!r} in output_filter",
                )
            answer = predict_pb2.PredictResponse()
            answer.model_spec.CopyFrom(_spec(request, name, number, signature))
            for output in wanted:
                answer.outputs[output].CopyFrom(tf.make_tensor_proto(outputs[output]))
            return answer

        async def GetModelMetadata(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._metadata(request))

        async def _metadata(self, request: Any) -> Any:
            from google.protobuf import json_format

            name, version = _model_of(request.model_spec)
            if list(request.metadata_field) != ["signature_def"]:
                raise Refused(400, "`metadata_field` is signature_def. Received: another")
            found = models.find(name).find(version)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            fields = {"signature_def": found.loaded.signature_defs()}
            json_format.ParseDict(fields, signatures)
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.model_spec.CopyFrom(_spec(request, name, found.number, ""))
            answer.metadata["signature_def"].Pack(signatures)
            return answer

    class Status(model_service_pb2_grpc.ModelServiceServicer):
        async def GetModelStatus(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._status(request))

        async def _status(self, request: Any) -> Any:
            from google.protobuf import json_format

            answer = get_model_status_pb2.GetModelStatusResponse()
            return json_format.ParseDict(models.status(*_model_of(request.model_spec)), answer)

    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", options.max_body_bytes),
            ("grpc.max_send_message_length", _ANSWER_BYTES),
            ("grpc.so_reuseport", 0),
        ],
        maximum_concurrent_rpcs=options.max_connections,
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Prediction(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Status(), server)
    address = f"[{options.host}]" if ":" in options.host else options.host
    place = f"{address}:{options.grpc_port}"
    try:
        if tls is None:
            port = server.add_insecure_port(place)
        else:
            port = server.add_secure_port(place, grpc.ssl_server_credentials([tls]))
    except RuntimeError as error:
        raise OSError(f"The port for gRPC cannot be opened. Received: {place}") from error
    return server, port


def _spec(request: Any, name: str, number: int, signature: str) -> Any:
    spec = type(request.model_spec)(name=name, signature_name=signature)
    spec.version.value = number
    return spec


def _model_of(spec: Any) -> tuple[str, int | None]:
    if spec.WhichOneof("version_choice") == "version_label":
        raise Refused(404, "Versions have numbers and no labels. Received: a version_label")
    return spec.name, spec.version.value if spec.HasField("version") else None


def _read(name: str, proto: Any, most: int) -> np.ndarray:
    """A tensor of a request; its shape may say more than its bytes hold, and is checked first."""
    import tensorflow as tf

    sizes = [dim.size for dim in proto.tensor_shape.dim]
    count = 1
    for size in sizes:
        count *= size
        if proto.tensor_shape.unknown_rank or size < 0 or count > most:
            raise Refused(
                400, f"The input {name[:100]!r} has at most {most} values. Received: {sizes[:10]}"
            )
    try:
        array = tf.make_ndarray(proto)
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(
            400, f"The input {name[:100]!r} is no whole tensor. Received: {str(error)[:200]}"
        ) from None
    if array.dtype == object:
        flat = [x.encode() if isinstance(x, str) else x for x in array.ravel().tolist()]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(sizes)
    return array


def _check_token(context: Any, token: bytes | None) -> None:
    if token is None:
        return
    given = dict(context.invocation_metadata() or ()).get("authorization", "")
    given = given.encode() if isinstance(given, str) else given
    scheme, _, found = given.partition(b" ")
    if not (scheme.lower() == b"bearer" and hmac.compare_digest(found.strip(), token)):
        raise Refused(401, "A request bears the service's token. Received: none, or another")
