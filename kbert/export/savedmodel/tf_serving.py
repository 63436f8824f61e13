"""Files that TensorFlow Serving reads in addition to a graph: warm-up requests and settings.

VERSION/assets.extra/tf_serving_warmup_requests  requests that the server runs before any other
batching_parameters.txt                          how it batches requests of several clients
models.config                                    folders to serve, and their names

The last two are for the server's operator to edit: they are only written if missing.
"""

import functools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kbert.core.late import tf
from kbert.io import atomic
from kbert.io.paths import Path, exists
from kbert.signatures.requests import WARM_UP_TEXTS, Signature

WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"
BATCHING_FILE, MODELS_FILE = "batching_parameters.txt", "models.config"
# A file is written under a temporary name first, of which each process has only one.
_WRITING = threading.Lock()

_BATCHING = """\
# tensorflow_model_server --enable_batching --batching_parameters_file=THIS FILE
# The most rows of several requests that are computed together. A request of more is refused.
max_batch_size {{ value: 128 }}
# How long a request waits for others, in microseconds.
batch_timeout_micros {{ value: 2000 }}
# Batches that may wait; a request beyond them is refused.
max_enqueued_batches {{ value: 100 }}
# Batches computed at a time. Each already uses all processor cores.
num_batch_threads {{ value: 2 }}
# No allowed_batch_sizes: the rows that fill a batch up would be computed for nothing. No
# pad_variable_length_inputs: it fills rows of strings up with the first string of a request.
# Entry points of version {version} whose answers do not depend on who else asks at that moment:
#   {safe}
# Others have answers as wide as the widest of a batch, or inputs that only requests of one width
# can share:
#   {others}
"""
_MODELS = """\
# tensorflow_model_server --model_config_file=THIS FILE
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
    # The newest version; an older one is dropped when it is loaded.
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def warm_up_requests(signature: Signature) -> Iterator[dict[str, list]]:
    """Yields inputs of an entry point for warm-up: a request of one row, and one of all rows.

    Args:
        signature: entry point with inputs of strings, (B,) or (B, N).

    Yields:
        Name -> values of each input. Nothing for other inputs, or without texts to warm up with.

    Example:
        >>> spec = [tf.TensorSpec([None], tf.string, "text")]
        >>> entry = Signature(lambda x: {"text": x}, spec, warm_up=("a", "b"))
        >>> list(warm_up_requests(entry))
        [{'text': ['a']}, {'text': ['a', 'b']}]
    """
    texts = signature.warm_up or (WARM_UP_TEXTS if signature.tokens is not None else ())
    if any(x.dtype != tf.string or x.shape.rank not in (1, 2) for x in signature.inputs):
        return
    for rows in sorted({min(1, len(texts)), len(texts)} - {0}):
        yield {
            spec.name: list(texts[:rows]) if spec.shape.rank == 1 else [list(texts)] * rows
            for spec in signature.inputs
        }


def write_warm_up(folder: str, model: str, signatures: Mapping[str, Signature]) -> None:
    """Writes the requests that a server runs when it loads a SavedModel.

    (https://www.tensorflow.org/tfx/serving/saved_model_warmup.)

    Args:
        folder: folder of the SavedModel.
        model: name under which the server has the model.
        signatures: name -> entry point; `warm_up_requests` makes the requests of each.
    """
    path = Path(folder, *WARM_UP_FILE.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for name, signature in signatures.items():
            for request in warm_up_requests(signature):
                writer.write(prediction_log(model, name, request))


def prediction_log(model: str, signature: str, inputs: Mapping[str, Sequence]) -> bytes:
    """Returns a request of strings as a serialised `PredictionLog` of TensorFlow Serving.

    Args:
        model: name of the model.
        signature: name of the entry point.
        inputs: name -> strings of each input.
    """
    log = _message_class("PredictionLog")()
    request = log.predict_log.request
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values, tf.string))
    return log.SerializeToString()


@functools.cache
def _message_class(name: str) -> Any:
    """Returns the class of a message in tensorflow_serving/apis, with the fields used here.

    The package with all messages would be needed for nothing else. Serialised messages contain
    field numbers and no names. So these classes have other names, and the package can be imported
    too.
    """
    package = "kbert.export"
    from tensorflow.core.framework import tensor_pb2

    tensor = tensor_pb2.TensorProto.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="kbert/export/tf_serving.proto",
        package=package,
        syntax="proto3",
        dependency=[tensor.file.name],
    )

    def message(within: Any, title: str, **fields: tuple[int, str | None]) -> Any:
        """Adds a message type `title`; fields: name -> (number, message type or None for str)."""
        message_type = within.add(name=title)
        for field, (number, kind) in fields.items():
            message_type.field.add(
                name=field,
                number=number,
                label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
                type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING
                if kind is None
                else descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
                type_name=kind and f".{kind}",
            )
        return message_type

    # model.proto, predict.proto, prediction_log.proto
    message(file.message_type, "ModelSpec", name=(1, None), signature_name=(3, None))
    request = message(
        file.message_type,
        "PredictRequest",
        model_spec=(1, f"{package}.ModelSpec"),
        inputs=(2, f"{package}.PredictRequest.InputsEntry"),
    )
    request.field[1].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    entry = message(request.nested_type, "InputsEntry", key=(1, None), value=(2, tensor.full_name))
    entry.options.map_entry = True
    message(file.message_type, "PredictLog", request=(1, f"{package}.PredictRequest"))
    message(file.message_type, "PredictionLog", predict_log=(6, f"{package}.PredictLog"))
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


def batchable(folder: str) -> dict[str, bool]:
    """Returns which entry points of a SavedModel can batch requests of several clients.

    All axes of their inputs and outputs but the first must have a fixed size. Otherwise the width
    of an answer depends on the rows that are computed together.

    Args:
        folder: folder of the SavedModel.

    Returns:
        Name -> whether the entry point can batch.
    """
    content = Path(folder, "saved_model.pb").read_bytes()
    from tensorflow.core.protobuf import saved_model_pb2

    meta = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0]

    def has_one_width(tensor: Any) -> bool:
        return all(axis.size >= 0 for axis in tensor.tensor_shape.dim[1:])

    return {
        name: all(map(has_one_width, [*entry.inputs.values(), *entry.outputs.values()]))
        for name, entry in meta.signature_def.items()
        if not name.startswith("__")  # internal to the loader
    }


def write_settings(directory: str, version: str) -> None:
    """Writes `batching_parameters.txt` and `models.config` to a model's folder if missing.

    Args:
        directory: folder of the model.
        version: folder of a version; the first file lists its entry points.
    """
    can_batch = batchable(version)
    names = {
        can: ", ".join(sorted(x for x in can_batch if can_batch[x] == can)) for can in (True, False)
    }
    batching = _BATCHING.format(
        version=Path(version).name, safe=names[True] or "none", others=names[False] or "none"
    )
    model = Path(directory).name
    models = _MODELS.format(name=json.dumps(model), path=json.dumps(f"/models/{model}"))
    with _WRITING:
        for name, text in ((BATCHING_FILE, batching), (MODELS_FILE, models)):
            path = Path(directory, name)
            if not exists(path):
                atomic.write(path, text.encode())
