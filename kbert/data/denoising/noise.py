"""Base class of noise: what the encoder reads of a text, and what the decoder predicts.

A kind of noise is one class in one file, and one line of `kbert.core.late.TABLE`. It turns rows of
text into `Sides` by dense integer operations. Every random number is a hash of the row's key and a
number. So a row does not depend on its batch.

Shapes: N rows, L maximum number of text tokens of a row, S and T maximum number of tokens of the
encoder's input and of the targets.
"""

from __future__ import annotations

import json
from typing import ClassVar, NamedTuple, cast

from kbert.core import registry
from kbert.core.late import tf
from kbert.core.options import Options, parse_kind
from kbert.core.registry import Registered
from kbert.tokenizers.base import Tokenizer


class Text(NamedTuple):
    """Rows of text, without special tokens.

    Attributes:
        ids: (N, L) int32, token ids; any id after the end of a row.
        length: (N,) int32, number of tokens; 0 in an empty row, which fills up a batch.
        begins: (N, L) bool, True at the first token of a sentence and of the row; None if the noise
            does not use sentences.
    """

    ids: tf.Tensor
    length: tf.Tensor
    begins: tf.Tensor | None = None

    @property
    def width(self) -> int:
        """Maximum number of tokens L."""
        return self.ids.shape[1]

    @property
    def inside(self) -> tf.Tensor:
        """(N, L) bool, True at the tokens of the rows."""
        return tf.range(self.width) < self.length[:, None]


class Sides(NamedTuple):
    """Both sides of some rows, with special tokens.

    Attributes:
        source: (N, S) int32, input of the encoder, padded.
        source_length: (N,) int32, number of tokens of each source.
        target: (N, T) int32, tokens that the decoder predicts, padded.
        target_length: (N,) int32, number of tokens of each target.
        start: (N,) int32, first input token of the decoder; None is that of the settings.
        first_position: (N,) int32, position of the decoder's first input token; None if positions
            are not a feature.
    """

    source: tf.Tensor
    source_length: tf.Tensor
    target: tf.Tensor
    target_length: tf.Tensor
    start: tf.Tensor | None = None
    first_position: tf.Tensor | None = None


class Noise(Registered, Options, sort="noise"):
    """Base class of noise: a frozen dataclass of options with the function that corrupts rows.

    A subclass is registered under its `kind`, which is its name in `denoising_dataset`.

    Attributes:
        kind: name of the noise.
        segments: default layout of text in rows, a name in `kbert.data.denoising.rows.LAYOUTS`.
        decoder_start: role of the decoder's first input token; None if the row determines it.
        roles: roles of the special tokens that the tokenizer must have.
    """

    segments: ClassVar[str]
    decoder_start: ClassVar[str | None] = "pad"
    roles: ClassVar[tuple[str, ...]] = ("pad", "sep")

    @property
    def uses_sentences(self) -> bool:
        """Whether `corrupt` reads where sentences begin."""
        return False

    def text_length(self, sequence_length: int) -> int:
        """Returns L, the maximum number of text tokens of a row whose source has S tokens.

        `sequence_length` is S, which includes special tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `text_length`.")

    def target_length(self, sequence_length: int) -> int:
        """Returns T, the maximum number of targets of a row, with special tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define `target_length`.")

    def check_tokenizer(self, tokenizer: Tokenizer, sequence_length: int) -> None:
        """Raises ValueError if a tokenizer lacks a token that the noise needs.

        `sequence_length` is S, on which the number of tokens may depend.
        """
        missing = [role for role in self.roles if getattr(tokenizer, f"{role}_id") is None]
        if missing:
            raise ValueError(
                f"noise={self.kind!r} requires a tokenizer with {', '.join(self.roles)} tokens. "
                f"Received: one without {', '.join(missing)}"
            )

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        """Makes both sides of some rows.

        Args:
            keys: (N,) uint64, random key of each row.
            text: the rows.
            tokenizer: tokenizer of the text, which gives the ids of special tokens.
            sequence_length: S, maximum number of tokens of a source.

        Returns:
            The source and the targets. An empty row has special tokens only.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `corrupt`.")

    def to_text(self) -> str:
        """Returns the noise as a flag: its kind, and after a colon the options that are changed.

        Raises:
            ValueError: an option has a value that a flag cannot express, such as a comma.
        """
        usual = type(self)()
        changes = {
            name: value for name, value in self.arguments().items() if value != getattr(usual, name)
        }
        words = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in changes.items()
        ]
        text = f"{self.kind}:{','.join(words)}" if words else self.kind
        try:
            equal = make_noise(text) == self
        except (TypeError, ValueError):
            equal = False
        if not equal:
            raise ValueError(
                "The options of a noise must be writable as name=value, separated by commas. "
                f"Received: {changes}"
            )
        return text


def make_noise(noise: str | Noise) -> Noise:
    """Makes a noise from its name, such as "bart", or from a name with options.

    Args:
        noise: name of a kind; options may follow after a colon, separated by commas. A `Noise` is
            returned unchanged.

    Raises:
        ValueError: no noise has this name, or an option is unknown or out of range.

    Example:
        >>> make_noise("t5:masked_share=0.5").masked_share
        0.5
    """
    if isinstance(noise, Noise):
        return noise
    kind, options = parse_kind(noise)
    cls = cast(type[Noise], registry.get("noise", kind))
    return cls.from_arguments(options, f"noise={kind!r}")


def frame(
    ids: tf.Tensor,
    length: tf.Tensor,
    width: int,
    *,
    pad_id: int,
    sep_id: int,
    cls_id: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds special tokens to rows: [CLS] if there is one, the text, [SEP]; then padding.

    Args:
        ids: (N, W) int32, text of the rows; any id after the end of a row.
        length: (N,) int32, number of text tokens of each row.
        width: number of tokens of a framed row. Longer rows are truncated.
        pad_id: id of padding.
        sep_id: id of the token after the text.
        cls_id: id of the token before the text; None for no such token.

    Returns:
        Framed rows (N, `width`) int32, and their number of tokens (N,) int32.

    Example:
        >>> rows, length = frame(tf.constant([[7, 8, 9]]), tf.constant([2]), 5,
        ...                      pad_id=0, sep_id=3, cls_id=2)
        >>> rows.numpy().tolist(), length.numpy().tolist()
        ([[2, 7, 8, 3, 0]], [4])
    """
    first = int(cls_id is not None)
    space = max(0, width - first - ids.shape[1])
    ids = tf.pad(ids, [[0, 0], [first, space]], constant_values=cls_id or 0)[:, :width]
    column, end = tf.range(width), length[:, None] + first
    ids = tf.where(column < end, ids, tf.where(column == end, sep_id, pad_id))
    return ids, tf.minimum(length + first + 1, width)


def compact(ids: tf.Tensor, keep: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Moves the kept tokens of each row to its left.

    Args:
        ids: (N, L) int32, token ids.
        keep: (N, L) bool, tokens to keep.
        width: W, number of columns of the result. Further tokens are dropped.

    Returns:
        The tokens (N, W) int32, 0 after the end of a row; and the number of kept tokens of each row
        (N,) int32, which may exceed W.

    Example:
        >>> keep = tf.constant([[True, False, True]])
        >>> rows, count = compact(tf.constant([[7, 8, 9]]), keep, 3)
        >>> rows.numpy().tolist(), count.numpy().tolist()
        ([[7, 9, 0]], [2])
    """
    number = tf.cumsum(tf.cast(keep, tf.int32), 1)  # (N, L)
    # Column W collects what is dropped.
    slot = tf.where(keep, tf.minimum(number - 1, width), width)
    return scatter_rows(slot, ids, width + 1)[:, :width], number[:, -1]


def scatter_rows(columns: tf.Tensor, values: tf.Tensor, width: int) -> tf.Tensor:
    """Writes values to columns of their rows, and adds values of the same column.

    `columns` and `values` are (N, K) int32, all columns below `width`. Returns (N, `width`) int32.

    >>> scatter_rows(tf.constant([[2, 0]]), tf.constant([[7, 8]]), 4).numpy().tolist()
    [[8, 0, 7, 0]]
    """
    rows = tf.shape(columns)[0]
    index = tf.range(rows)[:, None] * width + columns
    values = tf.broadcast_to(values, tf.shape(columns))
    flat = tf.scatter_nd(tf.reshape(index, [-1, 1]), tf.reshape(values, [-1]), [rows * width])
    return tf.reshape(flat, [-1, width])


def gather_rows(values: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Returns values at columns of their rows; columns outside of a row are moved to its ends.

    `values` is (N, W), `columns` (N, K) int32; the result is (N, K).

    >>> gather_rows(tf.constant([[7, 8, 9]]), tf.constant([[2, 0, 5]])).numpy().tolist()
    [[9, 7, 9]]
    """
    width = tf.shape(values)[1]
    columns = tf.clip_by_value(columns, 0, width - 1)
    index = tf.range(tf.shape(values)[0])[:, None] * width + columns
    return tf.gather(tf.reshape(values, [-1]), index)
