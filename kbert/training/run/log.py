"""The log of a run's values in JSON lines, and its progress line."""

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from kbert.core.types import PathLike
from kbert.io import atomic
from kbert.io.paths import Path, is_remote


class RunLog:
    """A file of JSON lines, one object for each step, in order.

    Args:
        path: Path of the file.

    Example:
        >>> import tempfile
        >>> log = RunLog(os.path.join(tempfile.mkdtemp(), "steps.jsonl"))
        >>> log.append([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
        >>> log.truncate(1)  # a run that resumes after step 1 makes step 2 again
        >>> log.read()
        [{'step': 1, 'loss': 2.0}]
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    def append(self, lines: Iterable[dict]) -> None:
        """Appends lines and syncs them to disk: a checkpoint must not be ahead of its log.

        On an object store the whole file is written again.
        """
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            atomic.sync(file)

    def truncate(self, step: int) -> None:
        """Removes the lines of later steps than `step`, and a partial line of a killed process."""
        if not self.path.exists():
            return
        kept_bytes = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or json.loads(line)["step"] > step:
                    break
                kept_bytes += len(line)
        if kept_bytes < self.path.stat().st_size:
            if is_remote(self.path):
                atomic.write(self.path, self.path.read_bytes()[:kept_bytes])
            else:
                os.truncate(self.path, kept_bytes)

    def read(self) -> list[dict]:
        """Returns all lines; an empty list if nothing was written."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]


class ProgressLine:
    """Prints the progress of a run: step, values, speed, time left.

    Args:
        total_steps: Steps of the run.
        total_tokens: Tokens of the run, including padding. The time left is estimated by tokens, as
            a step on long sequences takes longer.
        seconds: Pause between lines if the output is not a terminal; in a terminal one line is
            updated.
        file: File to print to; standard output by default.
    """

    def __init__(
        self,
        total_steps: int,
        total_tokens: int,
        seconds: float = 10.0,
        file: TextIO | None = None,
    ) -> None:
        self.total_steps = total_steps
        self.total_tokens = total_tokens
        self.seconds = seconds
        self.file = file or sys.stdout
        self._rewrites = self.file.isatty()
        self._printed = -float("inf")
        self._busy, self._tokens = 0.0, 0.0

    def measure(self, tokens: int, seconds: float) -> None:
        """Adds to the speed: tokens trained on, and the seconds of training that they took."""
        # Older measurements fade, so that the speed adapts to a phase with longer sequences.
        self._busy = 0.8 * self._busy + seconds
        self._tokens = 0.8 * self._tokens + tokens

    @property
    def tokens_per_second(self) -> float:
        """Recent speed in tokens per second; 0 before the first measurement."""
        return self._tokens / self._busy if self._busy else 0.0

    def show(self, step: int, tokens: int, values: dict[str, float], last: bool = False) -> None:
        """Prints the line if it is due: always in a terminal, else every `seconds`.

        Args:
            step: Updates made.
            tokens: Tokens trained on since the run began.
            values: Name → value, in the order in which they are shown.
            last: Whether this is the last line: it is always printed and not overwritten.
        """
        now = time.monotonic()
        if not (last or self._rewrites or now - self._printed >= self.seconds):
            return
        self._printed = now
        entries = [f"{name} {value:.4g}" for name, value in values.items()]
        speed = self.tokens_per_second
        if speed:
            entries += [f"{human(speed)} tokens/s"]
            entries += [f"{duration((self.total_tokens - tokens) / speed)} left"]
        line = f"step {step:,}/{self.total_steps:,} · " + " · ".join(entries)
        if self._rewrites:
            print(f"\r{line}\033[K", end="\n" if last else "", file=self.file, flush=True)
        else:
            print(line, file=self.file, flush=True)

    def note(self, text: str) -> None:
        """Prints a text on a separate line."""
        print(f"\r{text}\033[K" if self._rewrites else text, file=self.file, flush=True)


def human(number: float) -> str:
    """Formats a number with three significant digits and one of the prefixes k, M, G and T.

    Example:
        >>> human(83_240), human(512), human(1.5e9)
        ('83.2k', '512', '1.5G')
    """
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"


def duration(seconds: float) -> str:
    """Formats a time in its two largest units, of days, hours, minutes and seconds.

    Example:
        >>> duration(42), duration(3_700), duration(200_000)
        ('42 s', '1 h 1 min', '2 d 7 h')
    """
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours - 24 * days} h"
    if hours:
        return f"{hours} h {minutes - 60 * hours} min"
    return f"{minutes} min {int(seconds) - 60 * minutes} s" if minutes else f"{int(seconds)} s"
