"""Progress of long work on standard error: a moving bar in a terminal, else occasional lines."""

import sys
import time

SECONDS_BEFORE_A_BAR = 2.0


class Progress:
    """A progress bar with a count and the real speed of text.

    Args:
        description: label of the bar; "" for none.
        total: amount at the end; None if unknown.
        unit: unit of the amount; "B" is shown with prefixes.
        counted: name of the second count that `show` displays.
        verbose: 1 or 2 shows a bar at once, "auto" only if the work takes longer than
            `SECONDS_BEFORE_A_BAR`, 0 never.

    Raises:
        ValueError: `verbose` has another value.
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
            raise ValueError(f'verbose must be "auto", 0, 1 or 2. Received: {verbose!r}')
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
            amount: amount done so far, in the bar's unit.
            count: second count so far (see `counted`).
            text_bytes: bytes of text processed in this run. They give the real speed if the bar
                counts compressed bytes on disk.
        """
        fields = {} if count is None else {self._counted: f"{count:,}"}
        if text_bytes is not None:
            elapsed = max(time.monotonic() - self._start, 1e-3)
            fields["text"] = f"{text_bytes / 1e6 / elapsed:.1f} MB/s"
        if fields:
            self._bar.set_postfix(fields, refresh=False)
        self._bar.update(amount - self._bar.n)
