"""The settings of a pretraining dataset, checked as a whole."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `pretraining_dataset` was told, apart from where the data lies and where to start."""

    sequence_length: int
    batch_size: int
    seed: int
    masking: str
    masked_share: float
    next_sentence: bool
    short_sequence_share: float
    epochs: int | None
    drop_remainder: bool
    num_hosts: int
    host_index: int
    threads: int | None
    window_blocks: int

    def __post_init__(self):
        def rule(holds: bool, text: str, *names: str) -> None:
            if not holds:
                received = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
                raise ValueError(f"{text}. Received: {received}")

        length, batch, hosts = self.sequence_length, self.batch_size, self.num_hosts
        rule(8 <= length <= 2**16, "`sequence_length` must lie in 8..65536", "sequence_length")
        rule(self.masking in ("token", "whole_word"),
             '`masking` must be "token" or "whole_word"', "masking")  # fmt: skip
        rule(0 < self.masked_share <= 1, "`masked_share` must lie in (0, 1]", "masked_share")
        rule(0 <= self.short_sequence_share <= 1,
             "`short_sequence_share` must lie in [0, 1]", "short_sequence_share")  # fmt: skip
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

    @property
    def num_specials(self) -> int:
        """[CLS] and the [SEP] behind each segment."""
        return 3 if self.next_sentence else 2
