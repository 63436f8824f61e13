"""From the plan of a window to rows: whole global batches, hosts' shares, dense tokens.

Rows are passed on as (N, 6K + 3) int32, with K examples per row. The columns are:

- the two spans of each example, 4K columns;
- the label of each example, K columns;
- the number of each example in the plan of its window, K columns;
- the place of the row: epoch, window, row.
K is 1 unless examples are packed. Tokens are gathered last, for a few rows at a time.

Shapes: N rows, K examples of a row, T sequence length, B rows of a global batch, H hosts.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.data.pretraining.walk import PLAN_COLUMNS

EXAMPLE_COLUMNS = (*PLAN_COLUMNS, "number")
_PLACE = ("epoch", "window", "row")
_SPANS = 4  # columns of an example with the spans of its tokens


def row_columns(num_examples: int) -> int:
    """Returns the number of columns in the plan of a row with `num_examples` examples.

    >>> row_columns(1), row_columns(8)
    (9, 51)
    """
    return len(EXAMPLE_COLUMNS) * num_examples + len(_PLACE)


def number_examples(plan: tf.Tensor) -> tf.Tensor:
    """Appends the numbers 0 … M - 1 to the M examples in the plan of a window: (M, 5) → (M, 6).

    >>> number_examples(tf.zeros([2, 5], tf.int32)).numpy().tolist()
    [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
    """
    return tf.concat([plan, tf.range(tf.shape(plan)[0])[:, None]], 1)


def place_rows(rows: tf.Tensor, epoch: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Appends epoch, window and row number to the N rows of a window: (N, 6K) → (N, 6K + 3).

    K is the number of examples in a row.

    >>> place_rows(tf.zeros([2, 6], tf.int32), 3, 1).numpy()[:, 6:].tolist()
    [[3, 1, 0], [3, 1, 1]]
    """
    count = tf.shape(rows)[0]
    columns = [tf.fill([count], tf.cast(n, tf.int32)) for n in (epoch, window)]
    return tf.concat([rows, tf.stack([*columns, tf.range(count)], 1)], 1)


def carry_state(
    token_dtype: str, skip: int | tf.Tensor, num_examples: int = 1
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the initial state of `whole_batches`: rows to skip, no tokens, no rows.

    `token_dtype` is the type of the tokens, `num_examples` the number of examples in a row. `skip`
    is the number of rows to skip at the beginning of the data.
    """
    return (
        tf.cast(skip, tf.int32),
        tf.zeros([0], token_dtype),
        tf.zeros([0, row_columns(num_examples)], tf.int32),
    )


def whole_batches(
    state: tuple[tf.Tensor, ...], window: tuple[tf.Tensor, ...], *, batch_size: int, keep_rest: bool
) -> tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
    """Turns windows into whole global batches; the body of `tf.data.Dataset.scan`.

    Rows that do not fill a batch are carried, with the few tokens that they need, to the front of
    the next window. So a batch may span windows and epochs. The position of a batch follows from
    its first row. A batch can be incomplete only at the end of the data.

    Args:
        state: rows to skip, and the tokens and rows carried over; see `carry_state`.
        window: `(tokens, rows, last)`; `last` marks the empty window that ends the data.
        batch_size: B, rows of a global batch.
        keep_rest: whether the last batch of the data is filled up with empty rows; if False, it is
            dropped.

    Returns:
        The new state, and `(tokens, rows, positions)`: rows (N, 6K + 3), positions (N, 3) int32,
        N a multiple of B. A position is (epoch, window, row) of the first row after the batch.
        Its `row` is counted from the beginning of the window of the batch's first row.
    """
    skip, old_tokens, old_rows = state
    tokens, rows, last = window
    skipped = tf.minimum(skip, tf.shape(rows)[0])
    starts = tf.range(0, _num_spans(rows), 2)  # the columns that point at tokens
    starts = tf.one_hot(starts, rows.shape[1], on_value=tf.size(old_tokens), dtype=tf.int32)
    rows = tf.concat([old_rows, rows[skipped:] + tf.reduce_sum(starts, 0)], 0)
    if keep_rest:
        missing = tf.where(last, -tf.shape(rows)[0] % batch_size, 0)
        rows = tf.pad(rows, [[0, missing], [0, 0]])
    tokens = tf.concat([old_tokens, tokens], 0)

    full = tf.shape(rows)[0] // batch_size * batch_size
    first = rows[:full:batch_size, -len(_PLACE) :] + [0, 0, batch_size]
    positions = tf.repeat(first, batch_size, axis=0)
    state = skip - skipped, *_compact(tokens, rows[full:])
    return state, (tokens, rows[:full], positions)


def number_batches(
    state: tf.Tensor, window: tuple[tf.Tensor, ...], *, batch_size: int
) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Appends the number of its batch to each position; the body of `tf.data.Dataset.scan`.

    Args:
        state: number of batches before the window's first batch.
        window: `(tokens, rows, positions)` from `whole_batches`.
        batch_size: B, rows of a global batch.

    Returns:
        The number of batches before the next window, and the window with positions (N, 4).

    Example:
        >>> window = (tf.zeros([0]), tf.zeros([4, 9]), tf.zeros([4, 3], tf.int32))
        >>> state, (_, _, positions) = number_batches(tf.constant(7), window, batch_size=2)
        >>> int(state), positions[:, 3].numpy().tolist()
        (9, [7, 7, 8, 8])
    """
    tokens, rows, positions = window
    count = tf.shape(positions)[0]
    numbers = state + tf.range(count) // batch_size
    return state + count // batch_size, (tokens, rows, tf.concat([positions, numbers[:, None]], 1))


def _compact(tokens: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Drops the tokens that `rows` (N, 6K + 3), each of K examples, do not use.

    Returns the other tokens, and the rows with spans that point into these.
    """
    columns = _num_spans(rows)
    spans = tf.reshape(rows[:, :columns], [-1, 2])  # start, length of every A and B
    start, length = tf.unstack(spans, axis=1)
    offset = tf.cumsum(length, exclusive=True)
    used = tf.range(tf.reduce_sum(length)) + tf.repeat(start - offset, length)
    spans = tf.reshape(tf.stack([offset, length], 1), [-1, columns])
    return tf.gather(tokens, used), tf.concat([spans, rows[:, columns:]], 1)


def _num_spans(rows: tf.Tensor) -> int:
    return (rows.shape[1] - len(_PLACE)) // len(EXAMPLE_COLUMNS) * _SPANS


def row_examples(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits packed rows into rows of one example.

    Args:
        rows: (N, 6K + 3) int32, packed rows of at most K examples each.

    Returns:
        All examples that are not empty, (M, 9) int32, in the order of the rows and within them; and
        their places, row * K + number in the row, (M,) int64.

    Example:
        >>> row = [0, 2, 0, 0, 7, 3, 0, 0, 0, 0, 0, 0] + [1, 0, 0] + [5, 4, 0] + [2, 1, 6]
        >>> examples, place = row_examples(tf.constant([row]))
        >>> examples.numpy().tolist(), place.numpy().tolist()
        ([[0, 2, 0, 0, 1, 5, 2, 1, 6], [7, 3, 0, 0, 0, 4, 2, 1, 6]], [0, 1])
    """
    spans = _num_spans(rows)
    count = spans // _SPANS
    columns = [tf.reshape(rows[:, :spans], [-1, _SPANS])]
    columns += [
        tf.reshape(rows[:, start : start + count], [-1, 1]) for start in (spans, spans + count)
    ]
    columns.append(tf.repeat(rows[:, -len(_PLACE) :], count, axis=0))
    examples = tf.concat(columns, 1)
    indices = tf.where(examples[:, 1] > 0)[:, 0]
    return tf.gather(examples, indices), indices


def host_share(rows: tf.Tensor, *, batch_size: int, num_hosts: int, host_index: int) -> tf.Tensor:
    """Returns this host's contiguous slice of every global batch of rows: (N, …) → (N / H, …).

    N is a multiple of `batch_size`, the rows of all hosts in a batch.

    >>> host_share(tf.range(8), batch_size=4, num_hosts=2, host_index=1).numpy().tolist()
    [2, 3, 6, 7]
    """
    share = batch_size // num_hosts
    columns = rows.shape[1:]
    rows = tf.reshape(rows, [-1, num_hosts, share, *columns])[:, host_index]
    return tf.reshape(rows, [-1, *columns])


def evenly_spread(numbers: tf.Tensor, share: float) -> tf.Tensor:
    """Returns a bool for each of the `numbers`, True for a share of 0, 1, … spread evenly.

    >>> evenly_spread(tf.range(8), 0.25).numpy().astype(int).tolist()
    [0, 0, 0, 1, 0, 0, 0, 1]
    """
    count_before, count_behind = (
        tf.floor(tf.cast(n, tf.float64) * share) for n in (numbers, numbers + 1)
    )
    return count_behind > count_before


def assemble(
    tokens: tf.Tensor,
    rows: tf.Tensor,
    *,
    sequence_length: int,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    separators: int = 1,
    cls_last: bool = False,
    resets_positions: bool = False,
) -> dict[str, tf.Tensor]:
    """Gathers the tokens of some rows: [CLS] A [SEP] B [SEP], or [CLS] A [SEP], then padding.

    With `cls_last` the layout is A [SEP] B [SEP] [CLS], with [CLS] as a separate segment, 2.

    Args:
        tokens: (tokens,), ids of a window.
        rows: (N, 9) int32, rows of one example: start and length of A and of B among the tokens in
            the first four columns. A row with an empty A is all padding.
        sequence_length: T, number of tokens in a row, with padding.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        pad_id: id of padding.
        separators: number of [SEP] between A and B, if there is a B.
        cls_last: whether [CLS] comes after the texts.
        resets_positions: whether positions begin at 0 again for B, from the last separator between
            A and B if there are several.

    Returns:
        `token_ids`, `segment_ids`, `padding_mask` and with `resets_positions` `position_ids`,
        (N, T) int32. For the masking also `length` (N,) int32, the number of tokens with specials,
        0 for an empty row; and `in_text` (N, T) bool, True at the tokens of A and B.

    Example:
        >>> row = tf.constant([[0, 2, 4, 1, 0, 0, 0, 0, 0]])
        >>> out = assemble(tf.range(10, 20), row, sequence_length=8,
        ...                cls_id=1, sep_id=2, pad_id=0)
        >>> out["token_ids"].numpy().tolist(), out["segment_ids"].numpy().tolist()
        ([[1, 10, 11, 2, 14, 2, 0, 0]], [[0, 0, 0, 0, 1, 1, 0, 0]])
    """
    start_a, length_a, start_b, length_b = (rows[:, n, None] for n in range(4))  # (N, 1)
    # Columns are counted with [CLS] as column 0; with `cls_last` the texts move to the left by one.
    column = tf.range(sequence_length)[None] + int(cls_last)  # (1, T)
    before_b = length_a + 1 + tf.where(length_b > 0, separators, 0)  # column of B's first token
    length = tf.where(length_a > 0, before_b + length_b + 1, 0)
    inside = column < length + tf.where(length > 0, int(cls_last), 0)
    in_a = (column > 0) & (column <= length_a)
    in_b = (column >= before_b) & (column < length - 1)
    index = tf.where(in_a, start_a - 1, start_b - before_b) + column  # (N, T)
    in_text = in_a | in_b
    token_ids = tf.cast(tf.gather(tokens, tf.where(in_text, index, 0)), tf.int32)
    is_cls = inside & (column == (length if cls_last else 0))
    special = tf.where(inside, tf.where(is_cls, cls_id, sep_id), pad_id)
    token_ids = tf.where(in_text, token_ids, special)
    segment_ids = tf.cast(inside & (column >= before_b) & (length_b > 0), tf.int32)
    positions = {}
    if resets_positions:
        # If there are two separators, the second one begins the other text (XLM, RoBERTa).
        begin = tf.where(length_b > 0, before_b - (separators - 1), 0)
        position_ids = tf.where(column >= begin, column - begin, column)
        positions["position_ids"] = tf.where(inside, position_ids, 0)
    return {
        **positions,
        "token_ids": token_ids,
        "segment_ids": tf.where(is_cls, 2, segment_ids) if cls_last else segment_ids,
        "padding_mask": tf.cast(inside, tf.int32),
        "length": length[:, 0],
        "in_text": in_text,
    }
