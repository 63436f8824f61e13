"""`make fuzz`: damaged files for every reader, each in a process of its own, for some minutes.

    python -m tests.fuzz --minutes=10
    python -m tests.fuzz --reader='google folder' --seconds=60 --seed=3

A reader must answer or refuse: another exception, a crash, more than `MOST_MEMORY` or too long a
time ends its process. What it was reading is then in the folder that the last line names.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.readers import READERS
from tests.fuzz.run import one_round, workplace

MOST_MEMORY = 4 << 30  # bytes, beside what the process has when it begins
EXAMPLES = 100  # of a round


def of_all(minutes: float, first: int) -> None:
    """A process for each reader, one after the other."""
    failed = []
    shares = sum(reader.rate for reader in READERS.values())
    for name, reader in READERS.items():
        seconds = minutes * 60 * reader.rate / shares
        command = [sys.executable, "-m", "tests.fuzz", f"--reader={name}", f"--seed={first}"]
        done = subprocess.run([*command, f"--seconds={seconds:.0f}"], check=False)
        if done.returncode != 0:
            failed.append(name)
            print(f"{name}: ended with {done.returncode}; its files are in {place(name)}")
    if failed:
        sys.exit(f"readers that failed: {', '.join(failed)}")


def of_one(name: str, seconds: float, number: int) -> None:
    """Rounds of one reader until the time is over, the start of the process counted."""
    ends = time.monotonic() + seconds
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
    return Path(tempfile.gettempdir(), "kbert-fuzz", name.replace(" ", "-"))


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY,) * 2)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers")
    parser.add_argument("--reader", choices=list(READERS), help="one of them")
    parser.add_argument("--seconds", type=float, default=60.0, help="for one reader")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first round's")
    chosen = parser.parse_args()
    if chosen.reader:
        of_one(chosen.reader, chosen.seconds, chosen.seed)
    else:
        print(f"--seed={chosen.seed}", flush=True)
        of_all(chosen.minutes, chosen.seed)


if __name__ == "__main__":
    main()
