"""Tokenizing on one core: kbert beside KerasHub and Hugging Face `tokenizers`, in one run.

Megabytes of UTF-8 a second of processor time, best of some rounds; the contenders take turns, so a
busy machine is busy for all. Same vocabulary, same lines in batches of 1,024: string tensors for
the two that run in TensorFlow's graph, lists of str for the one that runs beside it, and the ids as
each hands them out. `python -m benchmarks.tokenizing [--text FILE] [--vocabulary vocab.txt]`.
"""

import argparse
import ast
import os
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["RAYON_NUM_THREADS"] = "1"

import tensorflow as tf

from kbert.tokenizers import WordPieceTokenizer, read_vocabulary, train_wordpiece

BATCH = 1024
ONE_BATCH = [tf.TensorSpec([None], tf.string)]
Contender = tuple[str, Callable[["Batch"], Any]]


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


class Batch:
    """The same lines as each contender takes them."""

    def __init__(self, lines: list[str]):
        self.lines = lines
        self.tensor = tf.constant(lines)
        self.megabytes = sum(len(line.encode()) for line in lines) / 1e6


def ids_contenders(vocabulary: list[str]) -> list[Contender]:
    import keras_hub
    from tokenizers import BertWordPieceTokenizer

    tokenizer = WordPieceTokenizer(vocabulary)
    hub = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
    hub_graph = tf.function(hub.tokenize, input_signature=ONE_BATCH)
    rust = BertWordPieceTokenizer({piece: i for i, piece in enumerate(vocabulary)})

    def hugging_face(batch: Batch) -> list[list[int]]:
        # BertWordPieceTokenizer's own `encode_batch` also works out offsets.
        rows = rust._tokenizer.encode_batch_fast(batch.lines, add_special_tokens=False)
        return [row.ids for row in rows]

    return [
        ("kbert", lambda batch: tokenizer.encode(batch.tensor)),
        ("KerasHub BertTokenizer", lambda batch: hub_graph(batch.tensor)),
        ("Hugging Face tokenizers", hugging_face),
    ]


def offsets_contenders(vocabulary: list[str]) -> list[Contender]:
    from tokenizers import BertWordPieceTokenizer

    tokenizer = WordPieceTokenizer(vocabulary)
    rust = BertWordPieceTokenizer({piece: i for i, piece in enumerate(vocabulary)})

    def hugging_face(batch: Batch) -> list[tuple]:
        rows = rust.encode_batch(batch.lines, add_special_tokens=False)
        return [(row.ids, row.offsets) for row in rows]

    return [
        ("kbert, characters", lambda b: tokenizer.encode_with_offsets(b.tensor, "character")),
        ("kbert, bytes", lambda b: tokenizer.encode_with_offsets(b.tensor, "byte")),
        ("Hugging Face tokenizers", hugging_face),
    ]


def training_contenders(size: int) -> list[Contender]:
    from tokenizers import BertWordPieceTokenizer

    def hugging_face(batch: Batch) -> None:
        tokenizer = BertWordPieceTokenizer()
        tokenizer.train_from_iterator(iter(batch.lines), size, show_progress=False)

    return [
        ("kbert", lambda batch: train_wordpiece(batch.lines, size)),
        ("Hugging Face tokenizers", hugging_face),
    ]


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
    print(f"\n{title:26}  MB/s per core  kbert is")
    for name, seconds in best.items():
        print(f"{name:26}  {megabytes / seconds:13.1f}  {seconds / base:7.2f} x", flush=True)


def differing_lines(contenders: list[Contender], batches: list[Batch]) -> None:
    def rows(run: Callable, batch: Batch) -> list:
        out = run(batch)
        return out.to_list() if isinstance(out, tf.RaggedTensor) else out

    (_, first), *others = contenders
    for name, run in others:
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
    parser.add_argument("--vocabulary_size", type=int, default=8000, help="of what is trained")
    parser.add_argument("--megabytes", type=float, default=4, help="of the text, at most")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    lines, size = [], 0
    given = options.text.read_text("utf-8").split("\n") if options.text else docstrings()
    for line in given:
        size += len(line.encode())
        if size > options.megabytes * 1e6:
            break
        lines.append(line)
    batches = [Batch(lines[i : i + BATCH]) for i in range(0, len(lines), BATCH)]
    print(f"{len(lines):,} lines, {sum(batch.megabytes for batch in batches):.1f} MB")

    race("training a vocabulary", training_contenders(options.vocabulary_size), [Batch(lines)], 1)
    if options.vocabulary:
        vocabulary = read_vocabulary(options.vocabulary)
    else:
        vocabulary = train_wordpiece(lines, options.vocabulary_size)
    contenders = ids_contenders(vocabulary)
    race("ids", contenders, batches, options.rounds)
    differing_lines(contenders, batches)
    race("ids and offsets", offsets_contenders(vocabulary), batches, options.rounds)


if __name__ == "__main__":
    main()
