"""Adapters against training all weights: MiniLM-L6-H384 on four tasks of GLUE.

For each way the task's metric on its dev set, the share of weights that are trained, seconds of
training, and the size of what is kept for the task. Every way has a learning rate for all tasks.

`python -m benchmarks.adapters [sst2 rte cola stsb] --data FOLDER [--ways lora houlsby …]
[--rows 4000] [--epochs 3] [--seeds 0 1 2]`

`--data` holds `glue/` (see `benchmarks.fine_tuning`); `--rows` trains on the first so many alone.
Results are kept under --output_dir: a stopped benchmark goes on.
"""

import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import GLUE, add_data
from benchmarks._experiments import mean, print_table
from benchmarks._fine_tuning_runs import RUNS, make_job
from kbert.data import Table
from kbert.edit import adapters

TASKS = ("sst2", "rte", "cola", "stsb")
# Every kernel of a block, and the pooler, which MiniLM's training on sentences has passed over.
EVERY = "targets=query+key+value+attention_output+intermediate+output,pooler=true"
# Name -> what is added, and the learning rate; sizes are such that up to 4 % of MiniLM are trained.
WAYS: dict[str, tuple[str | None, float]] = {
    "all weights": (None, 5e-5),
    "houlsby": ("houlsby:size=64,pooler=true", 1e-3),
    "pfeiffer": ("pfeiffer:size=48", 1e-3),
    "lora": (f"lora:rank=16,alpha=32,{EVERY}", 1e-3),
    "bitfit": ("bitfit", 2e-3),
    "prefix": ("prefix:length=20", 1e-2),
    "head": (None, 1e-3),
}


def train(name: str, way: str, flags: Any, seed: int) -> dict[str, float]:
    """One run."""
    job = make_job(name, Path(flags.data), None, seed=seed, bfloat16=False)
    kind = getattr(kbert.tasks, job.kind)
    settings = {"labels": job.labels} if job.labels else {}
    task = kind.from_preset(
        job.weights, new_head=True, max_length=job.settings["max_length"], **settings
    )
    adapter, rate = WAYS[way]
    if adapter is not None:
        adapters.insert(task, adapters.parse(adapter), "task")
    elif way == "head":
        kbert.training.freeze(task, "encoder/*")
    count = sum(weight.shape.num_elements() for weight in task.trainable_weights)
    table = Table({key: column[: flags.rows] for key, column in job.train.items()})
    began = time.perf_counter()
    options = {"epochs": flags.epochs, "batch_size": job.settings["batch_size"], "seed": seed}
    task.fit(table, learning_rate=rate, verbose=0, **options)
    seconds = time.perf_counter() - began
    values = task.evaluate(Table(job.dev), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        if adapter is None:
            task.save_to_preset(folder)
        else:
            adapters.save(task, folder)
        size = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    metric = values[RUNS[name].metric]
    share = 100 * count / task.count_params()
    return {"metric": 100 * metric, "seconds": seconds, "share": share, "megabytes": size / 1e6}


def main() -> None:
    parser = experiments.parser("adapters", __doc__)
    add_data(parser, GLUE)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rows", type=int, help="of each training set (default: all)")
    parser.add_argument("--epochs", type=int, default=3)
    flags = parser.parse_args()
    experiments.set_threads(flags.threads)
    folder = experiments.results_folder(flags.output_dir, rows=flags.rows, epochs=flags.epochs)
    tasks = flags.names or TASKS
    rows = []
    for way in flags.ways:
        found = {}
        for name in tasks:
            found[name] = [
                experiments.once(
                    folder / "results",
                    {"name": f"{name}-{way}", "seed": seed, "way": WAYS[way]},
                    functools.partial(train, name, way, flags, seed),
                )
                for seed in flags.seeds
            ]
        every = [result for results in found.values() for result in results]
        rows.append(
            (
                way,
                f"{every[0]['share']:.2f} %",
                *(mean(results, "metric", ".1f") for results in found.values()),
                f"{statistics.mean(r['metric'] for r in every):.1f}",
                f"{statistics.mean(r['seconds'] for r in every):.0f}",
                f"{every[0]['megabytes']:.2f}",
            )
        )
    header = ("trained", "weights", *(f"{x}, {RUNS[x].metric}" for x in tasks))
    print_table((*header, "mean", "seconds", "MB"), rows)


if __name__ == "__main__":
    main()
