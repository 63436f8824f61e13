"""Rounds of damage to what one reader reads."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings

from tests.fuzz.damage import damage, damages
from tests.fuzz.readers import Reader


@contextlib.contextmanager
def workplace(reader: Reader, folder: Path | None = None) -> Iterator[Path]:
    """A folder with a whole example in `whole`; caches of readers go there too."""
    before = os.environ.get("KBERT_CACHE")
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.rmtree(folder, ignore_errors=True)
        os.environ["KBERT_CACHE"] = str(folder / "cache")
        (folder / "whole").mkdir(parents=True)
        try:
            reader.write(folder / "whole")
            yield folder
        finally:
            os.environ.pop("KBERT_CACHE")
            if before is not None:
                os.environ["KBERT_CACHE"] = before


def examine(reader: Reader, folder: Path, drawn: tuple[int, list]) -> None:
    """Reads a damaged copy, which stays in `damaged`: an answer, or a refusal, in time."""
    damaged = folder / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(folder / "whole", damaged)
    path = damage(damaged, drawn)
    started = time.process_time()
    message = "it was read"
    try:
        reader.read(damaged)
    except reader.refusals as error:
        message = str(error)
    assert message.strip(), f"refused without a message: {path.name}"
    seconds = time.process_time() - started
    assert seconds < reader.seconds, f"{seconds:.1f} s for {path.name}"


def one_round(reader: Reader, folder: Path, *, examples: int, number: int) -> None:
    """So many examples, always the same for a number; a failure is made as small as it can be."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=damages)
    def each(drawn: tuple[int, list]) -> None:
        examine(reader, folder, drawn)

    each()
