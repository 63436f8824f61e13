"""`make fuzz`: damaged files for every reader, for some minutes.

    python -m tests.fuzz --minutes=10
    python -m tests.fuzz --readers='google folder,shards' --minutes=1 --seed=3

A reader must answer or refuse: another exception, a crash, more than `MOST_MEMORY` or too long a
time ends the process, and another one takes the readers behind it. What the reader was reading then
is in the folder that the line names.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.fuzz.readers import READERS
from tests.fuzz.run import one_round, workplace

MOST_MEMORY = 4 << 30  # bytes, beside what the process has when a reader begins
EXAMPLES = 100  # of a round
FOLDER = Path(tempfile.gettempdir(), f"kbert-fuzz-{os.getuid()}")


def of_all(names: list[str], minutes: float, first: int) -> None:
    """Processes that take the readers one after the other, each from behind where one ended."""
    failed = []
    unit = minutes * 60 / sum(READERS[name].rate for name in names)
    while names:
        command = [sys.executable, "-m", "tests.fuzz", f"--seed={first}", f"--seconds={unit}"]
        done = subprocess.run([*command, f"--readers={','.join(names)}"], check=False)
        names = names[len((FOLDER / "finished").read_text().splitlines()) :]
        if done.returncode != 0 and names:
            failed.append(names[0])
            print(f"{names[0]}: ended with {done.returncode}; see {place(names[0])}", flush=True)
            names = names[1:]
    if failed:
        sys.exit(f"readers that failed: {', '.join(failed)}")


def of_one(name: str, seconds: float, number: int) -> None:
    """Rounds of one reader until its time is over."""
    ends = time.monotonic() + seconds * READERS[name].rate
    rounds = 0
    with workplace(READERS[name], place(name)) as folder:
        READERS[name].read(folder / "whole")  # whole, it is taken; and what it imports is there
        _limit_memory()
        while rounds == 0 or time.monotonic() < ends:
            one_round(READERS[name], folder, examples=EXAMPLES, number=number + rounds)
            rounds += 1
    print(f"{name}: {rounds * EXAMPLES} damaged examples from seed {number} on", flush=True)


def place(name: str) -> Path:
    """The folder of a reader's files."""
    return FOLDER / name.replace(" ", "-")


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, hard))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers")
    parser.add_argument("--readers", default=",".join(READERS), help="some of them, by commas")
    parser.add_argument("--seconds", type=float, help="for each, in this very process")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first round's")
    chosen = parser.parse_args()
    names = chosen.readers.split(",")
    unknown = sorted(set(names) - set(READERS))
    if unknown:
        parser.error(f"readers are {', '.join(READERS)}. Received: {', '.join(unknown)}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "finished").write_text("")
    if chosen.seconds is None:
        print(f"--seed={chosen.seed}", flush=True)
        of_all(names, chosen.minutes, chosen.seed)
        return
    for name in names:
        of_one(name, chosen.seconds, chosen.seed)
        with (FOLDER / "finished").open("a") as file:
            file.write(f"{name}\n")


if __name__ == "__main__":
    main()
