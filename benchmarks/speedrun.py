"""How good a masked-language model gets in some minutes of one core, one change a row.

Every row is bert-tiny on the same text with the same vocabulary of 4,000 pieces. The clock is the
processor time of the process, so that programs beside it hardly matter. It starts after the first
step, which compiles, and the learning rate follows it, so that a slower machine makes fewer steps
of the same run. The score is bits per byte: what the model needs for a
masked piece of held-out text, 15 % masked whatever it was trained with, one segment a row, over the
bytes of these pieces; a piece that begins a word counts the space before it. Peaks of the learning
rate were found for the first row and, where an optimizer measures otherwise, for that; nothing else
is tuned. Results are kept in --output_dir; a row that is there is not run again.

`python -m benchmarks.speedrun [NAME ...] [--minutes 10] [--seeds 0 1 2] [--text 'novels/*.txt.gz']`
"""

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import kbert
from benchmarks import _experiments as experiments, _measures as measures
from kbert.models import attend_to_neighbours
from kbert.training import AdamW

RATE, WARM_UP, MASKED_SHARE = 2e-3, 0.1, 0.2
Shape = Callable[[float], float]  # of the learning rate: share of the time -> factor


def stable(done: float) -> float:
    """Up over a tenth of the time, then level, down over the last fifth."""
    return min(done / WARM_UP, 1.0, (1 - done) / 0.2)


def triangle(done: float) -> float:
    """The same rise, then down to nothing."""
    return min(done / WARM_UP, (1 - done) / (1 - WARM_UP))


def level(done: float) -> float:
    """For an optimizer that averages by itself."""
    return min(done / WARM_UP, 1.0)


def adamw() -> keras.optimizers.Optimizer:
    return AdamW(RATE, beta_2=0.98)


def muon() -> keras.optimizers.Optimizer:
    # Matrices of layers by Muon, the rest by its Adam.
    return keras.optimizers.Muon(
        1e-2, adam_lr_ratio=0.2, weight_decay=0.01, adam_weight_decay=0.01, exclude_layers=["token"]
    )


class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """Keras', whose own step (3.15) on TensorFlow reads the sequence after it has written it."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        index, step = self._get_variable_index(variable), tf.cast(self.iterations + 1, tf.float32)
        sequence, second_moment = self._momentums[index], self._velocities[index]
        share = 1 - self.beta_1  # of the sequence in the weights; the rest is its average
        average = (variable - share * sequence) / self.beta_1
        second_moment.assign_add((tf.square(gradient) - second_moment) * (1 - self.beta_2))
        corrected = second_moment / (1 - tf.pow(self.beta_2, step))
        moved = sequence - learning_rate * gradient / (tf.sqrt(corrected) + self.epsilon)
        sequence.assign(moved)
        variable.assign(share * moved + self.beta_1 * (average + (moved - average) / step))


def schedule_free() -> keras.optimizers.Optimizer:
    return ScheduleFreeAdamW(RATE, beta_2=0.98, weight_decay=0.01)


# Shares of the time, and what is other in them; as many tokens a batch as the first row has.
SHORT_FIRST = ((0.5, {"sequence_length": 32, "batch_size": 64}), (0.5, {}))
SHORTER_FIRST = (
    (0.3, {"sequence_length": 16, "batch_size": 128}),
    (0.3, {"sequence_length": 32, "batch_size": 64}),
    (0.4, {}),
)
FROM_8 = (
    (0.15, {"sequence_length": 8, "batch_size": 256}),
    (0.25, {"sequence_length": 16, "batch_size": 128}),
    (0.25, {"sequence_length": 32, "batch_size": 64}),
    (0.35, {}),
)
RANDOM = {"start": None}  # BERT's own initial values
# Name -> what differs from the first row.
ROWS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "random_start": RANDOM,
    "random_start_short_first": {**RANDOM, "stages": SHORT_FIRST},
    "random_start_shorter_first": {**RANDOM, "stages": SHORTER_FIRST},
    "random_start_from_8": {**RANDOM, "stages": FROM_8},
    "from_8": {"stages": FROM_8},
    "rotary": {**RANDOM, "config": {"positions": "rotary"}},
    "rotary_from_8": {**RANDOM, "config": {"positions": "rotary"}, "stages": FROM_8},
    "muon": {"optimizer": muon},
    "schedule_free": {"optimizer": schedule_free, "rate": level},
    "triangle": {"rate": triangle},
    "one_segment": {"data": {"segments": "single"}},
    "one_segment_masked_30": {"data": {"segments": "single", "masked_share": 0.3}},
    "packed": {"data": {"pack": True}},
    "masked_15": {"data": {"masked_share": 0.15}},
    "masked_30": {"data": {"masked_share": 0.3}},
    "masked_40": {"data": {"masked_share": 0.4}},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "tied_layers": {"config": {"num_layer_groups": 1}},
    "gated": {"config": {"feed_forward": "gated", "intermediate_size": 344}},  # as many weights
    "no_biases": {"config": {"use_bias": False, "norm": "layer_no_bias"}},
    "pre_norm": {"config": {"block": "pre_norm"}},
    "batch_16_then_64": {"stages": ((0.3, {"batch_size": 16}), (0.7, {"batch_size": 64}))},
}


def make_task(corpus: experiments.Corpus, row: dict[str, Any]) -> kbert.tasks.Pretraining:
    config = experiments.config(corpus.tokenizer, **row.get("config", {}))
    encoder = kbert.Encoder(config, dtype=row.get("dtype", "float32"))
    if start := row.get("start", attend_to_neighbours):
        start(encoder)
    pairs = row.get("data", {}).get("segments", "pairs") == "pairs"
    task = kbert.tasks.Pretraining(encoder, corpus.tokenizer, next_sentence=pairs)
    task.compile(row.get("optimizer", adamw)(), jit_compile=True)
    return task


def race(corpus: experiments.Corpus, row: dict[str, Any], minutes: float, seed: int) -> dict:
    """Trains as long as the clock says; steps, tokens and the score."""
    clock = time.process_time
    task, rate = make_task(corpus, row), row.get("rate", stable)
    peak = float(task.optimizer.learning_rate.numpy())
    begun, losses, tokens = 0.0, [], 0
    for share, changes in row.get("stages", ((1.0, {}),)):
        data = {"masked_share": MASKED_SHARE, **row.get("data", {}), **changes}
        dataset = corpus.batches(**data, seed=seed)
        task.prepare(dataset.element_spec)
        batches, step = iter(dataset), task.make_train_function()
        task.optimizer.learning_rate.assign(0.0)  # moves nothing
        step(iter([next(batches)]))
        start, time_left = clock(), share * minutes * 60
        while (seconds := clock() - start) < time_left:
            done = (begun + seconds) / (minutes * 60)
            task.optimizer.learning_rate.assign(peak * rate(done))
            batch = next(batches)
            tokens += int(tf.reduce_sum(tf.cast(batch["padding_mask"] > 0, tf.int32)))
            losses.append(float(step(iter([batch]))["mlm_loss"]))
        begun += time_left
    if isinstance(task.optimizer, ScheduleFreeAdamW):
        use_averages(task)
    if not math.isfinite(losses[-1]):
        return {"bits": math.nan, "accuracy": 0.0, "steps": len(losses), "tokens": tokens}
    return {**_score(task, corpus), "steps": len(losses), "tokens": tokens}


def _score(task: kbert.tasks.Pretraining, corpus: experiments.Corpus) -> dict[str, float]:
    found = measures.masked_lm_score(task, corpus)
    return {"bits": found["bits"], "accuracy": found["mlm_accuracy"]}


def use_averages(task: kbert.tasks.Pretraining) -> None:
    """Keras' schedule-free trains between a sequence and its average, which is what counts."""
    optimizer = task.optimizer
    for variable, sequence in zip(task.trainable_variables, optimizer._momentums, strict=True):
        average = (variable - (1 - optimizer.beta_1) * sequence) / optimizer.beta_1
        variable.assign(average)


def main() -> None:
    parser = experiments.parser("speedrun", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of training, processor time")
    chosen = parser.parse_args()
    names = chosen.names or list(ROWS)
    if unknown := sorted(set(names) - set(ROWS)):
        parser.error(f"rows are {', '.join(ROWS)}. Received: {', '.join(unknown)}")
    experiments.set_threads(chosen.threads)
    folder = experiments.results_folder(
        chosen.output_dir, text=chosen.text, minutes=chosen.minutes, threads=chosen.threads
    )
    corpus = experiments.prepare(chosen.text, folder / "shards")
    table = []
    # Seed by seed: what disturbs the machine for a while disturbs all rows.
    for seed, name in itertools.product(chosen.seeds, names):
        row = ROWS[name]
        changes = {what: getattr(value, "__name__", value) for what, value in row.items()}
        key = {"name": name, "seed": seed, "row": repr(changes)}
        run = functools.partial(race, corpus, row, chosen.minutes, seed)
        table.append((name, experiments.once(folder, key, run)))
    results = {name: [result for other, result in table if other == name] for name in names}
    experiments.print_table(
        ("row", "bits per byte", "masked pieces found", "steps", "real tokens a second"),
        (
            (
                name,
                experiments.mean(found, "bits"),
                experiments.mean(found, "accuracy"),
                experiments.mean(found, "steps", ".0f"),
                f"{sum(r['tokens'] for r in found) / len(found) / chosen.minutes / 60:,.0f}",
            )
            for name, found in sorted(results.items(), key=lambda item: item[1][0]["bits"])
        ),
    )


if __name__ == "__main__":
    main()
