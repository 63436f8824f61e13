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
import shutil
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
FINISHED = "finished"  # the file of the readers that a process has been through


def of_all(names: list[str], minutes: float, first: int) -> None:
    """Processes that take the readers one after the other, each from behind where one ended."""
    failed = []
    folder = Path(tempfile.mkdtemp(prefix="kbert-fuzz-"))
    unit = minutes * 60 / sum(READERS[name].rate for name in names)
    while names:
        command = [sys.executable, "-m", "tests.fuzz", f"--seed={first}", f"--seconds={unit}"]
        command += [f"--readers={','.join(names)}", f"--folder={folder}"]
        (folder / FINISHED).write_text("")
        done = subprocess.run(command, check=False)
        names = names[len((folder / FINISHED).read_text().splitlines()) :]
        if done.returncode != 0 and names:
            failed.append(names[0])
            where = folder / slug(names[0])
            print(f"{names[0]}: ended with {done.returncode}; see {where}", flush=True)
            names = names[1:]
    if failed:
        sys.exit(f"readers that failed: {', '.join(failed)}")
    shutil.rmtree(folder)


def of_one(name: str, seconds: float, number: int, folder: Path) -> None:
    """Rounds of one reader until its time is over."""
    ends = time.monotonic() + seconds * READERS[name].rate
    rounds = 0
    with workplace(READERS[name], folder / slug(name)) as folder:
        READERS[name].read(folder / "whole")  # whole, it is taken; and what it imports is there
        _limit_memory()
        while rounds == 0 or time.monotonic() < ends:
            one_round(READERS[name], folder, examples=EXAMPLES, number=number + rounds)
            rounds += 1
    print(f"{name}: {rounds * EXAMPLES} damaged examples from seed {number} on", flush=True)


def slug(name: str) -> str:
    """The name of a reader's folder."""
    return name.replace(" ", "-")


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
    parser.add_argument("--folder", type=Path, help="of files, with --seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first round's")
    chosen = parser.parse_args()
    names = chosen.readers.split(",")
    unknown = sorted(set(names) - set(READERS))
    if unknown:
        parser.error(f"readers are {', '.join(READERS)}. Received: {', '.join(unknown)}")
    if (chosen.seconds is None) != (chosen.folder is None):
        parser.error("--seconds and --folder go together: they are what this program gives itself")
    if chosen.folder is None:
        print(f"--seed={chosen.seed}", flush=True)
        of_all(names, chosen.minutes, chosen.seed)
        return
    for name in names:
        of_one(name, chosen.seconds, chosen.seed, chosen.folder)
        with (chosen.folder / FINISHED).open("a") as file:
            file.write(f"{name}\n")


if __name__ == "__main__":
    main()
