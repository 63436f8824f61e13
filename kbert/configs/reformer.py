"""The configuration of the Reformer."""

import dataclasses
import math
from typing import Any, ClassVar

from kbert.configs.base import check_choice, check_count, check_rate
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import TransformerConfig

LOCAL, LSH = "local", "lsh"  # in `attention_pattern`


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReformerConfig(EncoderConfig):
    """Sizes and options of a Reformer (Kitaev et al. 2020, https://arxiv.org/abs/2001.04451).

    A Reformer has two residual streams, which are concatenated in its output. `hidden_size` is the
    width of both. Each stream is half as wide (the paper's d_model), and so are the tables of
    tokens and positions.

    Args:
        hidden_size: width of the outputs, twice that of a stream.
        head_size: width of a head; the heads together need not be as wide as a stream.
        attention: tokens that a token attends to: "bidirectional", or "causal" (no later tokens).
        attention_pattern: attention of the layers, repeated over them. "local": a token attends to
            its own chunk and the neighbouring ones. "lsh": to tokens that are hashed to its own
            bucket and the neighbouring ones.
        attention_dropout: dropout rate on the attention probabilities of local layers.
        lsh_dropout: dropout rate on the attention probabilities of LSH layers.
        local_chunk_length: tokens in a chunk of a local layer.
        local_chunks_before: chunks before its own that a token of a local layer attends to. The
            chunks form a ring: the last precedes the first.
        local_chunks_after: chunks after its own that a token of a local layer attends to.
        lsh_chunk_length: tokens in a chunk of an LSH layer, whose tokens are sorted by bucket.
        lsh_chunks_before: chunks before its own that a token of an LSH layer attends to.
        lsh_chunks_after: chunks after its own that a token of an LSH layer attends to.
        num_buckets: number of buckets, which is even; or several even factors of it, which need
            fewer rotations. None = twice the number of LSH chunks in `max_positions`, rounded down
            to a power of 2.
        num_hashes: rounds of hashing, each with its own rotations.
        hash_seed: seed of the rotations. None = new rotations in each training step, and the same
            ones in inference.
        positions: kind of positions. "learned": a table. "axial": a position is a row and a column
            of `axial_shape`, and its embedding concatenates those of both.
        axial_shape: rows and columns; their product is at least `max_positions`.
        axial_sizes: embedding widths of rows and columns; their sum is the width of a stream.
        feed_forward_chunk: tokens that the feed-forward part processes at a time; None = all.

    Raises:
        ValueError: a value is out of range, or a field that the Reformer does not use is set.

    Example:
        >>> config = ReformerConfig(vocabulary_size=32, hidden_size=16, num_layers=2, num_heads=2,
        ...                         intermediate_size=16, head_size=4, max_positions=64)
        >>> config.layer_attention(1), config.stream_size, config.bucket_factors
        ('lsh', 8, (2,))
    """

    kind = "reformer"
    told = "a Reformer, which kbert.Encoder loads"

    num_segments: int = 0
    pooler_activation: str | None = None
    activation: str = "relu"
    block: str = "pre_norm"
    embedding_norm: bool = False
    output: str = "untied"
    attention_pattern: tuple[str | int, ...] = (LOCAL, LSH)
    head_size: int = 64
    attention: str = "bidirectional"
    lsh_dropout: float = 0.0
    local_chunk_length: int = 64
    local_chunks_before: int = 1
    local_chunks_after: int = 0
    lsh_chunk_length: int = 64
    lsh_chunks_before: int = 1
    lsh_chunks_after: int = 0
    num_buckets: int | tuple[int, ...] | None = None
    num_hashes: int = 1
    hash_seed: int | None = None
    axial_shape: tuple[int, ...] | None = None
    axial_sizes: tuple[int, ...] | None = None
    feed_forward_chunk: int | None = None

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **TransformerConfig.CHOICES,
        "positions": ("learned", "axial"),
    }
    UNUSED = (
        *("num_segments", "embedding_size", "num_layer_groups", "pooler_norm", "pooling", "part"),
        *("edits",),
        *("rotary_base", "local_rotary_base", "feed_forward", "norm", "block", "embedding_norm"),
        *("use_bias", "bias_exceptions", "head_activation", "num_key_value_heads", "output"),
        *("token_transform", "padding_id"),
    )

    def __post_init__(self) -> None:
        for name in ("num_buckets", "axial_shape", "axial_sizes"):
            if isinstance(getattr(self, name), list):  # JSON has no tuples
                object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()
        check_choice("attention", self.attention, ("bidirectional", "causal"))
        check_rate("lsh_dropout", self.lsh_dropout)
        for kind in (LOCAL, LSH):
            check_count(f"{kind}_chunk_length", getattr(self, f"{kind}_chunk_length"), minimum=1)
            for side in ("before", "after"):
                name = f"{kind}_chunks_{side}"
                check_count(name, getattr(self, name), minimum=0)
        for name in ("head_size", "num_hashes"):
            check_count(name, getattr(self, name), minimum=1)
        if self.hash_seed is not None:
            check_count("hash_seed", self.hash_seed, minimum=0)
        if self.feed_forward_chunk is not None:
            check_count("feed_forward_chunk", self.feed_forward_chunk, minimum=1)
        if self.hidden_size % 2:
            raise ValueError(
                "`hidden_size` must be even: it is the width of two streams. Received: "
                f"{self.hidden_size}"
            )
        if self.num_buckets == () or any(not _is_even(number) for number in self.bucket_factors):
            raise ValueError(
                "`num_buckets` must be one or more even numbers, as a rotation and its opposite "
                f"are two buckets. Received: {self.num_buckets!r}"
            )
        self._check_axes()

    def _check_pattern(self) -> None:
        """Raises ValueError unless `attention_pattern` is a tuple of "local" and "lsh"."""
        pattern = self.attention_pattern
        are_known = isinstance(pattern, tuple) and all(kind in (LOCAL, LSH) for kind in pattern)
        if not are_known or not pattern:
            raise ValueError(
                '`attention_pattern` must name "local" or "lsh" attention, such as ("local", '
                f'"lsh"). Received: {pattern!r}'
            )

    def _check_axes(self) -> None:
        """Raises ValueError if `axial_shape` or `axial_sizes` do not fit the other fields."""
        shape, sizes = self.axial_shape, self.axial_sizes
        if self.positions != "axial":
            if shape is not None or sizes is not None:
                raise ValueError(
                    "`axial_shape` and `axial_sizes` require positions='axial'. Received: "
                    f"{shape}, {sizes}, positions={self.positions!r}"
                )
            return
        for name, axes in {"axial_shape": shape, "axial_sizes": sizes}.items():
            if not isinstance(axes, tuple) or len(axes) != 2:
                raise ValueError(f"`{name}` must be two numbers. Received: {axes!r}")
            for number in axes:
                check_count(name, number, minimum=1)
        if math.prod(shape or ()) < self.max_positions:
            raise ValueError(
                "The product of `axial_shape` must be at least `max_positions`. Received: "
                f"{shape}, max_positions={self.max_positions}"
            )
        if sum(sizes or ()) != self.stream_size:
            raise ValueError(
                "`axial_sizes` must add up to half of `hidden_size`, the width of a stream. "
                f"Received: {sizes}, hidden_size={self.hidden_size}"
            )

    def layer_attention(self, layer: int) -> str:
        """Returns the attention of a layer: "local" or "lsh"."""
        return str(self.attention_pattern[layer % len(self.attention_pattern)])

    def chunk_length(self, attention: str) -> int:
        """Returns the number of tokens in a chunk of an attention, "local" or "lsh"."""
        return getattr(self, f"{attention}_chunk_length")

    def window(self, layer: int) -> int | None:
        return None

    @property
    def stream_size(self) -> int:
        """Width of a residual stream."""
        return self.hidden_size // 2

    @property
    def embedding_width(self) -> int:
        return self.stream_size

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """Chunk lengths in tokens of the attentions that occur in the model, sorted, distinct."""
        kinds = {self.layer_attention(layer) for layer in range(self.num_layers)}
        return tuple(sorted({self.chunk_length(kind) for kind in kinds}))

    @property
    def chunk_multiple(self) -> int:
        """Least common multiple of the chunk lengths; longer sequences are padded to a multiple."""
        return math.lcm(*self.chunk_lengths)

    @property
    def bucket_factors(self) -> tuple[int, ...]:
        """Factors whose product is the number of buckets; one factor is the number itself.

        With `num_buckets=None` they are what transformers chooses for a sequence of `max_positions`
        tokens (`_set_num_buckets` in its modeling_reformer.py).
        """
        if self.num_buckets is not None:
            return self.num_buckets if isinstance(self.num_buckets, tuple) else (self.num_buckets,)
        chunks = max(1, self.max_positions // self.lsh_chunk_length)
        power = (2 * chunks).bit_length() - 1
        if 2**power > 2 * max(math.isqrt(chunks), self.lsh_chunk_length):
            return (2 ** (power // 2), 2 ** (power - power // 2))
        return (2**power,)

    def count_embeddings(self) -> int:
        tokens = self.vocabulary_size * self.stream_size
        if self.positions == "learned":
            return tokens + self.max_positions * self.stream_size
        return tokens + sum(math.prod(axis) for axis in zip(*self._axes(), strict=True))

    def _axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.axial_shape or (), self.axial_sizes or ()

    def count_blocks(self) -> int:
        width, heads = self.stream_size, self.num_heads * self.head_size
        feed_forward = 2 * width * self.intermediate_size + self.intermediate_size + width
        kernels = {LOCAL: 4, LSH: 3}
        kinds = [self.layer_attention(layer) for layer in range(self.num_layers)]
        attention = sum(kernels[kind] for kind in kinds) * width * heads
        norms = 2 * self.num_layers * self.count_norm(width) + self.count_norm(self.hidden_size)
        return self.num_layers * feed_forward + attention + norms


def _is_even(number: Any) -> bool:
    is_whole = isinstance(number, int) and not isinstance(number, bool)
    return is_whole and number >= 2 and number % 2 == 0
