"""`prepare_corpus` on English text: MB/s per core, peak memory, bytes on disk per byte of text.

Two corpora of the documentation that lies on this machine, paragraphs drawn into new documents:
40 MB and 400 MB, each in a fresh process with one thread. Memory must not grow with the text.
`python -m benchmarks.prepare [--megabytes 40 400] [--text 'corpus/*.txt.gz']`.
"""

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES_MB = (40, 400)


def write_text(path: Path, paragraphs: list[bytes], megabytes: int) -> None:
    """Documents of 5 to 60 paragraphs, drawn from the text; hardly two are equal."""
    draw = random.Random(0)
    size = 0
    with open(path, "wb") as file:
        while size < megabytes * 1_000_000:
            text = b"\n".join(draw.choices(paragraphs, k=draw.randint(5, 60))) + b"\n\n"
            size += file.write(text)


def measure(text: str, vocabulary: str, out: str) -> None:
    """One row of the table, printed by a process of its own."""
    import tensorflow as tf

    import kbert

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    tokenizer.encode(["the first call traces the graph"])
    wall, cpu = time.perf_counter(), time.process_time()
    corpus = kbert.data.prepare_corpus(text, out, tokenizer)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    size = corpus.counts["text_bytes"]
    stored = sum(file.stat().st_size for file in Path(out).glob("*-of-*"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tokens = sum(split.tokens for split in corpus.splits.values())
    print(
        f"{size / 1e6:8.0f} {tokens / 1e6:8.1f} {size / cpu / 1e6:14.1f} {size / wall / 1e6:10.1f}"
        f" {memory:13.0f} {stored / size:15.3f}",
        flush=True,
    )


def main() -> None:
    from kbert.text import open_sources
    from kbert.tokenizers import save_vocabulary, train_wordpiece

    parser = argparse.ArgumentParser(prog="python -m benchmarks.prepare", description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=SIZES_MB)
    parser.add_argument("--text", default="docs:", help="what documents are drawn from")
    chosen = parser.parse_args()
    texts = [text for source in open_sources(chosen.text) for text in source.documents()]
    paragraphs = [line for text in texts for line in text.split(b"\n")]
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = os.path.join(folder, "vocab.txt")
        save_vocabulary(train_wordpiece(texts, 30_522), vocabulary)
        print("text MB  M tokens  MB/s of CPU  MB/s wall  peak RSS MiB  bytes per byte", flush=True)
        for megabytes in chosen.megabytes:
            text = Path(folder, f"{megabytes}.txt")
            write_text(text, paragraphs, megabytes)
            arguments = ["--measure", str(text), vocabulary, os.path.join(folder, f"{megabytes}")]
            # Its progress is of no interest here, its errors are.
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.prepare", *arguments], stderr=subprocess.PIPE
            )
            if done.returncode:
                sys.exit(re.sub(r".*\r", "", done.stderr.decode()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
    else:
        main()
