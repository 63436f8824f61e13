"""The values of a run's steps: fetched now and then, checked, logged.

Values stay on the device until it is time to look at them: waiting for each step's loss would
leave an accelerator idle between steps. They are looked at, and so written and checked for NaN,
about once a second and before every checkpoint: nothing that is not finite is ever saved.
"""

import math
import time
from collections.abc import Callable, Collection

from kbert.training.run.log import RunLog

SECONDS_BETWEEN_LOOKS = 1.0


class NonFiniteLoss(FloatingPointError):
    """A loss, metric or gradient became NaN or infinite; training on would be in vain."""


class StepValues:
    """The steps that nobody has looked at yet.

    Args:
        log: Where they are written once they are seen, or `None`.

    Attributes:
        looked_at: Time of the last look; `None` before the first.

    Example:
        >>> values = StepValues(None)
        >>> values.add(1, {"loss": 0.5})
        >>> values.add(2, {"loss": 0.25})
        >>> values.look(derived=())
        [{'step': 1, 'loss': 0.5}, {'step': 2, 'loss': 0.25}]
    """

    def __init__(self, log: RunLog | None) -> None:
        self.looked_at: float | None = None
        self._log = log
        self._unseen: list[tuple[int, dict]] = []

    def add(self, step: int, logs: dict) -> None:
        """Notes what a step returned, wherever the values are."""
        self._unseen.append((step, dict(logs)))

    def is_due(self) -> bool:
        """Whether the last look was some time ago, or there was none."""
        now = time.monotonic()
        return self.looked_at is None or now - self.looked_at >= SECONDS_BETWEEN_LOOKS

    def look(self, derived: Collection[str], where: Callable[[], str] = lambda: "") -> list[dict]:
        """Fetches, checks and logs the values of the steps since the last look.

        Args:
            derived: Names of values that follow from others: they may overflow, and are no part
                of the log.
            where: Gives what the message adds of checkpoints.

        Returns:
            One dict a step: `step` and every value, the derived ones too.

        Raises:
            NonFiniteLoss: If a value is NaN or infinite; the steps before it are logged.
        """
        seen, lines = [], []
        for step, logs in self._unseen:
            values = {name: float(value) for name, value in logs.items()}
            terms = {k: v for k, v in values.items() if k not in derived}
            if not all(map(math.isfinite, terms.values())):
                self._write(lines)
                raise NonFiniteLoss(_explain(step, terms, where()))
            seen.append({"step": step, **values})
            lines.append({"step": step, **terms})
        self._write(lines)
        self.looked_at = time.monotonic()
        self._unseen.clear()
        return seen

    def _write(self, lines: list[dict]) -> None:
        if self._log is not None and lines:
            self._log.append(lines)


def _explain(step: int, terms: dict, where: str) -> str:
    bad = ", ".join(f"{k} is {v}" for k, v in terms.items() if not math.isfinite(v))
    return (
        f"{bad} at step {step}. {where}That step moved no weight. A lower learning rate, "
        "a longer warm-up or float32 may help; started as before, the run does the same again"
    )
