"""One task in every runtime: how fast, how large, and what 16 and 8 bits cost.

- `speed`: a classifier of MiniLM-L6's size and one of BERT-base's, with random weights, from text
  to classes: one text at a time, 8, 32, and texts of 128 tokens. Each contender is a process of its
  own; they answer in turns, and each number is the smallest of the rounds, in sentences a second.
  "tokenizers" is the runtime fed by Hugging Face's tokenizers library, and nothing else around it;
  "inside" is the runtime fed by the tokenizer that the export has for it, "one thread" TensorFlow
  with one for each product.
- `quality`: MiniLM-L6 fine-tuned on SST-2, STS-B and SQuAD's sample, its metric in each precision,
  and after fine-tuning for 8 bits (`kbert.edit.quantization`).

`python -m benchmarks.exports [speed] [quality] [--data FOLDER] [--size minilm bert-base]
[--formats savedmodel onnx openvino litert torch]
[--rounds 9] [--rows 8000] [--tasks sst2 stsb squad] [--seeds 0 1 2]`

`--data` holds `glue/` and `squad/` (see `benchmarks.fine_tuning`), which `quality` needs; with it
`speed` takes SST-2's sentences. What is not installed is left out.
"""

import functools
import gc
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import SQUAD, SST2, STSB, add_data
from benchmarks._experiments import mean, print_table
from benchmarks._export_contender import LENGTH
from benchmarks._fine_tuning_runs import RUNS, make_job, weights_folder
from kbert.data import Table
from kbert.edit import quantization
from kbert.export.folder import read_description
from kbert.export.task import TEXTS

SIZES = {"minilm": None, "bert-base": "bert-base-uncased"}  # None: the published MiniLM-L6
BATCHES = (1, 8, 32)
SENTENCES, CLASSES = 96, ("no", "yes")
FORMATS = {
    "savedmodel": ("float32", "bfloat16", "int8"),
    "onnx": ("float32", "int8"),
    "openvino": ("float32", "bfloat16", "int8"),
    "litert": ("float32", "int8"),
}
MODULES = {
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "litert": "ai_edge_litert",
    "torch": "torch",
}
TASKS = ("sst2", "stsb", "squad")
QAT = ", trained for it"


def is_installed(format: str) -> bool:
    return format == "savedmodel" or importlib.util.find_spec(MODULES[format]) is not None


# Speed


class Contender:
    """A process that has a model loaded, and nothing but what that needs."""

    def __init__(self, opener: str, folder: str) -> None:
        command = [sys.executable, "-m", "benchmarks._export_contender", opener, folder]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, batches: list[list[str]]) -> tuple[list[float], float]:
        """Seconds of each batch, and the memory that is held."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(batches) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args)} ended: {self.process.wait()}")
        seconds, memory = json.loads(line)
        return seconds, memory

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def make_task(size: str) -> Any:
    """A classifier that was not trained."""
    options = {"max_length": LENGTH, "new_head": True}
    if SIZES[size] is None:
        return kbert.tasks.TextClassifier.from_preset(weights_folder(), labels=CLASSES, **options)
    tokenizer = kbert.load_tokenizer(weights_folder())
    encoder = kbert.Encoder(kbert.family(SIZES[size]))
    return kbert.tasks.TextClassifier(encoder, tokenizer, CLASSES, max_length=LENGTH)


def write_all(task: Any, folder: Path, formats: Sequence[str]) -> dict[str, tuple[str, str, float]]:
    """Exports in some formats: title -> what opens it, its folder and its megabytes."""
    found: dict[str, tuple[str, str, float]] = {}
    for format, precisions in FORMATS.items():
        for precision in precisions:
            if format not in formats or not is_installed(format):
                continue
            title, path = f"{format} {precision}", folder / f"{format}-{precision}"
            written = task.export(path, format=format, precision=precision)
            kind = "savedmodel" if format == "savedmodel" else "exported"
            found[title] = (kind, written, megabytes(Path(written)))
            if kind == "savedmodel" and precision == "float32":
                found[f"{title}, one thread"] = (f"{kind}, one thread", *found[title][1:])
            elif format != "litert" and kind == "exported":
                found[f"{title}, tokenizers"] = ("bare", written, megabytes(Path(written)))
                if "inside" in read_description(written)["tokenizer"]:
                    found[f"{title}, inside"] = ("inside", written, megabytes(Path(written)))
    if "torch" in formats and is_installed("torch"):
        task.save_to_preset(folder / "torch", format="huggingface")
        size = megabytes(folder / "torch")
        for title in ("torch", "torch bfloat16"):
            found[title] = (title, os.fspath(folder / "torch"), size)
    return found


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def sentences(data: str | None) -> list[str]:
    """Sentences of real lengths, the short ones first, as who batches them sorts them."""
    texts = list(TEXTS) * (SENTENCES // len(TEXTS) + 1)
    if data is not None:
        texts = list(RUNS["sst2"].read(Path(data))[1]["text"])
    step = len(texts) / SENTENCES
    return sorted((texts[int(i * step)] for i in range(SENTENCES)), key=len)


def batched(texts: Sequence[str], size: int) -> list[list[str]]:
    return [list(texts[i : i + size]) for i in range(0, len(texts), size)]


def speed(flags: Any) -> None:
    """Sentences a second, from text to classes."""
    texts = sentences(flags.data)
    long = [" ".join(texts)[i * 40 :] for i in range(32)]  # all of them are cut at 128 tokens
    loads = {f"{n}": batched(texts, n) for n in BATCHES}
    loads |= {"1 x 128": batched(long[:8], 1), "32 x 128": batched(long, 32)}
    for size in flags.size:
        place = Path(tempfile.mkdtemp())
        task = make_task(size)
        written = write_all(task, place, flags.formats)
        del task
        gc.collect()
        contenders = {title: Contender(*made[:2]) for title, made in written.items()}
        times: dict[tuple[str, str], list[list[float]]] = {}
        memory = {}
        for turn in range(flags.rounds + 1):
            for name, batches in loads.items():
                for title, contender in contenders.items():
                    seconds, memory[title] = contender.answer(batches)
                    if turn:  # the first one traces and compiles
                        times.setdefault((title, name), []).append(seconds)
        rows = []
        for title, (_, _, disk) in written.items():
            rates = []
            for name, batches in loads.items():
                best = min(map(sum, times[title, name]))
                rates.append(f"{sum(map(len, batches)) / best:.0f}")
            single = 1e3 * np.concatenate(times[title, "1"])
            latency = (f"{np.percentile(single, q):.1f}" for q in (50, 99))
            rows.append((title, *rates, *latency, f"{memory[title]:.0f}", f"{disk:.0f}"))
        print(f"\n{size}", flush=True)
        header = ("sentences a second", *loads, "ms, p50", "p99", "RSS, MB", "disk, MB")
        print_table(header, rows)
        for contender in contenders.values():
            contender.end()
        shutil.rmtree(place)


# Quality


def measure(name: str, flags: Any, seed: int) -> dict[str, float]:
    """A task's metric in every precision: fine-tuned as usual, and fine-tuned for 8 bits."""
    job = make_job(name, Path(flags.data), None, seed=seed, bfloat16=False)
    kind = getattr(kbert.tasks, job.kind)
    options = {key: job.settings[key] for key in ("max_length", "doc_stride") if job.settings[key]}
    if job.labels:
        options["labels"] = job.labels
    train, dev = (
        Table({key: column[:count] for key, column in columns.items()})
        for columns, count in ((job.train, flags.rows), (job.dev, flags.dev_rows))
    )
    metric = RUNS[name].metric
    found = {}
    for title, changed in (("", lambda task: task), (QAT, quantization.quantization_aware)):
        keras.utils.set_random_seed(seed)
        task = changed(kind.from_preset(job.weights, new_head=True, **options))
        how = {"epochs": flags.epochs, "batch_size": 32, "seed": seed, "verbose": 0}
        task.fit(train, learning_rate=job.settings["learning_rate"], **how)
        found[f"TensorFlow{title}"] = task.evaluate(dev, verbose=0)[metric]
        if not title:
            weights = quantization.rounded(quantization.quantization_aware(task))
            found["savedmodel int8"] = weights.evaluate(dev, verbose=0)[metric]
        for format, precisions in FORMATS.items():
            if format == "savedmodel" or not is_installed(format):
                continue
            for precision in ("int8",) if title else precisions[1:]:
                with tempfile.TemporaryDirectory() as folder:
                    path = task.export(f"{folder}/model", format=format, precision=precision)
                    value = kbert.export.load_exported(path).evaluate(dev)[metric]
                found[f"{format} {precision}{title}"] = value
    percent = 1 if name == "squad" else 100  # its scores are in percent
    return {title: percent * value for title, value in found.items()}


def quality(flags: Any) -> None:
    """What bfloat16 and int8 cost in a task's metric."""
    sizes = {"rows": flags.rows, "dev_rows": flags.dev_rows, "epochs": flags.epochs}
    folder = experiments.results_folder(flags.output_dir, **sizes)
    found = {
        name: [
            experiments.once(
                folder / "results",
                {"name": f"quality-{name}", "seed": seed},
                functools.partial(measure, name, flags, seed),
            )
            for seed in flags.seeds
        ]
        for name in flags.tasks
    }
    rows = []
    for title in found[flags.tasks[0]][0]:
        values = (mean(results, title, ".1f") for results in found.values())
        ratios = [
            statistics.mean(r[title] for r in results)
            / statistics.mean(r["TensorFlow"] for r in results)
            for results in found.values()
        ]
        rows.append((title, *values, f"{100 * (min(ratios) - 1):+.1f} %"))
    print_table(("runs in", *(f"{x}, {RUNS[x].metric}" for x in found), "most lost"), rows)


PARTS = {"speed": speed, "quality": quality}


def main() -> None:
    parser = experiments.parser("exports", __doc__)
    add_data(parser, (*SST2, *STSB, *SQUAD), required=False)
    parser.add_argument("--size", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument(
        "--formats", nargs="+", default=[*FORMATS, "torch"], choices=[*FORMATS, "torch"]
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=8000, help="of each training set")
    parser.add_argument("--dev_rows", type=int, help="of each dev set (default: all)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    flags = parser.parse_args()
    names = flags.names or [name for name in PARTS if name == "speed" or flags.data]
    if set(names) - set(PARTS) or ("quality" in names and not flags.data):
        parser.error(f"names are {', '.join(PARTS)}; quality needs --data. Received: {names}")
    for name in names:
        print(f"\n{name}: {PARTS[name].__doc__}", flush=True)
        PARTS[name](flags)


if __name__ == "__main__":
    main()
