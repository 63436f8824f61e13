"""Attention within windows on long rows: time and memory beside attention to every token.

Six layers of ModernBERT-base's width, one row of 512 to 4,096 tokens, float32, the encoder alone;
a step is forward and backward with the gradient of every weight. "windows" is 128 tokens in every
layer, "ModernBERT" its pattern, "global" no window; "transformers" is its ModernBERT on torch with
scaled-dot-product attention. Contenders run in turn, round after round; medians. Memory is what the
process of one contender grew by at its peak, from before the first step, in a process of its own.

`python -m benchmarks.windows [--lengths 512,1024,2048,4096] [--rounds 3]`
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import numpy as np

LAYERS, VOCABULARY = 6, 1000
PATTERNS = {"windows": (128,), "ModernBERT": ("global", 128, 128), "global": ("global",)}
CONTENDERS = (*PATTERNS, "transformers")


def token_ids(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, VOCABULARY, (1, length)).astype("int32")


def kbert_steps(name: str, length: int) -> tuple[Callable, Callable]:
    import tensorflow as tf

    import kbert

    config = kbert.family("answerdotai/ModernBERT-base").replace(
        num_layers=LAYERS,
        vocabulary_size=VOCABULARY,
        attention_pattern=PATTERNS[name],
        local_rotary_base=None,
    )
    encoder = kbert.Encoder(config)
    inputs = {"token_ids": tf.constant(token_ids(length))}
    variables = [v.value for v in encoder.trainable_variables]

    @tf.function
    def forward() -> tf.Tensor:
        return tf.reduce_sum(encoder(inputs)["sequence"])

    @tf.function
    def both() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encoder(inputs, training=True)["sequence"] ** 2)
        gradients = tape.gradient(loss, variables)
        return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(g)[:1]) for g in gradients])

    return lambda: float(forward()), lambda: float(both())


def torch_steps(length: int) -> tuple[Callable, Callable]:
    import torch
    import transformers

    ids = {f"{role}_token_id": 0 for role in ("pad", "bos", "eos", "cls", "sep")}
    config = transformers.ModernBertConfig(
        num_hidden_layers=LAYERS, vocab_size=VOCABULARY, attn_implementation="sdpa", **ids
    )
    model = transformers.ModernBertModel(config)
    inputs = torch.tensor(token_ids(length)).long()

    def forward() -> None:
        with torch.no_grad():
            model.eval()(inputs)

    def both() -> None:
        model.zero_grad(set_to_none=True)
        model.train()(inputs).last_hidden_state.square().sum().backward()

    return forward, both


def steps(name: str, length: int) -> tuple[Callable, Callable]:
    return torch_steps(length) if name == "transformers" else kbert_steps(name, length)


def timed(run: Callable) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def status(key: str) -> int:
    """MiB that /proc has of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) >> 10


def measure_memory(name: str, length: int) -> None:
    _, both = steps(name, length)
    before = status("VmRSS")
    both()
    both()
    print(status("VmHWM") - before)


def peak(name: str, length: int) -> int | None:
    """MiB; None where the system ended the process."""
    command = [sys.executable, "-m", "benchmarks.windows", "--memory", name, "--lengths"]
    run = subprocess.run([*command, str(length)], capture_output=True, text=True)
    if run.returncode == -9:
        return None
    run.check_returncode()
    return int(run.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument("--lengths", default="512,1024,2048,4096", help="tokens of the rows")
    parser.add_argument("--rounds", type=int, default=3, help="of each contender, taken in turn")
    parser.add_argument("--memory", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    if options.memory:
        measure_memory(options.memory, lengths[0])
        return
    print(f"{'tokens':>6}  {'contender':13}{'forward':>10}{'step':>10}{'memory':>10}")
    for length in lengths:
        # Before this process holds anything of that length itself.
        peaks = {name: peak(name, length) for name in CONTENDERS}
        fitting = [name for name in CONTENDERS if peaks[name] is not None]
        made = {name: steps(name, length) for name in fitting}
        for run in (run for runs in made.values() for run in runs):
            run()  # traced and warm
        times = {name: ([], []) for name in fitting}
        for _ in range(options.rounds):
            for name, runs in made.items():
                for run, found in zip(runs, times[name], strict=True):
                    found.append(timed(run))
        del made
        for name in CONTENDERS:
            cells = ["", "", "too much"]
            if name in times:
                medians = (statistics.median(found) for found in times[name])
                cells = [*(f"{1000 * x:,.0f} ms" for x in medians), f"{peaks[name]:,} MiB"]
            print(f"{length:6,}  {name:13}{''.join(f'{x:>10}' for x in cells)}", flush=True)


if __name__ == "__main__":
    main()
