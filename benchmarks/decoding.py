"""Decoding at GPT-2's size: kbert with its cache, without one, beside KerasHub and transformers.

Random weights of the same sizes (124 M), a prompt of 32 tokens, 128 new ones, greedy, no stop
token, batches of 1 and of 8. Without a cache every step reads all tokens so far again. KerasHub
compiles by its own default; transformers runs in PyTorch with its cache. Beside them a translator's
size: beams of 4, 32 sources.

Every contender runs in turn, round after round, so that a busy machine is busy for all. Medians;
ratios against the first row, of wall time and of processor time (which other programs on the
machine hardly change). "First" is the first call's seconds, tracing and compiling included.
`python -m benchmarks.decoding [--rounds 3] [--batches 1 8] [--only kbert keras_hub …]`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import keras
import numpy as np
import tensorflow as tf

import kbert
from benchmarks._experiments import print_table
from kbert.decoding import Beam, Greedy, decode

PROMPT, NEW = 32, 128
VOCABULARY, WIDTH, LAYERS, HEADS = 50257, 768, 12, 12
SOURCE, SOURCES, TARGET, PIECES = 24, 32, 32, 8000
TRANSLATOR = {"vocabulary_size": PIECES, "num_layers": 3}


def prompts(batch: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, VOCABULARY, (batch, PROMPT)).astype("int32")


def kbert_contender(model: kbert.Decoder, **compiled) -> Callable:
    @tf.function(**compiled)
    def run(ids):
        logits, cache = model.prefill(ids, None, NEW)
        limits = {"max_new_tokens": NEW, "stop_ids": []}
        return decode(model.step, logits, cache, method=Greedy(), **limits).token_ids

    return lambda batch: run(tf.constant(prompts(batch))).numpy().shape[2]


def without_cache(model: kbert.Decoder) -> Callable:
    @tf.function
    def run(ids):
        batch = ids.shape[0]

        def advance(t, ids):
            last = model(ids)["sequence"][:, -1]
            token = tf.argmax(model.logits(last), axis=-1, output_type=tf.int32)
            return t + 1, tf.concat([ids, token[:, None]], axis=1)

        shapes = (tf.TensorShape([]), tf.TensorShape([batch, None]))
        return tf.while_loop(lambda t, ids: t < NEW, advance, (0, ids), shapes)[1]

    return lambda batch: run(tf.constant(prompts(batch))).numpy().shape[1] - PROMPT


def keras_hub_contender() -> Callable:
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        intermediate_dim=4 * WIDTH,
        max_sequence_length=1024,
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy")

    def run(batch):
        ids = np.pad(prompts(batch), ((0, 0), (0, NEW)))
        mask = np.broadcast_to(np.arange(PROMPT + NEW) < PROMPT, ids.shape).astype("int32")
        inputs = {"token_ids": ids, "padding_mask": mask}
        return model.generate(inputs, stop_token_ids=None)["token_ids"].shape[1] - PROMPT

    return run


def transformers_contender() -> Callable:
    import torch
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    settings = {
        "max_new_tokens": NEW,
        "min_new_tokens": NEW,
        "do_sample": False,
        "use_cache": True,
        "pad_token_id": 0,
    }

    def run(batch):
        ids = torch.tensor(prompts(batch)).long()
        with torch.no_grad():
            found = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return found.shape[1] - PROMPT

    return run


def translator_contender(**compiled) -> Callable:
    config = kbert.family("transformer-small").replace(**TRANSLATOR)
    model = kbert.Seq2Seq(config)
    rng = np.random.default_rng(0)
    ids = rng.integers(1, PIECES, (SOURCES, SOURCE)).astype("int32")
    lengths = rng.integers(SOURCE // 2, SOURCE + 1, (SOURCES, 1))
    mask = (np.arange(SOURCE) < lengths).astype("int32")

    @tf.function(**compiled)
    def run(ids, mask):
        start = tf.ones_like(ids[:, 0])
        logits, cache = model.prefill(ids, mask, TARGET, start)
        limits = {"max_new_tokens": TARGET, "stop_ids": []}
        return decode(model.step, logits, cache, method=Beam(), **limits).token_ids

    return lambda _: run(tf.constant(ids), tf.constant(mask)).numpy().shape[2]


def measure(contenders: dict[str, Callable], batch: int, rounds: int) -> dict[str, tuple]:
    """name -> medians of wall and processor seconds of a step, and seconds of the first call."""
    times: dict[str, list] = {name: [] for name in contenders}
    first: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            length = run(batch)
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
            if turn:
                times[name].append((spent[0] / length, spent[1] / length))
            else:
                first[name] = spent[0]
    return {
        name: (*(statistics.median(column) for column in zip(*spent, strict=True)), first[name])
        for name, spent in times.items()
    }


def report(title: str, rows: int, found: dict[str, tuple], base: str) -> None:
    print(title)
    base_wall, base_cpu, _ = found[base]
    print_table(
        ("", "tokens/s", "ms a step", "wall ratio", "CPU ratio", "first"),
        [
            (
                name,
                f"{rows / wall:.1f}",
                f"{wall * 1e3:.1f}",
                f"{wall / base_wall:.2f}",
                f"{cpu / base_cpu:.2f}",
                f"{first:.1f}",
            )
            for name, (wall, cpu, first) in found.items()
        ],
    )


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.decoding", description=__doc__)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    flags.add_argument("--only", nargs="+", help="contenders whose name holds one of these")
    options = flags.parse_args()
    keras.utils.set_random_seed(0)
    model = kbert.Decoder(kbert.family("gpt2"))
    makers = {
        "kbert, XLA": lambda: kbert_contender(model, jit_compile=True),
        "kbert, graph": lambda: kbert_contender(model),
        "kbert without a cache": lambda: without_cache(model),
        "KerasHub GPT2CausalLM": keras_hub_contender,
        "transformers GPT2LMHeadModel (torch)": transformers_contender,
    }
    wanted = options.only or [""]
    chosen = {name: make() for name, make in makers.items() if any(part in name for part in wanted)}
    for batch in options.batches:
        found = measure(chosen, batch, options.rounds)
        title = f"gpt2, batch {batch}, prompt of {PROMPT}, {NEW} new tokens, greedy"
        report(title, batch, found, next(iter(found)))
    if any(part in "translator" for part in wanted):
        ways = {
            "translator, XLA": translator_contender(jit_compile=True),
            "translator, graph": translator_contender(),
        }
        found = measure(ways, 0, options.rounds)
        title = f"{SOURCES} sources of {SOURCE}, {TARGET} new tokens, beams of 4"
        report(title, SOURCES, found, next(iter(found)))


if __name__ == "__main__":
    main()
