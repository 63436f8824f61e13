"""The plan of a run: stages, one after the other; phases of pretraining, epochs of fine-tuning."""

import dataclasses
from collections.abc import Iterable
from typing import cast

# (epoch, window, row): where the data resumes, as batches hold it in `position`.
Start = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """A run over epochs of the same data, in order; each ends with an evaluation and a checkpoint.

    Attributes:
        epochs: How many.
        steps_per_epoch: Updates of an epoch.
        first_step: Updates made before.
        done: Updates made of it, when batches are asked for.

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
        """Updates made once they are over."""
        return self.first_step + self.epochs * self.steps_per_epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run with batches of one shape, or of at most so many tokens.

    Most steps of BERT are on short sequences, the last on long ones (appendix A.2).

    Attributes:
        sequence_length: Tokens of a row, padding included; at most, where batches are counted in
            tokens.
        batch_size: Rows of a global batch; None = as many as `batch_tokens` allow.
        first_step: Updates made before the phase.
        steps: Updates made in it.
        batch_tokens: Tokens of a global batch at most, padding included, where it has no
            `batch_size`; else None.
        masked_share: Share of the tokens to predict in it; None = the run's.
        done: Updates made of it, when batches are asked for.
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
                "The batches of a phase are counted in rows or in tokens. Received: "
                f"batch_size={self.batch_size}, batch_tokens={self.batch_tokens}"
            )

    @property
    def epochs(self) -> int:
        """To Keras a phase is one epoch."""
        return 1

    @property
    def steps_per_epoch(self) -> int:
        """All of its updates."""
        return self.steps

    @property
    def end(self) -> int:
        """Updates made once the phase is over."""
        return self.first_step + self.steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch, padding included; at most, where they are counted."""
        if self.batch_size is None:
            return cast(int, self.batch_tokens)  # one of the two is given
        return self.sequence_length * self.batch_size

    @property
    def shape(self) -> str:
        """A global batch in words: `8 x 128 tokens`, or `at most 4,096 tokens`."""
        if self.batch_size is None:
            return f"at most {self.batch_tokens:,} tokens"
        return f"{self.batch_size} x {self.sequence_length} tokens"


def parse_phases(text: str, steps: int, batch_size: int) -> list[Phase]:
    """Reads `length:share[:batch_size[:masked_share]]` for each phase, separated by commas.

    Args:
        text: For example `128:0.9,512:0.1` or `128:0.9:256,512:0.1:64`, or with the share of the
            tokens that is masked in each: `128:0.9:256:0.3,512:0.1::0.15`.
        steps: Steps of the whole run; the shares divide them.
        batch_size: Rows of a batch where a phase gives none, or an empty one.

    Returns:
        The phases, in order.

    Raises:
        ValueError: If the text is malformed, the shares do not add up to 1 or a phase is empty.

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
            rest = [*fields[2:], "", ""]
            rows = int(rest[0]) if rest[0] else batch_size
            masked = float(rest[1]) if rest[1] else None
            if len(fields) > 4 or fields[-1] == "":
                raise ValueError
        except (ValueError, IndexError):
            raise ValueError(
                "A phase is written length:share, length:share:batch_size or "
                f"length:share:batch_size:masked_share. Received: {item!r} in {text!r}"
            ) from None
        if masked is not None and not 0 < masked <= 1:
            raise ValueError(
                "The masked share of a phase must be above 0 and at most 1. "
                f"Received: {item!r} in {text!r}"
            )
        parts.append((length, share, rows, masked))
    if any(min(part[:3]) <= 0 for part in parts) or abs(sum(p[1] for p in parts) - 1) > 1e-6:
        raise ValueError(
            "Lengths, shares and batch sizes must be positive and the shares add up to 1. "
            f"Received: {text!r}"
        )
    phases, done, begun = [], 0.0, 0
    for length, share, rows, masked in parts:
        done += share
        end = round(done * steps)
        if end == begun:
            raise ValueError(
                f"Each phase needs a step at least. Received: {text!r} over steps={steps}"
            )
        phases.append(
            Phase(
                sequence_length=length,
                batch_size=rows,
                first_step=begun,
                steps=end - begun,
                masked_share=masked,
            )
        )
        begun = end
    return phases


def phases_of(plan: Iterable[Phase | Epochs]) -> list[Phase]:
    """The stages of a plan whose tokens are known."""
    return [stage for stage in plan if isinstance(stage, Phase)]


def tokens_until(phases: Iterable[Phase], step: int) -> int:
    """Tokens, padding included, of the first `step` updates.

    Example:
        >>> tokens_until(parse_phases("128:0.5,512:0.5", 4, batch_size=1), 3)
        768
    """
    return sum(
        phase.tokens_per_step * min(max(step - phase.first_step, 0), phase.steps)
        for phase in phases
    )
