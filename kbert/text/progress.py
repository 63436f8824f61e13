"""Progress of long work on standard error: a moving bar in a terminal, a line now and then else."""

import sys
import time


class Progress:
    """A bar over bytes or files, with documents or the like and the true speed of text beside it.

    Args:
        description: what is being done.
        total: the amount at the end.
        unit: of the amount; "B" is shown with prefixes.
        counted: what `show` counts beside it.
    """

    def __init__(self, description: str, total: int, unit: str, counted: str = "documents") -> None:
        from tqdm import tqdm

        in_terminal = sys.stderr.isatty()
        self._start = time.monotonic()
        self._counted = counted
        self._bar = tqdm(
            desc=description,
            total=total,
            unit=unit,
            unit_scale=unit == "B",
            mininterval=0.2 if in_terminal else 15,
            dynamic_ncols=in_terminal,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._bar.close()

    def show(self, amount: int, documents: int, text_bytes: int | None = None) -> None:
        """Moves the bar to `amount`.

        Args:
            amount: done so far, in the bar's unit.
            documents: documents done so far.
            text_bytes: bytes of text done in this run; they tell the speed when what is counted
                on disk is compressed.
        """
        fields = {self._counted: f"{documents:,}"}
        if text_bytes is not None:
            elapsed = max(time.monotonic() - self._start, 1e-3)
            fields["text"] = f"{text_bytes / 1e6 / elapsed:.1f} MB/s"
        self._bar.set_postfix(fields, refresh=False)
        self._bar.update(amount - self._bar.n)
