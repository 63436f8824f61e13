"""The values of a run's steps: fetched from time to time, checked and logged.

Values stay on the device until they are fetched: waiting for each step's loss would leave an
accelerator idle between steps. They are fetched, checked for NaN and logged about once a second and
before every checkpoint, so non-finite values are never saved.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kbert.core.types import MaybeNone, Tensor
from kbert.training.run.log import RunLog

SECONDS_BETWEEN_FETCHES = 1.0


class NonFiniteLoss(FloatingPointError):
    """A loss, a metric or a gradient is NaN or infinite; further training would be useless."""


class StepValues:
    """Values of the steps that have not been fetched yet.

    Args:
        log: Log that fetched values are written to, or `None`.

    Attributes:
        fetched_at: Time of the last `fetch`, from `time.monotonic`; `None` before the first.

    Example:
        >>> values = StepValues(None)
        >>> values.add(1, {"loss": 0.5})
        >>> values.add(2, {"loss": 0.25})
        >>> values.fetch(derived=())
        [{'step': 1, 'loss': 0.5}, {'step': 2, 'loss': 0.25}]
    """

    def __init__(self, log: RunLog | None) -> None:
        self.fetched_at: float | MaybeNone = None
        self._log = log
        self._pending: list[tuple[int, dict[str, Tensor]]] = []

    def add(self, step: int, logs: Mapping[str, Tensor]) -> None:
        """Keeps the values of a step, which stay on the device until `fetch`."""
        self._pending.append((step, dict(logs)))

    def is_due(self) -> bool:
        """Whether the last `fetch` was a second or more ago, or there was none."""
        now = time.monotonic()
        return self.fetched_at is None or now - self.fetched_at >= SECONDS_BETWEEN_FETCHES

    def fetch(
        self, derived: Collection[str], where: Callable[[], str] = lambda: ""
    ) -> list[dict[str, Any]]:
        """Fetches, checks and logs the values of the steps since the last fetch.

        Args:
            derived: Names of values that are computed from others: they may overflow, and are not
                logged.
            where: Function that returns a sentence about checkpoints, for the error message.

        Returns:
            One dict per step: `step` and every value, including derived ones. For a step that loss
            scaling skipped, only the finite values.

        Raises:
            NonFiniteLoss: A value is NaN or infinite; the steps before it are logged.
        """
        fetched: list[dict[str, Any]] = []
        lines: list[dict[str, Any]] = []
        for step, logs in self._pending:
            values = {name: float(value) for name, value in logs.items()}
            terms = {k: v for k, v in values.items() if k not in derived}
            if terms.get("skipped_steps"):  # float16 overflow: it is counted, the scale is halved
                values, terms = _only_finite(values), _only_finite(terms)
            if not all(map(math.isfinite, terms.values())):
                self._write(lines)
                raise NonFiniteLoss(_explain(step, terms, where()))
            fetched.append({"step": step, **values})
            lines.append({"step": step, **terms})
        self._write(lines)
        self.fetched_at = time.monotonic()
        self._pending.clear()
        return fetched

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._log is not None and lines:
            self._log.append(lines)


def _only_finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _explain(step: int, terms: dict[str, float], where: str) -> str:
    """Returns the message about non-finite `terms`; `where` is a sentence about checkpoints."""
    bad = ", ".join(f"{k} is {v}" for k, v in terms.items() if not math.isfinite(v))
    return (
        f"{bad} at step {step}. {where}That step updated no weights. A lower learning rate, "
        "a longer warm-up or float32 may help; with the same settings the error recurs"
    )
