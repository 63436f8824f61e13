"""Run the benchmarks side by side with peers: `python -m benchmarks [name ...]`.

Each benchmark is a module of this folder that prints one table of its own and can be run alone:
`python -m benchmarks.dataset`. They run one after another, each in a fresh process, so that none
inherits another's threads or memory. Those that train for half an hour run where they are named:
`recipes`, `objectives`, `speedrun` and, alone because they need data, `adapters`, `denoising`,
`distillation`, `elmo`, `elmo_tagging`, `embeddings`, `feature_choices`, `fine_tuning`, `gpt`,
`long_documents`, `multi_task`, `pruning`, `static`, `translation`, `word_order`.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# Left out where none is named.
LONG = (
    *("adapters", "denoising", "distillation", "elmo", "elmo_tagging", "embeddings", "fine_tuning"),
    *(
        "feature_choices",
        "gpt",
        "long_documents",
        "multi_task",
        "objectives",
        "pruning",
        "recipes",
        "speedrun",
    ),
    *("static", "translation", "word_order"),
)


def names() -> list[str]:
    return sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def machine() -> str:
    """Processor, cores and memory: a number without its machine says nothing."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (x for x in info.read_text().splitlines() if x.startswith("model name"))
        processor = next(lines, f": {processor}").split(":", 1)[1].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(names())}")
    chosen = parser.parse_args().names or [name for name in names() if name not in LONG]
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no such benchmark; there are {', '.join(names())}. Received: {unknown}")
    print(machine(), flush=True)
    failed = []
    for name in chosen:
        print(f"\n== {name} ==", flush=True)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=HERE.parent)
        print(f"({time.perf_counter() - start:.0f} s)", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
