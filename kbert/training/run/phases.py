"""The plan of a run: a sequence of stages, which are phases of pretraining or epochs."""

import dataclasses
from collections.abc import Iterable
from typing import cast

# (epoch, window, row): position where the data resumes, like `position` in batches.
Start = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """Epochs over the same data, in order; each ends with an evaluation and a checkpoint.

    Attributes:
        epochs: Number of epochs.
        steps_per_epoch: Updates of an epoch.
        first_step: Updates made before the first epoch.
        done: Updates of the epochs made so far, when their batches are requested.

    Example:
        >>> Epochs(epochs=3, steps_per_epoch=10).end
        30
    """

    epochs: int
    steps_per_epoch: int
    first_step: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "steps_per_epoch"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {value}")

    @property
    def end(self) -> int:
        """Updates made once the epochs are over."""
        return self.first_step + self.epochs * self.steps_per_epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run with batches of one shape, or of a limited number of tokens.

    In BERT most steps are on short sequences, the last ones on long sequences (appendix A.2).

    Attributes:
        sequence_length: Tokens of a row, including padding; with `batch_tokens`, the maximum.
        batch_size: Rows of a global batch; None = as many as `batch_tokens` allow.
        first_step: Updates made before the phase.
        steps: Updates of the phase.
        batch_tokens: Most tokens of a global batch, including padding, if there is no
            `batch_size`; else None.
        masked_share: Share of the tokens to predict in the phase; None = that of the run.
        done: Updates of the phase made so far, when its batches are requested.
    """

    sequence_length: int
    batch_size: int | None
    first_step: int
    steps: int
    batch_tokens: int | None = None
    masked_share: float | None = None
    done: int = 0

    def __post_init__(self) -> None:
        if (self.batch_size is None) == (self.batch_tokens is None):
            raise ValueError(
                "A phase must have either batch_size or batch_tokens. Received: "
                f"batch_size={self.batch_size}, batch_tokens={self.batch_tokens}"
            )

    @property
    def epochs(self) -> int:
        """Number of epochs: for Keras a phase is one epoch."""
        return 1

    @property
    def steps_per_epoch(self) -> int:
        """All updates of the phase."""
        return self.steps

    @property
    def end(self) -> int:
        """Updates made once the phase is over."""
        return self.first_step + self.steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch, including padding; the maximum, with `batch_tokens`."""
        if self.batch_size is None:
            return cast(int, self.batch_tokens)  # one of the two is given
        return self.sequence_length * self.batch_size

    @property
    def shape(self) -> str:
        """Text for the shape of a global batch: `8 x 128 tokens`, or `at most 4,096 tokens`."""
        if self.batch_size is None:
            return f"at most {self.batch_tokens:,} tokens"
        return f"{self.batch_size} x {self.sequence_length} tokens"


def parse_phases(text: str, steps: int, batch_size: int) -> list[Phase]:
    """Parses `length:share[:batch_size[:masked_share]]` for each phase, separated by commas.

    Args:
        text: The phases, for example `128:0.9,512:0.1` or `128:0.9:256,512:0.1:64`; with the share
            of masked tokens of each phase: `128:0.9:256:0.3,512:0.1::0.15`.
        steps: Steps of the whole run, which the shares divide.
        batch_size: Rows of a batch for phases whose batch size is missing or empty.

    Returns:
        The phases, in order.

    Raises:
        ValueError: The text is malformed, the shares do not add up to 1 or a phase is empty.

    Example:
        >>> for phase in parse_phases("128:0.9:256,512:0.1:64", 1000, 32):
        ...     print(phase.first_step, phase.end, phase.tokens_per_step)
        0 900 32768
        900 1000 32768
    """
    parts = []
    for item in text.split(","):
        fields = item.split(":")
        try:
            length, share = int(fields[0]), float(fields[1])
            optional_fields = [*fields[2:], "", ""]
            rows = int(optional_fields[0]) if optional_fields[0] else batch_size
            masked_share = float(optional_fields[1]) if optional_fields[1] else None
            if len(fields) > 4 or fields[-1] == "":
                raise ValueError
        except (ValueError, IndexError):
            raise ValueError(
                "A phase must be length:share, length:share:batch_size or "
                f"length:share:batch_size:masked_share. Received: {item!r} in {text!r}"
            ) from None
        if masked_share is not None and not 0 < masked_share <= 1:
            raise ValueError(
                "The masked share of a phase must be above 0 and at most 1. "
                f"Received: {item!r} in {text!r}"
            )
        parts.append((length, share, rows, masked_share))
    if any(min(part[:3]) <= 0 for part in parts) or abs(sum(p[1] for p in parts) - 1) > 1e-6:
        raise ValueError(
            "Lengths, shares and batch sizes must be positive and the shares add up to 1. "
            f"Received: {text!r}"
        )
    phases, share_so_far, first_step = [], 0.0, 0
    for length, share, rows, masked_share in parts:
        share_so_far += share
        end = round(share_so_far * steps)
        if end == first_step:
            raise ValueError(
                f"Each phase must have at least one step. Received: {text!r} over steps={steps}"
            )
        phases.append(
            Phase(
                sequence_length=length,
                batch_size=rows,
                first_step=first_step,
                steps=end - first_step,
                masked_share=masked_share,
            )
        )
        first_step = end
    return phases


def phases_of(plan: Iterable[Phase | Epochs]) -> list[Phase]:
    """Returns the phases of a plan, in order; `Epochs`, whose tokens are unknown, are left out."""
    return [stage for stage in plan if isinstance(stage, Phase)]


def tokens_until(phases: Iterable[Phase], step: int) -> int:
    """Returns the number of tokens, including padding, of the first `step` updates.

    Example:
        >>> tokens_until(parse_phases("128:0.5,512:0.5", 4, batch_size=1), 3)
        768
    """
    return sum(
        phase.tokens_per_step * min(max(step - phase.first_step, 0), phase.steps)
        for phase in phases
    )
