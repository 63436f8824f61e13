"""A whole step of masked-LM pretraining beside KerasHub, transformers and the bare products.

BERT-base, 8 rows of 128 tokens, 20 masks in each, dropout 0.1; forward, backward, clipping by the
global norm at 1.0 and AdamW with decoupled decay. kbert's step is what `fit` calls, next-sentence
head included. kbert and KerasHub compute logits of the masked tokens alone, transformers those of
every token, as it comes; kbert's last layer computes only the tokens that the heads read.
"products" are the matrix products of the masked-LM step alone, one after the other: the time below
which no step falls on this machine. All run in turn, round after round; medians.

`python -m benchmarks.pretraining_step [--dtype mixed_bfloat16] [--rounds 7] [--plain] [--profile]`:
`--plain` adds kbert with `kbert.layers.fused` switched off, `--profile` prints where the time goes.
"""

import argparse
import collections
import glob
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads must not spin while TF works

import keras
import numpy as np
import tensorflow as tf

import kbert
from kbert.layers import fused
from kbert.training import AdamW
from kbert.training.optimization import optimizers

ROWS, LENGTH, MASKS, MODEL = 8, 128, 20, "bert-base-uncased"
RATE = 1e-4


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    vocabulary = kbert.family(MODEL).vocabulary_size
    return {
        "token_ids": rng.integers(1, vocabulary, (ROWS, LENGTH)).astype("int32"),
        "segment_ids": rng.integers(0, 2, (ROWS, LENGTH)).astype("int32"),
        "padding_mask": np.ones((ROWS, LENGTH), "int32"),
        "mask_positions": rng.integers(1, LENGTH, (ROWS, MASKS)).astype("int32"),
        "mask_ids": rng.integers(1, vocabulary, (ROWS, MASKS)).astype("int32"),
        "mask_weights": np.ones((ROWS, MASKS), "float32"),
        "next_sentence_labels": rng.integers(0, 2, ROWS).astype("int32"),
        "position": np.zeros((ROWS, 3), "int32"),
    }


def kbert_step(dtype: str, fuse: bool = True) -> Callable[[], float]:
    before = fused.MIN_WIDTH, optimizers.MIN_FUSED
    if not fuse:
        fused.MIN_WIDTH = optimizers.MIN_FUSED = 10**12
    config = kbert.family(MODEL)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names += [f"w{i}" for i in range(config.vocabulary_size - len(names))]
    encoder = kbert.Encoder(config, dtype=dtype)
    task = kbert.tasks.Pretraining(encoder, kbert.WordPieceTokenizer(names))
    task.compile(AdamW(RATE))
    data = batch()
    task.prepare({k: tf.TensorSpec(v.shape, v.dtype) for k, v in data.items()})
    function = task.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors(data).repeat().prefetch(2))
    float(function(batches)["loss"])  # traced while the switch is set
    fused.MIN_WIDTH, optimizers.MIN_FUSED = before
    return lambda: float(function(batches)["loss"])


def keras_hub_step(dtype: str) -> Callable[[], float]:
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=12, num_heads=12, hidden_dim=768,
        intermediate_dim=3072, dtype=dtype,
    )  # fmt: skip
    model = keras_hub.models.BertMaskedLM(backbone)
    # The preprocessor is for text; a model without one takes features.
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=0.01, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, weighted_metrics=[], jit_compile=False)
    data = batch()
    x = {k: data[k] for k in ("token_ids", "segment_ids", "padding_mask", "mask_positions")}
    rows = tf.data.Dataset.from_tensors((x, data["mask_ids"], data["mask_weights"])).repeat()
    model.fit(rows, steps_per_epoch=1, verbose=0)
    batches = iter(rows.prefetch(2))
    return lambda: float(model.train_function(batches)["loss"])


def torch_step(dtype: str) -> Callable[[], float]:
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig()).train()
    decayed = [p for n, p in model.named_parameters() if p.ndim > 1]
    plain = [p for n, p in model.named_parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    data = batch()
    labels = np.full((ROWS, LENGTH), -100)
    np.put_along_axis(labels, data["mask_positions"], data["mask_ids"], axis=1)
    inputs = {
        "input_ids": torch.tensor(data["token_ids"]).long(),
        "token_type_ids": torch.tensor(data["segment_ids"]).long(),
        "attention_mask": torch.tensor(data["padding_mask"]).long(),
        "labels": torch.tensor(labels).long(),
    }

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "mixed_bfloat16"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def products(dtype: str, *, head: bool = True, backward: bool = True) -> Callable[[], None]:
    """The products of the layers, and of the masked-LM head, each by itself."""
    wide = tf.float32 if dtype == "float32" else tf.bfloat16
    config = kbert.family(MODEL)
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_layers

    def random(*shape: int) -> tf.Tensor:
        return tf.cast(tf.random.normal(shape), wide)

    def dense(rows: int, width: int, units: int) -> Callable:
        x, w, y = random(rows, width), random(width, units), random(rows, units)

        def run() -> list[tf.Tensor]:
            found = [tf.matmul(x, w)]
            if backward:
                found += [tf.matmul(y, w, transpose_b=True), tf.matmul(x, y, transpose_a=True)]
            return found

        return tf.function(run, autograph=False)

    heads = (ROWS, config.num_heads, LENGTH)
    x, scores = random(*heads, hidden // config.num_heads), random(*heads, LENGTH)
    attention = tf.function(
        lambda: [
            *(tf.matmul(x, x, transpose_b=True) for _ in range(2 if backward else 1)),
            *(tf.matmul(scores, x, transpose_a=i > 1) for i in range(4 if backward else 1)),
        ],
        autograph=False,
    )
    tokens = ROWS * LENGTH
    sizes = ((hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden))
    parts = [(dense(tokens, *size), layers) for size in sizes]
    parts.append((attention, layers))
    if head:
        parts.append((dense(ROWS * MASKS, hidden, config.vocabulary_size), 1))

    def run() -> None:
        for function, times in parts:
            for _ in range(times):
                function()

    return run


def medians(functions: dict[str, Callable], rounds: int) -> dict[str, float]:
    times = collections.defaultdict(list)
    for turn in range(rounds + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn > 1:  # traced, and warm
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def profile(step: Callable, steps: int = 2, shown: int = 20) -> None:
    """Milliseconds a step of each kind of operation, summed over threads."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(steps):
            step()
        tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        space = xplane_pb2.XSpace()
        with open(path, "rb") as file:
            space.ParseFromString(file.read())
    spent, counts = collections.Counter(), collections.Counter()
    for plane in space.planes:
        for line in plane.lines if "CPU" in plane.name else ():
            for event in line.events:
                _, _, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
                spent[kind] += event.duration_ps / 1e9 / steps
                counts[kind] += 1
    for kind, milliseconds in spent.most_common(shown):
        print(f"  {kind[:44]:46}{milliseconds:8.1f} ms {counts[kind] // steps:6}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "mixed_bfloat16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    if chosen.profile:
        profile(kbert_step(chosen.dtype))
        return
    functions = {"kbert, fit": kbert_step(chosen.dtype)}
    if chosen.plain:
        functions["kbert, nothing fused"] = kbert_step(chosen.dtype, fuse=False)
    functions["KerasHub, fit"] = keras_hub_step(chosen.dtype)
    functions["transformers on torch"] = torch_step(chosen.dtype)
    functions["products"] = products(chosen.dtype)
    found = medians(functions, chosen.rounds)
    ours, least = found["kbert, fit"], found["products"]
    print(f"masked-LM step of BERT-base, {ROWS} x {LENGTH}, {chosen.dtype}")
    print(f"{'':32}{'ms':>8}{'ratio':>8}{'of the products':>18}")
    for name, seconds in found.items():
        print(f"{name:32}{seconds * 1e3:8.0f}{seconds / ours:8.2f}{least / seconds:18.2f}")


if __name__ == "__main__":
    main()
