"""Settings of the datasets made from shards, with checks of each combination."""

import os
from typing import Any, cast

from kbert.core.options import Options, option
from kbert.core.types import Tensor
from kbert.data.masking.schemes import MASKING_SCHEMES, MaskingScheme
from kbert.data.position import WINDOW_BLOCKS
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES, SegmentScheme


class StreamSettings(Options):
    """Settings of every stream of batches: shape, order, end, and host.

    Args:
        {options}
    """

    sequence_length: int = option(help="Tokens per sequence (T).", at_least=1, at_most=2**16)
    batch_size: int = option(
        help="Sequences per batch (B), over all devices and hosts.", at_least=1
    )
    seed: int = option(
        0,
        help="Seed of the order of blocks and sequences and of the masks.",
        at_least=0,
        at_most=2**63 - 1,
    )
    epochs: int | None = option(None, help="Passes over the data. Default: endless.", at_least=1)
    num_hosts: int = option(
        1,
        help="Hosts that share the work (H): each makes its part of every batch. Must divide B.",
        at_least=1,
    )
    host_index: int = option(0, help="Index of this host, from 0.", at_least=0)
    threads: int | None = option(
        None, help="Threads that make batches. Default: TensorFlow decides.", at_least=1
    )
    # A window of one block may contain a single document, which has no random next.
    window_blocks: int = option(
        WINDOW_BLOCKS,
        help="Blocks (of 64k tokens) that are shuffled together and among which random next "
        "sentences are found. More require more memory and time to start.",
        at_least=2,
    )

    def check(self) -> None:
        self._rule(self.host_index < self.num_hosts,
                   "`host_index` must be below `num_hosts`", "host_index", "num_hosts")  # fmt: skip
        self._rule(self.batch_size % self.num_hosts == 0,
                   "`batch_size` counts the sequences of all hosts: it must be a multiple of "
                   "`num_hosts`", "batch_size", "num_hosts")  # fmt: skip

    @property
    def reads_aligned(self) -> bool:
        """Whether the stream reads texts with their translations."""
        return False

    def check_aligned(self, aligned: bool, where: str) -> None:
        """Raises ValueError if a corpus has translations and the settings do not read them.

        The reverse raises too. `aligned` says whether the corpus has translations, `where` names it
        in the message.
        """
        if aligned != self.reads_aligned:
            content = "texts with their translations" if aligned else "no texts with translations"
            raise ValueError(
                'segments="aligned" is required for a corpus or mixture with translations, as '
                "kbert-prepare-corpus --target writes it, and is supported for no other. "
                f"Received: {content} in {where}, segments={getattr(self, 'segments', None)!r}"
            )

    def check_documents(self, documents: int, where: str) -> None:
        """Raises ValueError if a split has too few `documents` to make rows.

        `where` names the split in the message.
        """
        if not documents:
            raise ValueError(f"{where} must have at least one document. Received: none")

    def _rule(self, holds: bool, text: str, *names: str) -> None:
        if not holds:
            received = ", ".join(f"{name}={getattr(self, name)!r:.100}" for name in names)
            raise ValueError(f"{text}. Received: {received}")


class MaskingSettings(Options):
    """Settings of how text becomes rows with masked tokens.

    Args:
        {options}
    """

    segments: str | None = option(
        None,
        help="How sequences are made from text. pairs adds next-sentence prediction, halves "
        "sentence-order prediction, the others no sentence objective.",
        choices=list(SEGMENT_SCHEMES),
    )
    short_sequence_share: float | None = option(
        None,
        help="Share of sequences that are shortened to a random length. Default: that of the "
        "segments: 0.1; consecutive 0.05; doc_sentences, full_sentences, runs and "
        "aligned 0.",
        at_least=0,
        at_most=1,
    )
    masking: str = option(
        "token",
        help="Unit of masking. permutation is XLNet's: n-grams of up to five words, which "
        "are not hidden but predicted after the text, in random order.",
        choices=list(MASKING_SCHEMES),
    )
    phrases: str | os.PathLike | tuple[str, ...] | None = option(
        None,
        help="File with one phrase per line, masked as a whole by --masking=phrase. Programs "
        "accept one file for each of --phases, separated by commas, with an empty name "
        "for words only: --phrases=,phrases.txt,entities.txt is ERNIE's.",
        changes_numbers=False,  # the content of the phrases does, not the path
    )
    masked_share: float = option(0.15, help="Share of the tokens to predict.", above=0, at_most=1)
    final_masked_share: float | None = option(
        None,
        help="Share of the tokens to predict at the end of training, reached linearly from "
        "--masked_share: 0.15 after 0.3 is BabyLM's. Evaluations use this share. "
        "Default: the share is constant.",
        above=0,
        at_most=1,
    )
    replacement: tuple[float, float] | None = option(
        None,
        help="Shares of the tokens to predict that become [MASK] and a random token, as "
        "0.8,0.1; the others stay. Default: that of the masking: 0.8,0.1, independent "
        "0.85,0, permutation none.",
        at_least=0,
        at_most=1,
    )
    pack: bool = option(
        False,
        help="Pack several examples, which do not attend to each other, into one sequence "
        "instead of padding: the same examples and masks in fewer sequences.",
    )
    static_masks: int | None = option(
        None,
        help="Use this many fixed versions of an epoch (order, sequences, masks) in turn. "
        "Default: every epoch is new.",
        at_least=1,
    )


class Settings(StreamSettings, MaskingSettings):
    """Settings of `pretraining_dataset`, except the location of the data and the start.

    Values left out (None) are filled with those of the masking or segment scheme. After
    construction `segments`, `replacement` and `short_sequence_share` are never None.

    Args:
        {options}
    """

    sequence_length: int = option(
        128, help="Tokens per sequence (T), including special tokens.", at_least=8, at_most=2**16
    )
    batch_size: int = StreamSettings.with_default("batch_size", 256)
    next_sentence: bool | None = option(
        None, help='True means "pairs"; False, with `segments` left out, means "single".'
    )
    causal_share: float | None = option(
        None,
        help="Share of the sequences that are causal, evenly spread: none of their tokens is "
        "hidden, and each attends only to those before it (`causal_mask`). For "
        "`MaskedAndCausal`.",
        at_least=0,
        below=1,
    )
    attention_shares: tuple[float, float, float, float] | None = option(
        None,
        help="Weights by which UniLM's kinds of sequences are drawn: bidirectional, sequence to "
        "sequence, left to right, right to left, as 2,2,1,1. Tokens are masked in all kinds. "
        "Requires --segments=consecutive. For `UniLM`.",
        at_least=0,
    )
    share_steps: int | None = option(
        None,
        help="Batches over which `masked_share` becomes `final_masked_share`, where it stays.",
        at_least=1,
    )
    drop_remainder: bool = option(
        False,
        help="Drop the last sequences of the last epoch if they do not fill a batch; by "
        "default, empty sequences of weight 0 fill it.",
    )

    def check(self) -> None:
        super().check()
        rule = self._rule
        rule((self.masking == "phrase") == (self.phrases is not None),
             'masking="phrase" requires `phrases`, and no other masking uses them',
             "masking", "phrases")  # fmt: skip
        if self.segments is None:
            is_single = self.next_sentence is False or self.masking_scheme.permutes
            self._set("segments", "single" if is_single else "pairs")
        rule(self.next_sentence in (None, self.segments == "pairs"),
             '`next_sentence` must be True with segments="pairs" and False with any other: leave '
             "out `next_sentence` or `segments`", "next_sentence", "segments")  # fmt: skip
        rule((self.final_masked_share is None) == (self.share_steps is None),
             "`final_masked_share` and `share_steps` require each other: pass both or neither",
             "final_masked_share", "share_steps")  # fmt: skip
        rule(self.final_masked_share is None or self.static_masks is None,
             "`final_masked_share` is not supported with `static_masks`, whose masks are the "
             "same in every epoch: leave out `final_masked_share`",
             "static_masks", "final_masked_share")  # fmt: skip
        rule(self.causal_share is None or self.segment_scheme.label is None,
             '`causal_share` requires segments without a label, such as "single"',
             "causal_share", "segments")  # fmt: skip
        if self.attention_shares is not None:
            rule(sum(self.attention_shares) > 0,
                 "One of the `attention_shares` must be above 0", "attention_shares")  # fmt: skip
            rule(self.segments == "consecutive",
                 '`attention_shares` requires segments="consecutive", whose second segment follows '
                 "the first", "attention_shares", "segments")  # fmt: skip
            rule(self.causal_share is None and not self.masking_scheme.permutes,
                 '`attention_shares` exclude `causal_share` and masking="permutation", which '
                 "decide themselves which tokens attend to which",
                 "attention_shares", "causal_share", "masking")  # fmt: skip
        usual = self.masking_scheme.replacement
        replacement = usual if self.replacement is None else self.replacement
        self._set("replacement", replacement)
        rule(sum(replacement) <= 1 + 1e-9,
             "`replacement` must be two shares, of [MASK] and of random tokens, with a sum of at "
             "most 1", "replacement")  # fmt: skip
        rule(not self.masking_scheme.repeats or replacement[1] == 0,
             'masking="independent" may draw a position twice, so `replacement` must have no '
             "random tokens: pass (share, 0.0)", "masking", "replacement")  # fmt: skip
        if self.masking_scheme.permutes:
            rule(replacement == (0.0, 0.0) and self.causal_share is None,
                 'masking="permutation" hides no tokens: leave out `replacement` and '
                 "`causal_share`", "replacement", "causal_share")  # fmt: skip
            rule(self.segment_scheme.label is None,
                 'masking="permutation" requires segments without a label, such as "single"',
                 "masking", "segments")  # fmt: skip
        if self.segment_scheme.continues:
            rule(not self.pack and not self.short_sequence_share,
                 "Sequences that continue in the next batch must be full: leave out `pack` and "
                 "`short_sequence_share`",
                 "segments", "pack", "short_sequence_share")  # fmt: skip
        if self.short_sequence_share is None:
            self._set("short_sequence_share", self.segment_scheme.short_share)

    def check_documents(self, documents: int, where: str) -> None:
        required = self.segment_scheme.documents
        if documents < required:
            raise ValueError(
                f"{where} has too few documents: segments={self.segments!r} requires {required}, "
                "as the second segment may come from another document. Separate documents by blank "
                'lines, or use segments="single" (next_sentence=False), which requires one. '
                f"Received: {documents} document(s)"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def masking_scheme(self) -> MaskingScheme:
        """Scheme by which the tokens to predict are chosen."""
        return MASKING_SCHEMES[self.masking]

    @property
    def segment_scheme(self) -> SegmentScheme:
        """Scheme by which text is laid out in rows."""
        return SEGMENT_SCHEMES[cast(str, self.segments)]  # `check` has set it

    @property
    def reads_aligned(self) -> bool:
        return self.segment_scheme.aligned

    @property
    def largest_share(self) -> float:
        """Largest masked share of a run, which determines the shapes."""
        return max(self.masked_share, self.final_masked_share or 0.0)

    @property
    def max_predictions(self) -> int:
        """Maximum number of predictions in a row (P)."""
        return self.masking_scheme.columns(self.sequence_length, self.largest_share)

    @property
    def max_examples(self) -> int:
        """Maximum number of examples in a row (K)."""
        return max(8, self.sequence_length // 32) if self.pack else 1

    def version(self, epoch: Tensor) -> Tensor:
        """Returns the number that seeds an epoch's order, rows and masks.

        It is the number of the epoch, or with `static_masks` one of so many numbers in turn.
        """
        return epoch if self.static_masks is None else epoch % self.static_masks
