"""All tests, part after part; what failed in which of them is said at the end.

    python -m tests.parts -n 2                      # every part, two processes
    python -m tests.parts --parts=jax -n 2 -x       # other arguments are pytest's

TensorFlow gives back little of the memory that graphs and compiled programs took, and in one go a
process grew to 5.8 GB: so its tests run in three parts. On JAX, layers, models and heads run once
more. Most of their time is XLA's, for programs that run once: it does not have to make them fast,
and what it takes longest for runs in `make test-slow`.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILED = re.compile(r"^(?:FAILED|ERROR) .*", re.MULTILINE)


def find_parts() -> dict[str, tuple[list[str], dict[str, str]]]:
    """name -> pytest's arguments, changes of the environment."""
    folders = sorted(f"tests/{x.name}" for x in Path(ROOT, "tests").iterdir() if x.is_dir())
    folders = [x for x in folders if "__" not in x]
    files = sorted(f"tests/{x.name}" for x in Path(ROOT, "tests").glob("test_*.py"))
    thirds: list[list[str]] = [[], [], []]
    for folder in folders:
        thirds[(folder > "tests/m") + (folder > "tests/t")].append(folder)
    jax = {"KERAS_BACKEND": "jax", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    rooms = [f"tests/{room}" for room in ("layers", "edit", "models", "heads")]
    # What trains, which is tests/training's for JAX.
    without = ("tests/edit/pruning", "tests/edit/test_quantization.py")
    few = ["-m", "not slow and not jax_slow", *rooms, *(f"--ignore={x}" for x in without)]
    return {
        "tensorflow-1": (thirds[0], {}),
        "tensorflow-2": (thirds[1], {}),
        "tensorflow-3": ([*thirds[2], *files, "kbert"], {}),
        "jax": (few, jax),
    }


def run(arguments: list[str], environment: dict[str, str]) -> tuple[int, list[str], str]:
    """pytest's exit status, the lines that name what failed, and its last line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    text = "".join(lines)
    return process.wait(), FAILED.findall(text), (text.splitlines() or [""])[-1].strip("= ")


def main(arguments: list[str]) -> int:
    """Runs the parts; 1 where one of them failed."""
    found = find_parts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--parts", default=",".join(found), help=f"of {', '.join(found)}")
    options, more = parser.parse_known_args(arguments)
    names = options.parts.split(",")
    if unknown := sorted(set(names) - set(found)):
        parser.error(f"the parts are {', '.join(found)}. Received: {', '.join(unknown)}")
    told = []
    for name in names:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        status, failed, last = run([*more, *found[name][0]], found[name][1])
        state = "passed" if status == 0 else f"FAILED with exit status {status}"
        told.append((status, f"{name}: {state} in {time.monotonic() - began:.0f} s · {last}"))
        told += [(0, f"    {line}") for line in failed]
    print("\n== all parts")
    for _, line in told:
        print(line)
    return int(any(status for status, _ in told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
