"""What the training step costs beside the bare minimum, and the optimizers beside Keras'.

The bare step is forward, backward and one fused kernel a variable: no clipping, no decay, no
metrics, no sums over replicas. Times are medians of runs taken in turn.
"""

import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import kbert
from kbert.training.optimization.optimizers import AdamW, Lamb

ROWS, LENGTH, MASKS, RUNS = 16, 128, 20, 9


def batch(vocabulary_size: int) -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(0)

    def whole(high, columns):
        return tf.constant(rng.integers(1, high, (ROWS, columns)), tf.int32)

    return {
        "token_ids": whole(vocabulary_size, LENGTH),
        "segment_ids": whole(2, LENGTH),
        "padding_mask": tf.ones((ROWS, LENGTH), tf.int32),
        "mask_positions": whole(LENGTH, MASKS),
        "mask_ids": whole(vocabulary_size, MASKS),
        "mask_weights": tf.ones((ROWS, MASKS)),
        "next_sentence_labels": whole(2, 1)[:, 0],
        "position": tf.zeros((ROWS, 3), tf.int32),
    }


def make_task(optimizer=None, **settings) -> kbert.tasks.Pretraining:
    keras.utils.set_random_seed(0)
    config = kbert.family("bert-small")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = kbert.WordPieceTokenizer(
        vocabulary + [f"w{i}" for i in range(config.vocabulary_size - len(vocabulary))]
    )
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    task.compile(optimizer or AdamW(1e-4), **settings)
    return task


def bare_step(task, data):
    """The least that trains at all."""
    weights = [v.value for v in task.trainable_variables]
    slots = [[tf.Variable(tf.zeros_like(w)) for w in weights] for _ in range(2)]

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            losses, _ = task.loss_terms(data, training=True)
            loss = sum(n / d for n, d in losses.values())
        gradients = tape.gradient(loss, weights)
        for w, m, v, g in zip(weights, *slots, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=w.handle, m=m.handle, v=v.handle, beta1_power=0.0, beta2_power=0.0,
                lr=1e-4, beta1=0.9, beta2=0.999, epsilon=1e-6, grad=tf.convert_to_tensor(g),
            )  # fmt: skip
        return loss

    return step


def fit_step(task, data):
    """What `fit` calls."""
    task.prepare(tf.nest.map_structure(tf.TensorSpec.from_tensor, data))
    function = task.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors(data).repeat().prefetch(2))
    return lambda: function(batches)["loss"]


def medians(functions: dict) -> dict[str, float]:
    times = {name: [] for name in functions}
    for run in range(RUNS + 2):
        for name, function in functions.items():
            start = time.perf_counter()
            keras.tree.map_structure(np.asarray, function())
            if run >= 2:  # traced, and warm
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, functions: dict) -> None:
    found = medians(functions)
    first = next(iter(found.values()))
    print(f"{title:44}     ms  ratio")
    for name, seconds in found.items():
        print(f"  {name:42} {seconds * 1000:6.0f}  {seconds / first:5.2f}")


def steps() -> None:
    data = batch(kbert.family("bert-small").vocabulary_size)
    functions = {"bare tf.function, fused Adam": bare_step(make_task(), data)}
    functions["fit, AdamW"] = fit_step(make_task(), data)
    functions["fit, AdamW, 4 micro-batches"] = fit_step(make_task(micro_batches=4), data)
    functions["fit, Lamb"] = fit_step(make_task(Lamb(1e-4)), data)
    functions["fit, keras AdamW"] = fit_step(make_task(keras.optimizers.AdamW(1e-4)), data)
    table(f"step of bert-small, {ROWS} x {LENGTH}", functions)


def updates() -> None:
    encoder = kbert.Encoder(kbert.family("bert-base-uncased"))
    weights = encoder.trainable_variables
    gradients = [tf.random.normal(v.shape, stddev=1e-3) for v in weights]

    def update(optimizer):
        optimizer.build(weights)

        @tf.function(autograph=False)
        def run():
            optimizer.apply(gradients)
            return optimizer.iterations.value

        return run

    table(
        f"update alone, {encoder.count_params() / 1e6:.0f} M parameters",
        {
            "kbert AdamW": update(AdamW(1e-4)),
            "keras AdamW": update(keras.optimizers.AdamW(1e-4)),
            "kbert Lamb": update(Lamb(1e-4)),
            "keras Lamb": update(keras.optimizers.Lamb(1e-4)),
        },
    )


if __name__ == "__main__":
    steps()
    updates()
