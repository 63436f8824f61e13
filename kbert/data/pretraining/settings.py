"""The settings of datasets made from shards, each checked as a whole."""

import os
from typing import Any, cast

from kbert.data.corpus.blocks import WINDOW_BLOCKS
from kbert.data.masking.masking import MASKING_SCHEMES, MaskingScheme
from kbert.data.pretraining.segments import SEGMENT_SCHEMES, SegmentScheme
from kbert.options import Options, option
from kbert.types import Tensor


class StreamSettings(Options):
    """What every stream of batches is set to: shape, order, end, and which host makes it.

    Args:
        {options}
    """

    sequence_length: int = option(help="Tokens of a row (T).", at_least=1, at_most=2**16)
    batch_size: int = option(
        help="Rows of a batch (B), of all devices and hosts together.", at_least=1
    )
    seed: int = option(
        0, help="Of the order of blocks, of rows and of masks.", at_least=0, at_most=2**63 - 1
    )
    epochs: int | None = option(None, help="Passes over the data. Default: endless.", at_least=1)
    num_hosts: int = option(
        1,
        help="Hosts that share the work (H): each makes its slice of every batch. Divides B.",
        at_least=1,
    )
    host_index: int = option(0, help="Which of them this is.", at_least=0)
    threads: int | None = option(
        None, help="Threads that make batches. Default: TensorFlow decides.", at_least=1
    )
    # A window of one block may hold a single document, which has no random next.
    window_blocks: int = option(
        WINDOW_BLOCKS,
        help="Blocks (of 64k tokens) among which rows are mixed and random next sentences are "
        "found. More takes more memory and time to start.",
        at_least=2,
    )

    def check(self) -> None:
        self._rule(self.host_index < self.num_hosts,
                   "`host_index` must be below `num_hosts`", "host_index", "num_hosts")  # fmt: skip
        self._rule(self.batch_size % self.num_hosts == 0,
                   "`batch_size` counts the rows of all hosts: it must be a multiple of "
                   "`num_hosts`", "batch_size", "num_hosts")  # fmt: skip

    def check_documents(self, documents: int, where: str) -> None:
        """Refuses a split, `where`, of too few documents to make rows of."""
        if not documents:
            raise ValueError(f"{where} must hold a document. Received: none")

    def _rule(self, holds: bool, text: str, *names: str) -> None:
        if not holds:
            received = ", ".join(f"{name}={getattr(self, name)!r:.100}" for name in names)
            raise ValueError(f"{text}. Received: {received}")


class MaskingSettings(Options):
    """How text becomes rows in which tokens are masked.

    Args:
        {options}
    """

    segments: str | None = option(
        None,
        help="How rows are made from text. pairs adds next-sentence prediction, halves "
        "sentence-order prediction, the others no sentence objective.",
        choices=list(SEGMENT_SCHEMES),
    )
    short_sequence_share: float | None = option(
        None,
        help="Share of rows made shorter, to a random length. Default: that of the segments: 0.1, "
        "consecutive 0.05, whole sentences 0.",
        at_least=0,
        at_most=1,
    )
    masking: str = option("token", help="What is masked together.", choices=list(MASKING_SCHEMES))
    phrases: str | os.PathLike | tuple[str, ...] | None = option(
        None,
        help="File with one phrase per line, masked as a whole by --masking=phrase.",
        changes_numbers=False,  # as its content does
    )
    masked_share: float = option(0.15, help="Share of the tokens to predict.", above=0, at_most=1)
    replacement: tuple[float, float] | None = option(
        None,
        help="Shares of these replaced by [MASK] and by a random token, as 0.8,0.1; the others "
        "stay. Default: that of the masking: 0.8,0.1, independent 0.85,0.",
        at_least=0,
        at_most=1,
    )
    pack: bool = option(
        False,
        help="Fill rows with several examples, which do not attend to each other, in the place of "
        "padding: the same examples and masks in fewer rows.",
    )
    static_masks: int | None = option(
        None,
        help="Use this many fixed versions of an epoch (order, rows, masks) in turn. Default: "
        "every epoch is new.",
        at_least=1,
    )


class Settings(StreamSettings, MaskingSettings):
    """What `pretraining_dataset` is set to, apart from where the data lies and where to start.

    Values left out (None) become those of the masking or segment scheme. After construction
    `segments`, `replacement` and `short_sequence_share` are never None.

    Args:
        {options}
    """

    sequence_length: int = option(
        128, help="Tokens of a row (T), specials included.", at_least=8, at_most=2**16
    )
    batch_size: int = StreamSettings.with_default("batch_size", 256)
    next_sentence: bool | None = option(
        None, help='True means "pairs"; False, with `segments` left out, means "single".'
    )
    drop_remainder: bool = option(
        False,
        help="Leave out the last rows of the last epoch where they do not fill a batch; otherwise "
        "empty rows, of no weight, fill it.",
    )

    def check(self) -> None:
        super().check()
        rule = self._rule
        rule((self.masking == "phrase") == (self.phrases is not None),
             'masking="phrase" needs `phrases`, and no other masking reads them',
             "masking", "phrases")  # fmt: skip
        if self.segments is None:
            self._set("segments", "single" if self.next_sentence is False else "pairs")
        rule(self.next_sentence in (None, self.segments == "pairs"),
             'Next sentences are predicted with segments="pairs" and with no other: leave out '
             "`next_sentence` or `segments`", "next_sentence", "segments")  # fmt: skip
        usual = self.masking_scheme.replacement
        replacement = usual if self.replacement is None else self.replacement
        self._set("replacement", replacement)
        rule(sum(replacement) <= 1 + 1e-9,
             "`replacement` must be two shares, of [MASK] and of random tokens, with a sum of at "
             "most 1", "replacement")  # fmt: skip
        rule(not self.masking_scheme.repeats or replacement[1] == 0,
             'masking="independent" may draw a position twice, so its `replacement` has no random '
             "tokens: pass (share, 0.0)", "masking", "replacement")  # fmt: skip
        if self.short_sequence_share is None:
            self._set("short_sequence_share", self.segment_scheme.short_share)

    def check_documents(self, documents: int, where: str) -> None:
        needed = self.segment_scheme.documents
        if documents < needed:
            raise ValueError(
                f"{where} has too few documents: segments={self.segments!r} needs {needed}, as the "
                "second segment may come from another document. Blank lines separate documents; "
                'segments="single" (next_sentence=False) needs one. '
                f"Received: {documents} document(s)"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def masking_scheme(self) -> MaskingScheme:
        """How tokens are chosen to be predicted."""
        return MASKING_SCHEMES[self.masking]

    @property
    def segment_scheme(self) -> SegmentScheme:
        """How text is laid out in rows."""
        return SEGMENT_SCHEMES[cast(str, self.segments)]  # `check` has set it

    @property
    def max_examples(self) -> int:
        """Examples that a row may hold (K)."""
        return max(8, self.sequence_length // 32) if self.pack else 1

    def version(self, epoch: Tensor) -> Tensor:
        """Which plan and masks an epoch has: new ones, or those of one of `static_masks`."""
        return epoch if self.static_masks is None else epoch % self.static_masks
