"""model2vec as `benchmarks.static` runs it: a program for the peer's own Python, without kbert.

`PYTHON benchmarks/_static_contender.py` reads requests, a line of JSON each, and answers likewise.
"""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
from model2vec import StaticModel


def texts_of(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def distil(request: dict) -> dict:
    from model2vec.distill import distill

    began = time.perf_counter()
    model = distill(
        request["model"], pca_dims=request["dimensions"], device="cpu", quantize_to="float32"
    )
    seconds = time.perf_counter() - began
    model.save_pretrained(request["folder"])
    return {"seconds": seconds}


def encode(request: dict) -> dict:
    texts = texts_of(request["texts"])
    if request["folder"] not in _loaded:
        _loaded[request["folder"]] = StaticModel.from_pretrained(request["folder"])
    model = _loaded[request["folder"]]
    began = time.perf_counter()
    vectors = model.encode(texts, use_multiprocessing=False)
    seconds = time.perf_counter() - began
    if "to" in request:
        np.save(request["to"], vectors)
    return {"seconds": seconds}


_loaded: dict[str, StaticModel] = {}

if __name__ == "__main__":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    for line in sys.stdin:
        request = json.loads(line)
        print(
            json.dumps({"distil": distil, "encode": encode}[request["do"]](request)),
            file=answers,
            flush=True,
        )
