"""RTE alone and RTE beside SNLI: what a small task gains from a larger one on the same encoder.

MiniLM-L6, both tasks trained by `kbert.tasks.MultiTask` with annealed sampling, and each of the
ways of sharing: all weights, or the encoder with an adapter ("pal") for each task. RTE's accuracy
on its dev set.

`python -m benchmarks.multi_task --data FOLDER [--epochs 3] [--rows 3000] [--seeds 0 1 2]`

`--data` holds `glue/rte/` and `glue/snli/`; `--rows` takes the first so many of SNLI alone. Results
are kept under --output_dir.
"""

import functools
import time
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import GLUE, add_data
from benchmarks._experiments import mean, print_table
from benchmarks._fine_tuning_runs import make_job, weights_folder
from kbert.data import Table
from kbert.edit import adapters

WAYS = ("RTE alone", "RTE and SNLI", "RTE and SNLI, a PAL each")
RATE, BATCH, LENGTH = 5e-5, 32, 128


def train(way: str, flags: Any, seed: int) -> dict[str, float]:
    """One run."""
    tables = {}
    for name in ("rte",) if way == WAYS[0] else ("rte", "snli"):
        job = make_job(name, Path(flags.data), None, seed=seed, bfloat16=False)
        rows = flags.rows if name == "snli" else None
        data = {column: values[:rows] for column, values in job.train.items()}
        tables[name] = (Table(data), Table(job.dev), job.labels)
    encoder = kbert.Encoder.from_preset(weights_folder())
    tokenizer = kbert.load_tokenizer(weights_folder())
    tasks = {
        name: kbert.tasks.TextClassifier(encoder, tokenizer, labels, max_length=LENGTH)
        for name, (_, _, labels) in tables.items()
    }
    if way == WAYS[2]:
        for name, task in tasks.items():
            adapters.insert(task, adapters.parse("pal"), name)
    multi = kbert.tasks.MultiTask(tasks, train_encoder=True)
    began = time.perf_counter()
    multi.fit(
        {name: data for name, (data, _, _) in tables.items()},
        epochs=flags.epochs,
        batch_size=BATCH,
        learning_rate=RATE,
        seed=seed,
        verbose=0,
    )
    seconds = time.perf_counter() - began
    found = {
        name: 100 * tasks[name].evaluate(dev, verbose=0)["accuracy"]
        for name, (_, dev, _) in tables.items()
    }
    return {**found, "seconds": seconds}


def main() -> None:
    parser = experiments.parser("multi_task", __doc__)
    add_data(parser, GLUE)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, help="of SNLI (default: all)")
    flags = parser.parse_args()
    experiments.set_threads(flags.threads)
    rows = []
    for way in flags.names or WAYS:
        settings = {"name": f"multi {way}", "epochs": flags.epochs}
        if way != WAYS[0] and flags.rows is not None:
            settings["rows"] = flags.rows
        results = [
            experiments.once(
                Path(flags.output_dir) / "results",
                {**settings, "seed": seed},
                functools.partial(train, way, flags, seed),
            )
            for seed in flags.seeds
        ]
        snli = mean(results, "snli", ".1f") if "snli" in results[0] else ""
        rows.append((way, mean(results, "rte", ".1f"), snli, mean(results, "seconds", ".0f")))
    print_table(("MiniLM-L6, dev accuracy", "RTE", "SNLI", "seconds"), rows)


if __name__ == "__main__":
    main()
