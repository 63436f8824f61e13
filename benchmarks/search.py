"""Exact search in vectors on one core: kbert beside NumPy and FAISS, in one run.

Milliseconds of processor time of a search for the closest k by cosine, best of some rounds; the
contenders take turns, so a busy machine is busy for all. NumPy is one product and `argpartition`,
which need memory for all scores; FAISS is `IndexFlatIP` of faiss-cpu, where it is installed.
`python -m benchmarks.search [--vectors 100000] [--width 384] [--queries 1,32,1000] [--k 10]`
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import tensorflow as tf

from kbert.search import Index

Search = Callable[[np.ndarray, int], np.ndarray]


def numpy_search(vectors: np.ndarray) -> Search:
    def search(queries: np.ndarray, k: int) -> np.ndarray:
        scores = queries @ vectors.T
        rows = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1)
        return np.take_along_axis(rows, order, 1)

    return search


def contenders(vectors: np.ndarray) -> dict[str, Search]:
    index = Index(vectors)
    found = {
        "kbert": lambda queries, k: index.search(queries, k).ids,
        "NumPy": numpy_search(index.vectors),
    }
    try:
        import faiss
    except ImportError:
        print("faiss-cpu is not installed")
        return found
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(index.vectors)
    return {**found, "FAISS": lambda queries, k: flat.search(queries, k)[1]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--queries", default="1,32,1000")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(options.vectors, options.width)).astype("float32")
    searches = contenders(vectors)
    print(f"{options.vectors:,} x {options.width}, k={options.k}, load {os.getloadavg()[0]:.1f}")
    print("queries  " + "".join(f"{name:>12}" for name in searches) + "  ms; the same ids as kbert")
    for number in map(int, options.queries.split(",")):
        queries = vectors[:number] + rng.normal(size=(number, options.width)).astype("float32")
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        best = dict.fromkeys(searches, float("inf"))
        ids = {name: search(queries, options.k) for name, search in searches.items()}
        for _ in range(options.rounds):
            for name, search in searches.items():
                start = time.process_time()
                search(queries, options.k)
                best[name] = min(best[name], time.process_time() - start)
        same = [f"{name} {np.mean(found == ids['kbert']):.4f}" for name, found in ids.items()]
        times = "".join(f"{1000 * seconds:12.1f}" for seconds in best.values())
        print(f"{number:7}  {times}  {', '.join(same[1:])}", flush=True)


if __name__ == "__main__":
    main()
