"""TensorFlow Serving's own messages."""

import pathlib

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.serve.harness import running, signature
from tests.waiting import PATIENCE

TEXTS = ["the red fox", "", "two men and a woman"]


@pytest.fixture(scope="module")
def channel(service):
    with grpc.insecure_channel(service.addresses[1].removeprefix("grpc://")) as channel:
        yield channel


def request(model, entry="", **inputs):
    found = predict_pb2.PredictRequest()
    found.model_spec.name, found.model_spec.signature_name = model, entry
    for name, value in inputs.items():
        found.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return found


def predict(channel, request_, **more):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return stub.Predict(request_, timeout=PATIENCE, **more)


def refused(channel, request_) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        predict(channel, request_)
    return error.value.code().name, error.value.details()


def test_predict(channel, classifier):
    wanted = signature(classifier, "classify")(text=tf.constant(TEXTS))
    asked = request("reviews", text=TEXTS)
    asked.model_spec.version.value = 1
    asked.output_filter.extend(["scores", "label"])
    answer = predict(channel, asked)
    assert set(answer.outputs) == {"scores", "label"}
    assert (answer.model_spec.version.value, answer.model_spec.name) == (1, "reviews")
    scores = tf.make_ndarray(answer.outputs["scores"])
    np.testing.assert_allclose(scores, wanted["scores"], atol=1e-5)
    assert tf.make_ndarray(answer.outputs["label"]).tolist() == wanted["label"].numpy().tolist()
    answer = predict(channel, request("operations", "total", numbers=np.ones((2, 3), "float32")))
    assert tf.make_ndarray(answer.outputs["total"]).tolist() == [3, 3]
    answer = predict(channel, request("operations", "same", text=[b"\xff", b"a"]))
    assert tf.make_ndarray(answer.outputs["text"]).tolist() == [b"\xff", b"a"]


def test_metadata_and_status(channel):
    fields = ["signature_def"] * 2  # a name may be there twice
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    asked.model_spec.name = "operations"
    answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(asked)
    found = get_model_metadata_pb2.SignatureDefMap()
    answer.metadata["signature_def"].Unpack(found)
    assert found.signature_def["total"].inputs["numbers"].dtype == tf.float32.as_datatype_enum
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "reviews"
    (status,) = (
        model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(asked).model_version_status
    )
    assert (status.version, status.state) == (1, get_model_status_pb2.ModelVersionStatus.AVAILABLE)


def test_refusals(channel):
    code, text = refused(channel, request("none", text=["a"]))
    assert (code, text[:29]) == ("NOT_FOUND", "The models of the service are")
    assert refused(channel, request("reviews", text=[1.0])) == (
        "INVALID_ARGUMENT",
        "The input 'text' must be string of shape (B,). Received: float32 of shape (1,)",
    )
    assert refused(channel, request("reviews", txt=["a"])) == (
        "INVALID_ARGUMENT",
        "The inputs of the signature 'serving_default' are 'text'. Received: 'txt'",
    )
    assert refused(channel, request("reviews", text=["a"] * 17)) == (
        "INVALID_ARGUMENT",
        "A request must have at most 16 texts. Received: 17",
    )
    code, text = refused(channel, request("operations", "polite", text=["rude"]))
    assert (code, text[:20]) == ("INVALID_ARGUMENT", "The model does not a")
    labelled = request("reviews", text=["a"])
    labelled.model_spec.version_label = "stable"
    assert refused(channel, labelled)[0] == "NOT_FOUND"
    filtered = request("reviews", text=["a"])
    filtered.output_filter.append("none")
    assert refused(channel, filtered)[0] == "INVALID_ARGUMENT"
    code, _ = refused(channel, request("reviews", text=["a" * 30_000]))
    assert code == "RESOURCE_EXHAUSTED"  # gRPC's own limit of a message


METHODS = {
    "Classify": prediction_service_pb2_grpc.PredictionServiceStub,
    "Regress": prediction_service_pb2_grpc.PredictionServiceStub,
    "MultiInference": prediction_service_pb2_grpc.PredictionServiceStub,
    "HandleReloadConfigRequest": model_service_pb2_grpc.ModelServiceStub,
}


@pytest.mark.parametrize("method", METHODS)
def test_other_methods_are_refused(channel, method, caplog):
    """In a sentence, without a traceback in the log for each call."""
    with pytest.raises(grpc.RpcError) as error:
        getattr(METHODS[method](channel), method)(predict_pb2.PredictRequest(), timeout=PATIENCE)
    assert (error.value.code().name, error.value.details()) == (
        "UNIMPLEMENTED",
        "The service has the methods Predict, GetModelMetadata and GetModelStatus. "
        f"Received: {method}",
    )
    assert not caplog.records


@pytest.mark.parametrize(
    ("fields", "received"), [([], "none"), (["signature_def", "graph"], "'graph', 'signature_def'")]
)
def test_other_metadata_is_refused(channel, fields, received):
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    asked.model_spec.name = "operations"
    with pytest.raises(grpc.RpcError) as error:
        prediction_service_pb2_grpc.PredictionServiceStub(channel).GetModelMetadata(asked)
    assert (
        error.value.details() == f"`metadata_field` must be 'signature_def'. Received: {received}"
    )


def test_shapes_that_lie(channel):
    """A tensor of one value may say that it is repeated: never a terabyte of it."""
    for sizes in ([10**12], [2**31, 2**31], [-1], [0, 10**18], [1, 1]):
        lying = request("reviews", text=["a"])
        del lying.inputs["text"].tensor_shape.dim[:]
        for size in sizes:
            lying.inputs["text"].tensor_shape.dim.add(size=size)
        code, text = refused(channel, lying)
        assert code == "INVALID_ARGUMENT", (sizes, text)
    empty = request("reviews", text=["a"])
    empty.inputs["text"].Clear()
    assert refused(channel, empty)[0] == "INVALID_ARGUMENT"
    short = request("operations", "total", numbers=np.ones((2, 3), "float32"))
    short.inputs["numbers"].tensor_content = b"abc"
    assert refused(channel, short)[0] == "INVALID_ARGUMENT"


def test_a_token(operations, tmp_path):
    (tmp_path / "token").write_text("correct-horse")
    options = {"model": [f"m={operations}"], "token_file": str(tmp_path / "token")}
    with (
        running(**options, grpc_port=0) as service,
        grpc.insecure_channel(service.addresses[1].removeprefix("grpc://")) as channel,
    ):
        asked = request("m", "same", text=["a"])
        assert refused(channel, asked)[0] == "UNAUTHENTICATED"
        for method, stub in METHODS.items():
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                getattr(stub(channel), method)(predict_pb2.PredictRequest(), timeout=PATIENCE)
        answer = predict(channel, asked, metadata=[("authorization", "Bearer correct-horse")])
        assert tf.make_ndarray(answer.outputs["text"]).tolist() == [b"a"]


def test_over_tls(operations, certificate):
    everyone, key = certificate
    options = {"tls_certificate": everyone, "tls_key": key, "grpc_port": 0}
    with running(model=[f"m={operations}"], **options) as service:
        place = service.addresses[1].removeprefix("grpcs://")
        asked = request("m", "total", numbers=np.ones((2, 3), "float32"))
        trusted = grpc.ssl_channel_credentials(pathlib.Path(everyone).read_bytes())
        with grpc.secure_channel(place, trusted) as channel:
            answer = predict(channel, asked)
        assert tf.make_ndarray(answer.outputs["total"]).tolist() == [3, 3]
        for channel in (
            grpc.secure_channel(place, grpc.ssl_channel_credentials()),  # of other authorities
            grpc.insecure_channel(place),
        ):
            with channel:
                assert refused(channel, asked)[0] == "UNAVAILABLE"
