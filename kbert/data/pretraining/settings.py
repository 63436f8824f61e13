"""The settings of datasets made from shards, each checked as a whole."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from kbert.data.masking.masking import MASKING_SCHEMES, MaskingScheme
from kbert.data.pretraining.segments import SEGMENT_SCHEMES, SegmentScheme
from kbert.types import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """What every stream of batches is told: shape, order, end, and which host makes it."""

    sequence_length: int
    batch_size: int
    seed: int
    epochs: int | None
    num_hosts: int
    host_index: int
    threads: int | None
    window_blocks: int

    def __post_init__(self) -> None:
        rule, batch, hosts = self._rule, self.batch_size, self.num_hosts
        rule(0 <= self.seed < 2**63, "`seed` must lie in 0..2**63-1", "seed")
        rule(self.epochs is None or self.epochs > 0,
             "`epochs` must be above 0, or None to go on for ever", "epochs")  # fmt: skip
        rule(0 <= self.host_index < hosts,
             "`host_index` must lie in 0..num_hosts-1", "host_index", "num_hosts")  # fmt: skip
        rule(batch > 0 and batch % hosts == 0,
             "`batch_size` counts the rows of all hosts: it must be above 0 and a multiple of "
             "`num_hosts`", "batch_size", "num_hosts")  # fmt: skip
        rule(self.threads is None or self.threads > 0,
             "`threads` must be above 0, or None to leave it to TensorFlow", "threads")  # fmt: skip
        # A window of one block may hold a single document, which has no random next.
        rule(self.window_blocks >= 2, "`window_blocks` must be at least 2", "window_blocks")

    def _rule(self, holds: bool, text: str, *names: str) -> None:
        if not holds:
            received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            raise ValueError(f"{text}. Received: {received}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(StreamSettings):
    """What `pretraining_dataset` was told, apart from where the data lies and where to start.

    Values left out (None) become those of the masking or segment scheme. After construction
    `segments`, `replacement` and `short_sequence_share` are never None.
    """

    masking: str
    masked_share: float
    replacement: tuple[float, float] | None
    segments: str | None
    next_sentence: bool | None
    short_sequence_share: float | None
    static_masks: int | None
    drop_remainder: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self._rule
        rule(8 <= self.sequence_length <= 2**16,
             "`sequence_length` must lie in 8..65536", "sequence_length")  # fmt: skip
        rule(self.masking in MASKING_SCHEMES,
             f"`masking` must be {_one_of(MASKING_SCHEMES)}", "masking")  # fmt: skip
        if self.segments is None:
            self._set("segments", "single" if self.next_sentence is False else "pairs")
        rule(self.segments in SEGMENT_SCHEMES,
             f"`segments` must be {_one_of(SEGMENT_SCHEMES)}", "segments")  # fmt: skip
        rule(self.next_sentence in (None, self.segments == "pairs"),
             'Next sentences are predicted with segments="pairs" and with no other: leave out '
             "`next_sentence` or `segments`", "next_sentence", "segments")  # fmt: skip
        rule(0 < self.masked_share <= 1, "`masked_share` must lie in (0, 1]", "masked_share")
        if self.replacement is None:
            self._set("replacement", self.masking_scheme.replacement)
        rule(len(self.replacement) == 2 and min(self.replacement) >= 0
             and sum(self.replacement) <= 1 + 1e-9,
             "`replacement` must be two shares, of [MASK] and of random tokens, with a sum of at "
             "most 1", "replacement")  # fmt: skip
        rule(not self.masking_scheme.repeats or self.replacement[1] == 0,
             'masking="independent" may draw a position twice, so its `replacement` has no random '
             "tokens: pass (share, 0.0)", "masking", "replacement")  # fmt: skip
        if self.short_sequence_share is None:
            self._set("short_sequence_share", self.segment_scheme.short_share)
        rule(0 <= self.short_sequence_share <= 1,
             "`short_sequence_share` must lie in [0, 1]", "short_sequence_share")  # fmt: skip
        rule(self.static_masks is None or self.static_masks > 0,
             "`static_masks` must be above 0, or None for new masks in every epoch",
             "static_masks")  # fmt: skip

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def masking_scheme(self) -> MaskingScheme:
        """How tokens are chosen to be predicted."""
        return MASKING_SCHEMES[self.masking]

    @property
    def segment_scheme(self) -> SegmentScheme:
        """How text is laid out in rows."""
        return SEGMENT_SCHEMES[self.segments]

    def version(self, epoch: Tensor) -> Tensor:
        """Which plan and masks an epoch has: new ones, or those of one of `static_masks`."""
        return epoch if self.static_masks is None else epoch % self.static_masks


def _one_of(names: Iterable[str]) -> str:
    *most, last = (f'"{name}"' for name in names)
    return f"{', '.join(most)} or {last}"
