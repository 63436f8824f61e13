"""BERT-base forward and forward + backward: kbert beside KerasHub and Hugging Face (torch).

Random weights of the same sizes, batch 8 x 128 tokens, padding and segments in, dropout 0.1 in the
backward runs. Every contender runs in turn, round after round, so that a busy machine is busy for
all. Medians of wall time; ratios against kbert in float32, of wall time and of CPU time (which
other programs on the machine hardly change). "products" are the matrix products of the layers, one
after the other: the time below which nothing falls on this machine.

`python -m benchmarks.model [--rounds 7]`
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import numpy as np
import tensorflow as tf

import kbert
from benchmarks.pretraining_step import products

BATCH, LENGTH, MODEL = 8, 128, "bert-base-uncased"
# Products of a block, times 2 for multiply and add; the embeddings cost nothing beside them.
FLOPS = 12 * (2 * 12 * 768**2 * BATCH * LENGTH + 4 * BATCH * LENGTH**2 * 768)


def features() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    columns = np.broadcast_to(np.arange(LENGTH), (BATCH, LENGTH))
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    return {
        "token_ids": rng.integers(1, 30522, (BATCH, LENGTH)).astype("int32"),
        "segment_ids": (columns >= lengths // 2).astype("int32"),
        "padding_mask": (columns < lengths).astype("int32"),
    }


def tensorflow_contender(make: Callable, output: str) -> tuple[Callable, Callable]:
    model = make()
    inputs = {name: tf.constant(value) for name, value in features().items()}
    variables = [v.value for v in model.trainable_variables]

    @tf.function
    def forward():
        return tf.reduce_sum(tf.cast(model(inputs)[output], tf.float32))

    @tf.function
    def both():
        with tf.GradientTape() as tape:
            out = model(inputs, training=True)[output]
            loss = tf.reduce_sum(tf.square(tf.cast(out, tf.float32)))
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(g)[:1]) for g in gradients])

    return lambda: forward().numpy(), lambda: both().numpy()


def kbert_contender(dtype: str) -> tuple[Callable, Callable]:
    return tensorflow_contender(lambda: kbert.Encoder(kbert.family(MODEL), dtype=dtype), "sequence")


def keras_hub_contender() -> tuple[Callable, Callable]:
    import keras_hub

    def make():
        return keras_hub.models.BertBackbone(
            vocabulary_size=30522,
            num_layers=12,
            num_heads=12,
            hidden_dim=768,
            intermediate_dim=3072,
        )

    return tensorflow_contender(make, "sequence_output")


def torch_contender() -> tuple[Callable, Callable]:
    import torch
    import transformers

    model = transformers.BertModel(transformers.BertConfig())
    names = ("input_ids", "token_type_ids", "attention_mask")
    inputs = dict(zip(names, (torch.tensor(v).long() for v in features().values()), strict=True))

    def forward():
        model.eval()
        with torch.no_grad():
            return model(**inputs).last_hidden_state.sum().item()

    def both():
        model.train()
        model.zero_grad()
        loss = model(**inputs).last_hidden_state.square().sum()
        loss.backward()
        return loss.item()

    return forward, both


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    contenders = {
        "kbert float32": kbert_contender("float32"),
        "kbert mixed_bfloat16": kbert_contender("mixed_bfloat16"),
        "KerasHub BertBackbone float32": keras_hub_contender(),
        "transformers BertModel (torch) float32": torch_contender(),
        **{
            f"products {dtype}": (
                products(dtype, head=False, backward=False),
                products(dtype, head=False),
            )
            for dtype in ("float32", "bfloat16")
        },
    }
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    entries = [(name, i, run) for name, runs in contenders.items() for i, run in enumerate(runs)]
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(entries)  # nobody always runs behind the same neighbour
        for name, i, run in entries:
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn:  # the first round traces and warms up
                times.setdefault((name, i), []).append((wall, cpu))
    medians = {
        k: [statistics.median(column) for column in zip(*v, strict=True)] for k, v in times.items()
    }
    print(f"BERT-base, {BATCH} x {LENGTH} tokens")
    for i, what in enumerate(("forward", "forward + backward")):
        print(f"{what:40}{'ms':>8}{'GFLOP/s':>10}{'wall ratio':>12}{'CPU ratio':>12}")
        base = medians["kbert float32", i]
        for name in contenders:
            wall, cpu = medians[name, i]
            speed = FLOPS * (3 if i else 1) / wall / 1e9
            row = f"{wall * 1e3:8.0f}{speed:10.0f}{wall / base[0]:12.2f}{cpu / base[1]:12.2f}"
            print(f"  {name:38}{row}")


if __name__ == "__main__":
    main()
