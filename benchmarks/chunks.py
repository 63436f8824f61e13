"""Scores and logits computed as a whole and in chunks: time and memory of a training step.

`attention`: one Transformer block of BERT-base's width on one long sequence, with dropout.
`losses`: the cross entropy of so many tokens over GPT's width and 37,000 entries, with the
gradients of the hidden states and of the token table.
`masked`: a pretraining step, without the update, of four layers of width 256 with XLM-R's 250,002
entries, on 16 rows of so many tokens of which 15 % are predicted.

Forward and backward, in a graph. Every measurement is a process of its own, whole and chunks in
turn, round after round. A chunk has so many queries or predicted tokens.
Seconds are CPU seconds of all threads, the fastest of three steps, then
the median of the rounds; memory is the peak above that of the loaded process, the highest of the
rounds. `python -m benchmarks.chunks attention|losses|masked [--rounds 3]
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = 3
WIDTH, ENTRIES = 768, 37_000
MASKED_ROWS, XLMR_ENTRIES = 16, 250_002


def attention(length: int, size: int, dtype: str) -> tuple[Callable, Any]:
    """A step of a block, and its input; a size of 0 = whole scores."""
    import numpy as np
    import tensorflow as tf

    from kbert.layers import (
        Block,
        Dropout,
        FeedForward,
        LayerNorm,
        SelfAttention,
        chunk_attention_from,
        chunked_attention,
    )

    chunked_attention.CHUNK_SIZE = size
    chunk_attention_from(1 if size else None)
    options = {"dtype": dtype}
    block = Block(
        SelfAttention(12, dropout=0.1, **options),
        FeedForward(3072, activation="gelu", **options),
        Dropout(0.1, **options),
        attention_norm=LayerNorm(1e-12, name="attention_norm", **options),
        feed_forward_norm=LayerNorm(1e-12, name="feed_forward_norm", **options),
        **options,
    )
    block.build((None, None, WIDTH))
    weights = [weight.value for weight in block.trainable_weights]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.cast(block(x, training=True)[0], tf.float32) ** 2)
        return total, tape.gradient(total, [x, *weights])

    x = np.random.default_rng(0).normal(size=(1, length, WIDTH))
    return step, tf.constant(x, tf.float32)


def losses(length: int, size: int, dtype: str) -> tuple[Callable, Any]:
    """A step of the loss of tokens, and their hidden states; a size of 0 = all logits."""
    import numpy as np
    import tensorflow as tf

    from kbert.layers.token_embeddings import TokenOutput
    from kbert.tasks.token_losses import token_losses

    set_chunk(size or length)
    rng = np.random.default_rng(0)
    table = tf.Variable(rng.normal(0, 0.02, (ENTRIES, WIDTH)), dtype=tf.float32)
    labels = tf.constant(rng.integers(0, ENTRIES, (1, length)), tf.int32)
    weights = tf.ones((1, length))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = token_losses(TokenOutput(x, table), labels, weights, training=True)
            total = found.smoothed[0] / found.smoothed[1]
        return total, found.accuracy()[0], tape.gradient(total, [x, table])

    return step, tf.cast(tf.constant(rng.normal(size=(1, length, WIDTH))), dtype)


def masked(length: int, size: int, dtype: str) -> tuple[Callable, Any]:
    """A step of masked-LM pretraining, and its token ids; a size of 0 = all logits."""
    import numpy as np
    import tensorflow as tf

    import kbert

    places = -(-15 * length // 100)
    set_chunk(size or MASKED_ROWS * places)
    config = kbert.EncoderConfig(
        **{"vocabulary_size": XLMR_ENTRIES, "hidden_size": 256, "num_layers": 4, "num_heads": 4},
        **{"intermediate_size": 1024, "max_positions": length, "pooler_activation": None},
    )
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    encoder = kbert.Encoder(config, dtype=dtype)
    task = kbert.tasks.Pretraining(encoder, tokenizer, next_sentence=False)
    weights = [weight.value for weight in task.trainable_weights]
    rng = np.random.default_rng(0)
    positions = rng.permuted(np.tile(np.arange(length), (MASKED_ROWS, 1)), axis=1)
    batch = {
        "padding_mask": tf.ones((MASKED_ROWS, length), tf.int32),
        "mask_positions": tf.constant(positions[:, :places], tf.int32),
        "mask_ids": tf.constant(rng.integers(0, XLMR_ENTRIES, (MASKED_ROWS, places)), tf.int32),
        "mask_weights": tf.ones((MASKED_ROWS, places)),
    }

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            losses, metrics = task.loss_terms({**batch, "token_ids": ids}, training=True)
            total = losses["mlm_loss"][0] / losses["mlm_loss"][1]
        gradients = tape.gradient(total, weights)
        return total, metrics["mlm_accuracy"][0], list(map(tf.convert_to_tensor, gradients))

    return step, tf.constant(rng.integers(5, XLMR_ENTRIES, (MASKED_ROWS, length)), tf.int32)


def set_chunk(tokens: int) -> None:
    """Sets the most tokens whose logits are computed together."""
    from kbert.layers import token_embeddings

    token_embeddings.MAX_LOGITS, token_embeddings.MIN_TOKENS = 0, tokens


PARTS = {"attention": attention, "losses": losses, "masked": masked}


def measure(part: str, length: int, size: int, dtype: str) -> dict[str, float]:
    """CPU seconds of a step, and MiB of its peak."""
    step, x = PARTS[part](length, size, dtype)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    loaded = pages * resource.getpagesize() / 1024
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
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.part, *options.one, options.dtype)))
        return
    print(f"{'tokens':>6} {'chunk':>6} {'CPU s':>7} {'ratio':>6} {'MiB':>6} {'ratio':>6}")
    for length in options.lengths:
        sizes = [0, *options.sizes]
        found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
        for _ in range(options.rounds):
            for size in sizes:
                command = [sys.executable, "-m", "benchmarks.chunks", options.part]
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
