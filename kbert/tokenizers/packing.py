"""Packs token ids into the dense batch of an encoder: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].

Other layouts:

- XLNet's rows end in [CLS]: A [SEP] [CLS], or A [SEP] B [SEP] [CLS].
- RoBERTa has two separators between A and B: <s> A </s></s> B </s>.
- T5 has no [CLS]: A </s>, or A </s> B </s>. PEGASUS, Marian and mBART have no separator either, and
  mBART has a language's code after the last </s>, or before the text.
- For fine-tuning a decoder, a special token ends the row: [START] A [DELIMITER] B [EXTRACT].
- Without special tokens: the texts alone, one after the other.

Only core TensorFlow operations are used, so a SavedModel with this graph loads in any TensorFlow
Serving binary. The round-robin trimmer of tensorflow-text is an operation that older servers lack.

Shapes: B rows, T columns (the batch's longest row, rounded up).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.ragged import Ragged

# One number, or several if a token is represented by several numbers.
TokenId = int | Sequence[int]
_NO_LIMIT = 1 << 30  # columns


def pair_lengths(first: tf.RaggedTensor, second: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the numbers of tokens of the first and of the second texts, (B,) int32 each.

    Takes the token ids of the texts, (B, ragged) each. Raises InvalidArgumentError if `first` and
    `second` have different numbers of texts.
    """
    lengths = [tf.cast(ids.row_lengths(), tf.int32) for ids in (first, second)]
    check = tf.debugging.assert_equal(
        *map(tf.size, lengths),
        "Every pair must have two texts: the numbers of first and second texts differ",
    )
    with tf.control_dependencies([check]):
        length_a, length_b = map(tf.identity, lengths)
    return length_a, length_b


def pair_limits(first: tf.Tensor, second: tf.Tensor, budget: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many tokens of each first and second text remain, (B,) int32 each.

    `first` and `second` (B,) are the lengths of the texts, `budget` the maximum of both together.
    The longer text loses tokens first; on a tie, the second one. This is the closed form of
    `_truncate_seq_pair` in google-research/bert's run_classifier.py.
    """
    keep_first = tf.minimum(first, tf.maximum(budget - second, budget - budget // 2))
    keep_second = tf.minimum(second, tf.maximum(budget - first, budget // 2))
    return keep_first, keep_second


def build_inputs(
    first: tf.RaggedTensor | Ragged,
    second: tf.RaggedTensor | Ragged | None = None,
    *,
    cls_id: TokenId | None,
    sep_id: TokenId | None,
    pad_id: TokenId,
    last_id: TokenId | None = None,
    max_length: int,
    multiple: int = 16,
    separators: int = 1,
    cls_last: bool = False,
) -> dict[str, tf.Tensor]:
    """Packs one or two ragged segments into dense features, in graph or eagerly.

    Rows longer than `max_length` are truncated at the end of a segment. In a pair, the longer
    segment loses tokens first. The width is the batch's longest row rounded up to `multiple`, so
    that a compiled model gets few shapes.

    Args:
        first: ids of segment A, (B, ragged), without special tokens; or (B, ragged, C) if C numbers
            represent a token, such as the characters of a word. For a `Ragged` the result is NumPy
            arrays.
        second: ids of segment B, of the same form as `first`; None for single texts.
        cls_id: id of the tokenizer's [CLS], before the texts; None for no such token, as in T5.
        sep_id: id of the tokenizer's [SEP], after each text; None for no special tokens.
        pad_id: id of the tokenizer's padding token.
        last_id: id of the token that ends a row; None is `sep_id`.
        max_length: maximum width, special tokens included (the encoder's `max_positions`).
        multiple: number of which the width is a multiple, unless that exceeds `max_length`.
        separators: number of [SEP] between A and B (the tokenizer's `pair_separators`).
        cls_last: whether [CLS] comes after the texts, as a separate segment, 2.

    Returns:
        `token_ids`, (B, T) or (B, T, C), `segment_ids` (0 up to the [SEP] before B, and for
        padding; 1 for B [SEP]) and `padding_mask` (1 = a token), both (B, T); all int32.

    Raises:
        ValueError: `max_length` is too small for the special tokens, or `multiple` is below 1.

    Example:
        >>> import tensorflow as tf
        >>> ids = tf.ragged.constant([[7, 8], []], dtype=tf.int32)
        >>> batch = build_inputs(ids, cls_id=2, sep_id=3, pad_id=0, max_length=128, multiple=4)
        >>> batch["token_ids"].numpy().tolist()
        [[2, 7, 8, 3], [2, 3, 0, 0]]
    """
    last_id = sep_id if last_id is None else last_id
    cls = [] if cls_id is None else [cls_id]
    end = [] if last_id is None else [last_id]
    begin, end = ([], [*end, *cls]) if cls_last else (cls, end)
    between = [] if sep_id is None else [sep_id] * separators
    return _pack(
        first,
        second,
        begin=begin,
        between=between,
        end=end,
        pad=pad_id,
        max_length=max_length,
        multiple=multiple,
        last_segment=2 if cls_last and end else None,
    )


def _pack(
    first: tf.RaggedTensor | Ragged,
    second: tf.RaggedTensor | Ragged | None,
    *,
    begin: Sequence[Any],
    between: Sequence[Any],
    end: Sequence[Any],
    pad: Any,
    max_length: int,
    multiple: int,
    last_segment: int | None,
) -> dict[str, Any]:
    """Packs texts or pairs between special tokens into the features of `build_inputs`.

    Args:
        first: ids of the first texts.
        second: ids of the second texts, or None.
        begin: special tokens before the texts.
        between: special tokens between the two texts of a pair.
        end: special tokens after the texts.
        pad: padding token.
        max_length: maximum width, special tokens included.
        multiple: number of which the width is a multiple, unless that exceeds `max_length`.
        last_segment: segment of the last token of a row; None = that of the token before it.

    Raises:
        ValueError: `max_length` is too small for the special tokens, or `multiple` is below 1.
    """
    inner = 0 if second is None else len(between)
    specials = len(begin) + inner + len(end)
    if max_length < specials or multiple < 1:
        raise ValueError(
            f"max_length must be at least {specials} (the special tokens of a row, such as [CLS] "
            "and the [SEP] of each segment) and multiple at least 1. Received: "
            f"max_length={max_length}, multiple={multiple}"
        )
    budget = max_length - specials
    if isinstance(first, Ragged):
        return _build_arrays(
            [first] if second is None else [first, second],
            budget,
            begin=begin,
            between=between,
            end=end,
            pad=pad,
            last_segment=last_segment,
            width=(multiple, max_length),
        )
    if second is None:
        length_a = tf.minimum(tf.cast(first.row_lengths(), tf.int32), budget)
        total = length_a + specials
    else:
        length_a, length_b = pair_lengths(first, second)
        length_a, length_b = pair_limits(length_a, length_b, budget)
        total = length_a + length_b + specials

    # An empty batch also has a width.
    longest = tf.reduce_max(tf.concat([total, [max(specials, 1)]], 0))
    width = tf.minimum((longest + multiple - 1) // multiple * multiple, max_length)
    column = tf.range(width)[None, :]  # (1, T)
    total, end_a = total[:, None], length_a[:, None] + len(begin)

    # The index at each position into all tokens: those of the texts, then the special ones.
    texts = [first] if second is None else [first, second]
    special = [tf.cast(x, first.dtype) for x in (*begin, *between, *end, pad)]
    tokens = tf.concat([*(ids.flat_values for ids in texts), tf.stack(special)], 0)
    at_begin = tf.shape(tokens)[0] - len(special)
    at_between, at_end = at_begin + len(begin), at_begin + len(begin) + len(between)
    is_real = column < total
    index = tf.where(is_real, at_end + column - (total - len(end)), tf.shape(tokens)[0] - 1)
    index = tf.where(column < end_a, _starts(first) + column - len(begin), index)
    index = tf.where(column < len(begin), at_begin + column, index)
    segments = tf.zeros_like(index)
    if second is not None:
        start_b = end_a + len(between)
        inside = (column >= start_b) & (column < total - len(end))
        behind_a = tf.shape(first.flat_values)[0] + _starts(second)
        index = tf.where(inside, behind_a + column - start_b, index)
        inside = (column >= end_a) & (column < start_b)
        index = tf.where(inside, at_between + column - end_a, index)
        segments = tf.cast((column >= start_b) & is_real, tf.int32)
    if last_segment is not None:
        segments = tf.where(column == total - 1, last_segment, segments)
    return {
        "token_ids": tf.cast(tf.gather(tokens, index), tf.int32),
        "segment_ids": segments,
        "padding_mask": tf.cast(is_real, tf.int32),
    }


def check_input_tokens(tokenizer: TokenizerLike) -> None:
    """Raises ValueError if a tokenizer lacks a token of an encoder's input."""
    missing = [x for x in ("pad", "cls", "sep") if getattr(tokenizer, f"{x}_id") is None]
    if missing:
        raise ValueError(
            "The tokenizer's special_tokens must name a padding, a first and a separator token "
            f"(pad, cls, sep). Received: a {type(tokenizer).__name__} without "
            f"{', '.join(missing)}"
        )


def padded_batch(
    tokenizer: TokenizerLike,
    texts: Any,
    second: Any = None,
    *,
    padding: Any = True,
    max_length: int | None = None,
) -> dict[str, Any]:
    """Tokenizes texts and packs them into an encoder's input; see `Tokenizer.__call__`."""
    if padding not in (True, "longest", "max_length"):
        raise ValueError(
            'padding must be False (ragged ids), True or "longest" (the width of the longest row) '
            f'or "max_length". Received: padding={padding!r}'
        )
    if isinstance(max_length, bool) or not isinstance(max_length, int | np.integer | None):
        raise ValueError(f"max_length must be an integer. Received: {max_length!r}")
    is_fixed = padding == "max_length"
    if is_fixed and max_length is None:
        raise ValueError('padding="max_length" needs max_length. Received: max_length=None')
    begin, end = tokenizer.prefix_ids, tokenizer.suffix_ids
    if any(x is None for x in (tokenizer.pad_id, *begin, *end)):
        check_input_tokens(tokenizer)
    limit = _NO_LIMIT if max_length is None else int(max_length)
    features = _pack(
        tokenizer.encode(_listed(texts)),
        None if second is None else tokenizer.encode(_listed(second)),
        begin=begin,
        between=[tokenizer.sep_id] * tokenizer.pair_separators,
        end=end,
        pad=tokenizer.pad_id,
        max_length=limit,
        multiple=limit if is_fixed else 1,
        last_segment=2 if tokenizer.cls_last else None,
    )
    if is_fixed and not isinstance(features["token_ids"], np.ndarray):
        for values in features.values():
            values.set_shape([None, limit, *values.shape[2:]])
    return features


def _listed(texts: Any) -> Any:
    """Returns a batch of texts; one string becomes a batch of one row."""
    if isinstance(texts, str | bytes):
        return [texts]
    is_scalar = getattr(getattr(texts, "shape", None), "rank", None) == 0
    return texts[None] if is_scalar else texts


def _starts(ids: tf.RaggedTensor) -> tf.Tensor:
    """Returns the index of the first token of each row of `ids` among all tokens, (B, 1) int32."""
    return tf.cast(ids.row_starts(), tf.int32)[:, None]


def _build_arrays(
    texts: Sequence[Ragged],
    budget: int,
    *,
    begin: Sequence[Any],
    between: Sequence[Any],
    end: Sequence[Any],
    pad: Any,
    last_segment: int | None,
    width: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Packs segments into NumPy arrays of the features of `build_inputs`.

    Args:
        texts: ids of the first texts and, for pairs, of the second texts, B each.
        budget: maximum number of text tokens in a row.
        begin: special tokens before the texts.
        between: special tokens between two texts.
        end: special tokens after the texts.
        pad: padding token.
        last_segment: segment of the last token of a row; None = that of the token before it.
        width: (multiple, maximum) of the width.
    """
    if len({len(ids) for ids in texts}) > 1:
        raise ValueError(
            "Every pair must have two texts: the numbers of first and second texts differ. "
            f"Received: {' and '.join(str(len(ids)) for ids in texts)}"
        )
    rows: list[np.ndarray] = []
    starts = []  # first column of the second text in each row
    for segments in zip(*texts, strict=True):
        first = segments[0][: _kept(*map(len, segments), budget=budget)]
        row = [*begin, *first]
        starts.append(len(row) + len(between) if len(segments) > 1 else None)
        if len(segments) > 1:
            second = segments[1][
                : _kept(len(segments[1]), len(segments[0]), budget=budget, is_second=True)
            ]
            row += [*between, *second]
        rows.append(np.array([*row, *end], np.int32))
    min_length = len(begin) + len(end) + (len(between) if len(texts) > 1 else 0)
    longest = max([*map(len, rows), min_length, 1])  # an empty batch also has a width
    columns = min(-(-longest // width[0]) * width[0], width[1])
    features = {
        "token_ids": np.full((len(rows), columns), pad, np.int32),
        "segment_ids": np.zeros((len(rows), columns), np.int32),
        "padding_mask": np.zeros((len(rows), columns), np.int32),
    }
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        features["token_ids"][number, : len(row)] = row
        if start is not None:
            features["segment_ids"][number, start : len(row)] = 1
        if last_segment is not None:
            features["segment_ids"][number, len(row) - 1] = last_segment
        features["padding_mask"][number, : len(row)] = 1
    return features


def _kept(own: int, other: int = 0, *, budget: int, is_second: bool = False) -> int:
    """Returns how many of a text's `own` tokens remain in a row of at most `budget` text tokens.

    `other` is the length of the other text of a pair, 0 for a single text. The longer text loses
    tokens first; on a tie, the second one (`is_second`).
    """
    half = budget // 2 if is_second else budget - budget // 2
    return min(own, max(budget - other, half)) if other else min(own, budget)
