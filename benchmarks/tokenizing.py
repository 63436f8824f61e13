"""Tokenizing on one core: kbert beside KerasHub and Hugging Face `tokenizers`, in one run.

Megabytes of UTF-8 a second of processor time, best of some rounds; the contenders take turns, so a
busy machine is busy for all. Of each kind the same vocabulary, and the same lines in batches of
1,024: string tensors for the two that run in TensorFlow's graph, lists of str for the one that runs
beside it, and the ids as each hands them out. `python -m benchmarks.tokenizing [--text FILE]
[--vocabulary vocab.txt] [--byte_pair FOLDER] [--unigram FILE.model] [--kinds KIND …]`.
"""

import argparse
import ast
import os
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["RAYON_NUM_THREADS"] = "1"

import tensorflow as tf

from benchmarks import _tokenizers as tokenizers
from benchmarks._tokenizers import Batch, Contender

BATCH = 1024
KINDS = {
    "WordPiece": tokenizers.wordpiece,
    "byte-level BPE": tokenizers.byte_pair,
    "unigram": tokenizers.unigram,
}


def docstrings() -> Iterator[str]:
    """Paragraphs of the standard library's docstrings: English that lies on every machine."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # samples of broken files lie there too
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    yield " ".join(paragraph.split())


def race(title: str, contenders: list[Contender], batches: list[Batch], rounds: int) -> None:
    """Times every contender on all batches and prints the table; ratios are kbert's speed to it."""
    megabytes = sum(batch.megabytes for batch in batches)
    best = dict.fromkeys((name for name, _ in contenders), float("inf"))
    for _ in range(rounds):
        for name, run in contenders:
            start = time.process_time()
            for batch in batches:
                run(batch)
            best[name] = min(best[name], time.process_time() - start)
    base = best[contenders[0][0]]
    print(f"\n{title:31}  MB/s per core  kbert is")
    for name, seconds in best.items():
        print(f"{name:31}  {megabytes / seconds:13.1f}  {seconds / base:7.2f} x", flush=True)


def differing_lines(contenders: list[Contender], batches: list[Batch]) -> None:
    def rows(run: Callable, batch: Batch) -> list:
        out = run(batch)
        return out.to_list() if isinstance(out, tf.RaggedTensor) else out

    (own, first), *others = contenders
    for name, run in others:
        if name.startswith(own):  # with other settings, so with other ids
            continue
        different = sum(
            a != b
            for batch in batches
            for a, b in zip(rows(first, batch), rows(run, batch), strict=True)
        )
        print(f"lines with other ids than kbert's: {different:,} by {name}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizing", description=__doc__)
    parser.add_argument("--text", type=Path, help="UTF-8 file (default: docstrings)")
    parser.add_argument("--vocabulary", type=Path, help="vocab.txt (default: trained on the text)")
    parser.add_argument("--byte_pair", type=Path, help="folder of vocab.json, merges.txt; likewise")
    parser.add_argument("--unigram", type=Path, help="SentencePiece .model; likewise")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--vocabulary_size", type=int, default=8000, help="of what is trained")
    parser.add_argument("--megabytes", type=float, default=4, help="of the text, at most")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines, size = [], 0
    for line in options.text.read_text("utf-8").split("\n") if options.text else docstrings():
        size += len(line.encode())
        if size > options.megabytes * 1e6:
            break
        lines.append(line)
    batches = [Batch(lines[i : i + BATCH]) for i in range(0, len(lines), BATCH)]
    print(f"{len(lines):,} lines, {sum(batch.megabytes for batch in batches):.1f} MB")

    given = dict(zip(KINDS, (options.vocabulary, options.byte_pair, options.unigram), strict=True))
    trainers = tokenizers.training(options.vocabulary_size)
    for kind in options.kinds:
        race(f"{kind}: training", trainers[kind], [Batch(lines)], 1)
        field = KINDS[kind](lines, options.vocabulary_size, given[kind])
        race(f"{kind}: ids", field.ids, batches, options.rounds)
        differing_lines(field.ids, batches)
        race(f"{kind}: ids and offsets", field.offsets, batches, options.rounds)


if __name__ == "__main__":
    main()
