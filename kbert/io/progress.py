"""Progress of long work on standard error: a moving bar in a terminal, else a line at times."""

import sys
import time

SECONDS_BEFORE_A_BAR = 2.0


class Progress:
    """A bar, with a count and the true speed of text next to it.

    Args:
        description: what is being done; "" for none.
        total: the amount at the end; None if unknown.
        unit: of the amount; "B" is shown with prefixes.
        counted: what else `show` counts.
        verbose: 1 for a bar at once, "auto" for one where the work takes longer than a moment, 0
            for none.

    Raises:
        ValueError: another `verbose`.
    """

    def __init__(
        self,
        description: str,
        total: int | None,
        unit: str,
        counted: str = "documents",
        verbose: str | int = 1,
    ) -> None:
        from tqdm.auto import tqdm

        if verbose not in ("auto", 0, 1, 2):
            raise ValueError(f'verbose is "auto", 0 or 1. Received: {verbose!r}')
        in_terminal = sys.stderr.isatty()
        is_seen_moving = in_terminal or "ipykernel" in sys.modules
        self._start = time.monotonic()
        self._counted = counted
        self._bar = tqdm(
            desc=description or None,
            total=total,
            unit=unit,
            unit_scale=unit == "B",
            mininterval=0.2 if is_seen_moving else 15,
            dynamic_ncols=in_terminal,
            delay=SECONDS_BEFORE_A_BAR if verbose == "auto" else 0,
            disable=not verbose,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, amount: int, count: int | None = None, text_bytes: int | None = None) -> None:
        """Moves the bar to `amount`.

        Args:
            amount: done so far, in the bar's unit.
            count: what else is counted, so far.
            text_bytes: bytes of text done in this run; they tell the speed when what is counted
                on disk is compressed.
        """
        fields = {} if count is None else {self._counted: f"{count:,}"}
        if text_bytes is not None:
            elapsed = max(time.monotonic() - self._start, 1e-3)
            fields["text"] = f"{text_bytes / 1e6 / elapsed:.1f} MB/s"
        if fields:
            self._bar.set_postfix(fields, refresh=False)
        self._bar.update(amount - self._bar.n)
