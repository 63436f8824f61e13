"""One Transformer block of BERT-base's width on long sequences: whole scores and chunks of queries.

Forward and backward, with dropout, batch 1, in a graph. Every measurement is a process of its own,
whole scores and chunks in turn, round after round. Seconds are CPU seconds of all threads, the
fastest of three steps, then the median of the rounds; memory is the peak above that of the loaded
process, the highest of the rounds. `python -m benchmarks.long_attention [--rounds 3]
[--lengths 512 1024 2048 4096] [--sizes 128 256] [--dtype float32]`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = 3


def measure(length: int, size: int, dtype: str) -> dict[str, float]:
    """CPU seconds of a step, and MiB of its peak; a size of 0 = whole scores."""
    import numpy as np
    import tensorflow as tf

    from kbert.layers import (
        Block,
        Dropout,
        FeedForward,
        LayerNorm,
        SelfAttention,
        chunked_attention,
    )

    chunked_attention.CHUNK_SIZE = size
    SelfAttention.chunk_from = 1 if size else None
    options = {"dtype": dtype}
    block = Block(
        SelfAttention(12, dropout=0.1, **options),
        FeedForward(3072, activation="gelu", **options),
        Dropout(0.1, **options),
        attention_norm=LayerNorm(1e-12, name="attention_norm", **options),
        feed_forward_norm=LayerNorm(1e-12, name="feed_forward_norm", **options),
        **options,
    )
    block.build((None, None, 768))
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, 768)), tf.float32)
    weights = [weight.value for weight in block.trainable_weights]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.cast(block(x, training=True)[0], tf.float32) ** 2)
        return total, tape.gradient(total, [x, *weights])

    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    float(step(x)[0])
    seconds = []
    for _ in range(STEPS):
        begin = time.process_time()
        float(step(x)[0])
        seconds.append(time.process_time() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": min(seconds), "MiB": (peak - loaded) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.dtype)))
        return
    print(f"{'tokens':>6} {'chunk':>6} {'CPU s':>7} {'ratio':>6} {'MiB':>6} {'ratio':>6}")
    for length in options.lengths:
        sizes = [0, *options.sizes]
        found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for _ in range(options.rounds):
            for size in sizes:
                command = [sys.executable, "-m", "benchmarks.long_attention"]
                command += ["--one", str(length), str(size), "--dtype", options.dtype]
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                found[size].append(json.loads(out))
        seconds = {s: statistics.median(x["seconds"] for x in found[s]) for s in sizes}
        peaks = {s: max(x["MiB"] for x in found[s]) for s in sizes}
        for size in sizes:
            print(
                f"{length:6} {size or 'whole':>6} {seconds[size]:7.2f} "
                f"{seconds[size] / seconds[0]:6.2f} {peaks[size]:6.0f} "
                f"{peaks[size] / peaks[0]:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
