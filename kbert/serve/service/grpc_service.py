"""The service over gRPC: TensorFlow Serving's own PredictionService and ModelService."""

import asyncio
import hmac
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from kbert.serve.http.errors import Refused, drop_frames
from kbert.serve.service import json_rows
from kbert.serve.service.loaded import Arrays, Entry, LoadedModel, check_rows
from kbert.serve.service.models import Models
from kbert.serve.service.settings import ServiceOptions

_DEFAULT = "serving_default"
_ANSWER_BYTES = 2**28
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}


def make_server(
    models: Models,
    options: ServiceOptions,
    token: bytes | None,
    tls: tuple[bytes, bytes] | None,
) -> tuple[Any, int]:
    """Makes a gRPC server; returns it, not started yet, and its port.

    Args:
        models: models that answer the requests.
        options: settings of the service: port and limits.
        token: token that requests must send; None = no token is needed.
        tls: key and certificate in PEM; None = no TLS.

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
        """Returns the result of `answer`, in time; converts errors to gRPC's status codes."""
        try:
            _check_token(context, token)
            time_left = context.time_remaining()
            limit = options.timeout_seconds
            async with asyncio.timeout(limit if time_left is None else min(time_left, limit)):
                return await answer()
        except Refused as error:
            code, text = _CODES.get(error.status, "UNKNOWN"), str(error)
            drop_frames(error)
        except TimeoutError as error:
            code, text = "DEADLINE_EXCEEDED", "The request was not computed in time."
            drop_frames(error)
        except Exception as error:
            logging.exception("A request failed")
            code, text = "INTERNAL", "The service failed; see its log."
            drop_frames(error)
        return await context.abort(getattr(grpc.StatusCode, code), text)

    def unsupported(name: str) -> Callable[..., Any]:
        """Returns a method that refuses every call; the base class would log a traceback."""

        async def answer() -> Any:
            raise Refused(
                501,
                "The service has the methods Predict, GetModelMetadata and GetModelStatus. "
                f"Received: {name}",
            )

        async def method(self: Any, request: Any, context: Any) -> Any:
            return await guarded(context, answer)

        return method

    class Prediction(prediction_service_pb2_grpc.PredictionServiceServicer):
        """TensorFlow Serving's PredictionService: predictions and signatures of models."""

        Classify = unsupported("Classify")
        Regress = unsupported("Regress")
        MultiInference = unsupported("MultiInference")

        async def Predict(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._predict(request))

        async def _predict(self, request: Any) -> Any:
            import tensorflow as tf

            name, version = _model_of(request.model_spec)
            signature = request.model_spec.signature_name or _DEFAULT

            def prepare(loaded: LoadedModel) -> tuple[Entry, Arrays]:
                entry = loaded.entry(signature)
                entry.check_names(request.inputs)
                return entry, {k: _read(entry, k, x, options) for k, x in request.inputs.items()}

            number, entry, parts = await models.run(name, version, prepare)
            outputs = json_rows.joined(parts)
            output_names = (
                set(request.output_filter) or outputs.keys()
            )  # a name may be there 50,000 times
            if unknown := min(output_names - outputs.keys(), default=None):
                raise Refused(
                    400,
                    f"The outputs of the signature {entry.name!r} are {', '.join(outputs)}. "
                    f"Received: {unknown[:100]!r} in output_filter",
                )
            answer = predict_pb2.PredictResponse()
            answer.model_spec.CopyFrom(_spec(request, name, number, signature))
            for output in sorted(output_names):
                answer.outputs[output].CopyFrom(tf.make_tensor_proto(outputs[output]))
            return answer

        async def GetModelMetadata(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._metadata(request))

        async def _metadata(self, request: Any) -> Any:
            from google.protobuf import json_format

            name, version = _model_of(request.model_spec)
            fields = set(request.metadata_field)
            if fields != {"signature_def"}:
                received = ", ".join(repr(field[:100]) for field in sorted(fields)[:10]) or "none"
                raise Refused(
                    400, f"`metadata_field` must be 'signature_def'. Received: {received}"
                )
            served = models.find(name).find(version)
            signatures = get_model_metadata_pb2.SignatureDefMap()
            signature_defs = {"signature_def": served.loaded.signature_defs()}
            json_format.ParseDict(signature_defs, signatures)
            answer = get_model_metadata_pb2.GetModelMetadataResponse()
            answer.model_spec.CopyFrom(_spec(request, name, served.number, ""))
            answer.metadata["signature_def"].Pack(signatures)
            return answer

    class Status(model_service_pb2_grpc.ModelServiceServicer):
        """TensorFlow Serving's ModelService: the status of models' versions."""

        HandleReloadConfigRequest = unsupported("HandleReloadConfigRequest")

        async def GetModelStatus(self, request: Any, context: Any) -> Any:
            return await guarded(context, lambda: self._status(request))

        async def _status(self, request: Any) -> Any:
            from google.protobuf import json_format

            answer = get_model_status_pb2.GetModelStatusResponse()
            return json_format.ParseDict(models.status(*_model_of(request.model_spec)), answer)

    milliseconds = max(round(1000 * options.timeout_seconds), 1)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", options.max_body_bytes),
            ("grpc.max_send_message_length", _ANSWER_BYTES),
            ("grpc.so_reuseport", 0),
            # Limits for open connections, unfinished handshakes and idle connections.
            ("grpc.max_allowed_incoming_connections", options.max_connections),
            ("grpc.server_handshake_timeout_ms", milliseconds),
            ("grpc.max_connection_idle_ms", milliseconds),
            # No compression: a message would be decompressed in full before its size is checked.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.per_message_decompression", 0),
        ],
        maximum_concurrent_rpcs=options.max_connections,
    )
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Prediction(), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(Status(), server)
    address = f"[{options.host}]" if ":" in options.host else options.host
    target = f"{address}:{options.grpc_port}"
    try:
        if tls is None:
            port = server.add_insecure_port(target)
        else:
            port = server.add_secure_port(target, grpc.ssl_server_credentials([tls]))
    except RuntimeError as error:
        raise OSError(f"The port for gRPC cannot be opened. Received: {target}") from error
    return server, port


def _spec(request: Any, name: str, number: int, signature: str) -> Any:
    """Returns a `ModelSpec` for the answer to a request; `number` is the version."""
    spec = type(request.model_spec)(name=name, signature_name=signature)
    spec.version.value = number
    return spec


def _model_of(spec: Any) -> tuple[str, int | None]:
    """Returns the name and the version in a `ModelSpec`, None for the newest version."""
    if spec.WhichOneof("version_choice") == "version_label":
        raise Refused(
            404, "Versions have numbers; labels are not supported. Received: a version_label"
        )
    return spec.name, spec.version.value if spec.HasField("version") else None


def _read(entry: Entry, name: str, proto: Any, options: ServiceOptions) -> np.ndarray:
    """Converts a tensor of a request to an array; raises `Refused` if it does not fit.

    Type and shape are checked first: one value may stand for all that follow it, so a few bytes can
    become an array of any shape.

    Args:
        entry: the signature.
        name: name of the input.
        proto: a `TensorProto`.
        options: limits of the service.
    """
    import tensorflow as tf

    shape, most = proto.tensor_shape, options.max_body_bytes
    sizes = [dim.size for dim in shape.dim]
    try:
        dtype = tf.as_dtype(proto.dtype).name
    except TypeError:
        dtype = "no type"
    entry.check_input(name, dtype, sizes)
    if sizes and entry.is_rows:
        check_rows(sizes[0], options.max_texts)
    count = 1
    for size in sizes:
        count *= size
        if shape.unknown_rank or not 0 <= size <= most or count > most:
            raise Refused(
                400,
                f"The input {name[:100]!r} must have at most {most} values. Received: {sizes[:10]}",
            )
    try:
        array = tf.make_ndarray(proto)
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(
            400, f"The input {name[:100]!r} must be a complete tensor. Received: {str(error)[:200]}"
        ) from None
    if array.dtype == object:
        flat = [x.encode() if isinstance(x, str) else x for x in array.ravel().tolist()]
        array = np.empty(len(flat), object)
        array[:] = flat
        return array.reshape(sizes)
    return array


def _check_token(context: Any, token: bytes | None) -> None:
    """Raises `Refused` (401) unless the metadata of a call have the token; None = no token."""
    if token is None:
        return
    header = dict(context.invocation_metadata() or ()).get("authorization", "")
    header = header.encode() if isinstance(header, str) else header
    scheme, _, sent_token = header.partition(b" ")
    if not (scheme.lower() == b"bearer" and hmac.compare_digest(sent_token.strip(), token)):
        raise Refused(401, "A request must have the service's token. Received: none, or another")
