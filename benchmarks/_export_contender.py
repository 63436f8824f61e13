"""What `benchmarks.exports` compares: a model in one runtime, in a process of its own.

`python -m benchmarks._export_contender OPENER FOLDER` reads lists of batches of texts, one a line
as JSON, and answers each line with the seconds of every batch and the memory that is held, in MB.
It imports what its runtime needs alone.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

LENGTH = 128  # tokens, at most
Answer = Callable[[list[str]], Any]  # texts -> one row of numbers each


def open_savedmodel(folder: str) -> Answer:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  # registers the tokenizer's operations

    classify = tf.saved_model.load(folder).signatures["classify"]
    return lambda texts: classify(text=tf.constant(texts))["scores"].numpy()


def open_savedmodel_on_one_core(folder: str) -> Answer:
    """As `kbert-serve` has it: a batch is computed by one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    return open_savedmodel(folder)


def open_exported(folder: str) -> Answer:
    from kbert.export import load_exported

    exported = load_exported(folder)
    return lambda texts: exported.predict(texts, batch_size=len(texts), verbose=0)


def open_bare(folder: str) -> Answer:
    """The runtime itself, behind Hugging Face's tokenizer, without kbert and TensorFlow."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(os.path.join(folder, "vocab.txt"), lowercase=True)
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()
    description = json.loads(Path(folder, "export.json").read_text(encoding="utf-8"))
    run = {"onnx": run_onnx, "openvino": run_openvino}[description["format"]](folder, description)
    names = {"token_ids": "ids", "segment_ids": "type_ids", "padding_mask": "attention_mask"}

    def answer(texts: list[str]) -> np.ndarray:
        rows = tokenizer.encode_batch(texts)
        return run({k: np.array([getattr(x, v) for x in rows], "int32") for k, v in names.items()})

    return answer


def open_inside(folder: str) -> Answer:
    """The runtime with the tokenizer that the export has for it."""
    description = json.loads(Path(folder, "export.json").read_text(encoding="utf-8"))
    onnx = description["format"] == "onnx"
    run = (run_onnx if onnx else run_openvino)(folder, description)
    rows = (tokenize_onnx if onnx else tokenize_openvino)(folder)
    return lambda texts: run(rows(texts))


def tokenize_onnx(folder: str) -> Callable[[list[str]], dict]:
    import onnxruntime
    import onnxruntime_extensions

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    path, providers = os.path.join(folder, "tokenizer.onnx"), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    names = [value.name for value in session.get_outputs()]

    def rows(texts: list[str]) -> dict:
        found = session.run(names, {"text": np.array(texts, object)})
        return dict(zip(names, found, strict=True))

    return rows


def tokenize_openvino(folder: str) -> Callable[[list[str]], dict]:
    import openvino
    import openvino_tokenizers  # noqa: F401  # adds its operations

    path = os.path.join(folder, "openvino_tokenizer.xml")
    model = openvino.Core().compile_model(path, "CPU")
    names = [value.get_any_name() for value in model.outputs]

    def rows(texts: list[str]) -> dict:
        found = model({"text": np.array(texts)})
        return {name: found[name] for name in names}

    return rows


def run_onnx(folder: str, description: dict) -> Callable[[dict], np.ndarray]:
    import onnxruntime

    path, providers = os.path.join(folder, "model.onnx"), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, providers=providers)
    return lambda features: session.run(["probabilities"], features)[0]


def run_openvino(folder: str, description: dict) -> Callable[[dict], np.ndarray]:
    import openvino

    half = description["precision"] == "bfloat16"
    settings = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32"}
    path = os.path.join(folder, "model.xml")
    model = openvino.Core().compile_model(path, "CPU", settings)
    return lambda features: model(features)["probabilities"]


def open_torch(folder: str, half: bool) -> Answer:
    import torch
    import transformers

    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(texts: list[str]) -> np.ndarray:
        options = {"padding": True, "truncation": True, "max_length": LENGTH}
        rows = tokenizer(texts, return_tensors="pt", **options)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            return torch.softmax(model(**rows).logits.float(), -1).numpy()

    return answer


OPENERS: dict[str, Callable[..., Answer]] = {
    "savedmodel": open_savedmodel,
    "savedmodel, one thread": open_savedmodel_on_one_core,
    "exported": open_exported,
    "bare": open_bare,
    "inside": open_inside,
    "torch": functools.partial(open_torch, half=False),
    "torch bfloat16": functools.partial(open_torch, half=True),
}


def resident_memory() -> float:
    """Of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024


def main(opener: str, folder: str) -> None:
    answer = OPENERS[opener](folder)
    for line in sys.stdin:
        seconds = []
        for texts in json.loads(line):
            began = time.perf_counter()
            answer(texts)
            seconds.append(time.perf_counter() - began)
        print(json.dumps([seconds, resident_memory()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
