"""Tables larger than memory: rows written to shards and read for an epoch, and the memory it takes.

Short texts and their labels, made on the fly, in a fresh process for each number of rows; with
`--steps`, also updates of a tiny model. Peak memory must not grow with the rows.
`python -m benchmarks.stored_rows [--rows 100000 1000000 10000000] [--steps 200]`.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROWS = (100_000, 1_000_000)
PART_ROWS = 4096
WORDS = [f"w{number}" for number in range(2000)]


def parts(rows: int) -> Iterator:
    """Texts of 4 to 16 words, the same each time."""
    from kbert.data import Table

    for begin in range(0, rows, PART_ROWS):
        draw = np.random.default_rng(begin)
        count = min(PART_ROWS, rows - begin)
        ends = np.cumsum(draw.integers(4, 17, count))
        words = [WORDS[i] for i in draw.integers(0, len(WORDS), ends[-1])]
        starts = [0, *ends[:-1]]
        texts = [" ".join(words[a:b]) for a, b in zip(starts, ends, strict=True)]
        yield Table({"text": texts, "label": draw.integers(0, 2, count).tolist()}, start=begin)


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(count: int, steps: int) -> None:
    """One row of the table, printed by a process of its own."""
    import kbert

    config = kbert.family("bert-tiny").replace(vocabulary_size=len(WORDS) + 5)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = kbert.WordPieceTokenizer([*special, *WORDS])
    task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, labels=2, max_length=32)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        rows = kbert.tasks.prepare_rows(task, parts(count), folder)
        written, after_writing = time.perf_counter() - begun, peak()
        size = sum(file.stat().st_size for file in Path(folder).iterdir())

        begun, seen, total = time.perf_counter(), 0, 0
        for batch in task.batches(rows, batch_size=128, epochs=1).as_numpy_iterator():
            weights = batch["label_weights"]
            seen += int(weights.sum())
            total += int(batch["rows"][weights > 0].sum(dtype=np.int64))
        read = time.perf_counter() - begun
        assert (seen, total) == (count, count * (count - 1) // 2), "every row once"
        found = [f"{count:,}", f"{size / 1e6:.0f}", f"{count / written:,.0f}"]
        found += [f"{count / read:,.0f}", f"{after_writing:.0f}", f"{peak():.0f}"]
        if steps:
            from kbert.training import AdamW, TrainStep

            task.compile(AdamW(1e-4, weight_decay=0.0))
            TrainStep.fit(task, task.batches(rows, batch_size=128).take(steps), verbose=0)
            found.append(f"{peak():.0f}")
        print(*(f"{text:>17}" for text in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stored_rows", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--steps", type=int, default=0, help="updates of a tiny model")
    chosen = parser.parse_args()
    names = ["rows", "MB disk", "rows/s written", "rows/s read", "MiB after writing"]
    names += ["after an epoch", "after steps"][: 2 if chosen.steps else 1]
    print(*(f"{name:>17}" for name in names), flush=True)
    for count in chosen.rows:
        arguments = ["--measure", str(count), str(chosen.steps)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.stored_rows", *arguments], stderr=subprocess.PIPE
        )
        if done.returncode:
            sys.exit(done.stderr.decode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*map(int, sys.argv[2:]))
    else:
        main()
