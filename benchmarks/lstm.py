"""A layer of ELMo's LSTM, forward + backward: kbert beside Keras' RNN and torch.nn.LSTM.

Both directions of one layer with projection, gradients of weights and input, 20 words a row. Keras
and torch run each direction as a recurrence of their own; torch clips nothing, so it does a little
less. Every contender runs in turn, round after round, so that a busy machine is busy for all.
Medians; ratios against Keras' RNN in a graph, of wall time and of CPU time (which other programs
on the machine hardly change). `python -m benchmarks.lstm [--rounds 5] [--sizes 512x4096x128]`.

Shapes: `D` = 2 directions, `B` rows, `T` words, `P` width of the projection, `U` units.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.layers import BidirectionalLSTM

WORDS, CLIP = 20, 3.0
SIZES = ("512x4096x32", "512x4096x128", "128x1024x64", "64x256x64", "16x64x32")  # P, U, B
SHORTEST = 0.1  # seconds: faster calls are repeated
BASE = "keras.layers.RNN"


class ProjectionCell(keras.layers.Layer):
    """TensorFlow 1's LSTMCell with a projection, as one writes it for `keras.layers.RNN`."""

    def __init__(self, units: int, projection_size: int):
        super().__init__()
        self.units = units
        self.state_size = [units, projection_size]
        self.output_size = projection_size

    def build(self, input_shape):
        rows, (units, projected) = input_shape[-1], self.state_size
        self.kernel = self.add_weight(shape=(rows + projected, 4 * units))
        self.bias = self.add_weight(shape=(4 * units,), initializer="zeros")
        self.projection = self.add_weight(shape=(units, projected))

    def call(self, inputs, states):
        cell, hidden = states
        gates = ops.matmul(ops.concatenate([inputs, hidden], axis=-1), self.kernel) + self.bias
        i, j, f, o = ops.split(gates, 4, axis=-1)
        cell = ops.sigmoid(f + 1.0) * cell + ops.sigmoid(i) * ops.tanh(j)
        cell = ops.clip(cell, -CLIP, CLIP)
        hidden = ops.matmul(ops.sigmoid(o) * ops.tanh(cell), self.projection)
        hidden = ops.clip(hidden, -CLIP, CLIP)
        return hidden, [cell, hidden]


def tensorflow_contender(call: Callable, weights: Callable, x, jit_compile: bool) -> Callable:
    """`call` maps (D, B, T, P) to the same; `weights` lists what it used, once it has run."""
    x = tf.constant(x)
    call(x)
    variables = [v.value for v in weights()]

    @tf.function(jit_compile=jit_compile)
    def both():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(call(x)))
        return loss, tape.gradient(loss, [x, *variables])

    return lambda: both()[0].numpy()


def kbert_contender(p, units, x, jit_compile):
    layer = BidirectionalLSTM(units, p, 1)
    return tensorflow_contender(lambda x: layer(x)[0][0], lambda: layer.weights, x, jit_compile)


def keras_contender(p, units, x, jit_compile):
    layers = [keras.layers.RNN(ProjectionCell(units, p), return_sequences=True) for _ in range(2)]
    return tensorflow_contender(
        lambda x: tf.stack([layer(x[d]) for d, layer in enumerate(layers)]),
        lambda: [weight for layer in layers for weight in layer.weights],
        x,
        jit_compile,
    )


def torch_contender(p, units, x):
    import torch

    layers = [torch.nn.LSTM(p, units, proj_size=p, batch_first=True) for _ in range(2)]
    x = torch.tensor(x, requires_grad=True)

    def both():
        for layer in layers:
            layer.zero_grad()
        x.grad = None
        loss = sum(layer(x[d])[0].square().sum() for d, layer in enumerate(layers))
        loss.backward()
        return loss.item()

    return both


def contenders(p: int, units: int, rows: int) -> dict[str, Callable]:
    x = np.random.default_rng(0).normal(size=(2, rows, WORDS, p)).astype("float32")
    found = {
        "kbert": kbert_contender(p, units, x, False),
        "kbert, XLA": kbert_contender(p, units, x, True),
        BASE: keras_contender(p, units, x, False),
        f"{BASE}, XLA": keras_contender(p, units, x, True),
    }
    try:
        found["torch.nn.LSTM"] = torch_contender(p, units, x)
    except ImportError:
        print("(torch is not installed: left out)")
    return found


def medians(functions: dict[str, Callable], rounds: int) -> dict[str, list[float]]:
    """Name -> wall seconds and CPU seconds of one call."""
    times = {name: [] for name in functions}
    repeats = {}
    entries = list(functions.items())
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(entries)  # nobody always runs behind the same neighbour
        for name, run in entries:
            if not turn:  # traces and warms up
                run()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeats.get(name, 1)):
                run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                times[name].append((wall / repeats[name], cpu / repeats[name]))
            else:
                repeats[name] = max(1, round(SHORTEST / wall))
    return {
        name: [statistics.median(column) for column in zip(*pairs, strict=True)]
        for name, pairs in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="PxUxB")
    options = parser.parse_args()
    print(f"One layer, both directions, {WORDS} words a row, forward + backward, float32\n")
    print("| P | U | rows | | ms | GFLOP/s | wall ratio | CPU ratio |")
    print("| ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    for size in options.sizes:
        p, units, rows = map(int, size.split("x"))
        # Two directions; multiply and add; the backward half is two products for each.
        flops = 2 * 2 * 3 * rows * WORDS * (2 * p * 4 * units + units * p)
        found = medians(contenders(p, units, rows), options.rounds)
        for name, (wall, cpu) in found.items():
            speed, ratios = flops / wall / 1e9, (wall / found[BASE][0], cpu / found[BASE][1])
            print(
                f"| {p} | {units} | {rows} | {name} | {wall * 1e3:.1f} | {speed:.0f}"
                f" | {ratios[0]:.2f} | {ratios[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
