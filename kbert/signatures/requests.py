"""Entry points of a SavedModel, for requests of any size in bounded memory.

A server accepts requests from anyone, so the graph itself limits the memory of a request. Rows are
computed in chunks with a limited number of tokens, sorted by length, and the length of a text is
limited.

Shapes: B rows of a request, n rows of a chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kbert.core.graphs import graph
from kbert.core.late import tf

# Maximum number of tokens in a chunk, including padding. For rows of 512 tokens and a model with
# twelve heads, the attention scores take 200 MB.
TOKENS_AT_ONCE = 8192
# Maximum length of a text: about 16,000 words of English.
MAX_BYTES = 100_000
# Texts with which a server warms up an entry point: short and long, so that both branches of a
# graph that depend on the length have run.
WARM_UP_TEXTS = (
    "Fine.",
    "The invoice of 12 March (no. 4711) is not paid yet; please transfer €1,250.00 within a week.",
)
# Rows are padded to a multiple of this; the special tokens of a row fit in as well.
_AROUND = 16

Outputs: TypeAlias = "Mapping[str, tf.Tensor]"
Function: TypeAlias = "Callable[..., dict[str, tf.Tensor]]"
Tokens: TypeAlias = "Callable[..., tf.Tensor]"

REFUSED, CUT, CUT_BEFORE = "refused", "cut", "cut_before"
TOO_LONG = (REFUSED, CUT, CUT_BEFORE)


@dataclass(frozen=True)
class Signature:
    """One entry point of a SavedModel.

    Args:
        function: function from tensors to a dict of named tensors.
        inputs: specs of the arguments, one each; a spec's name is the name that clients use.
        tokens: function from the inputs to an upper bound (B,) on the tokens of each row, such as
            `text_tokens`. Then row i of all inputs and outputs must belong together and not depend
            on other rows, and an export computes rows in chunks. Narrower outputs of a chunk are
            padded with zeros or "". None = a request is computed at once.
        too_long: treatment of strings above an export's limit. "refused" raises an error, also if
            the strings of a row together exceed it. "cut" truncates each string at its end and
            "cut_before" at its beginning, for functions whose outputs do not change by that.
        warm_up: texts for every input in a server's warm-up request. Empty = built-in texts, if
            there are `tokens`.
        numbered: whether the function also accepts a keyword argument `row_numbers` (n,), the
            numbers of its rows in the request. Without it, the rows are all rows of the request.

    Raises:
        ValueError: `too_long` is unknown.
    """

    function: Function
    inputs: Sequence[tf.TensorSpec]
    tokens: Tokens | None = None
    too_long: str = REFUSED
    warm_up: Sequence[str] = ()
    numbered: bool = False

    def __post_init__(self) -> None:
        if self.too_long not in TOO_LONG:
            raise ValueError(
                f"`too_long` must be one of {', '.join(TOO_LONG)}. Received: {self.too_long!r}"
            )


def text_tokens(row_length: int | None = None) -> Tokens:
    """Returns a function for an upper bound on the number of tokens, which is that of bytes.

    Args:
        row_length: maximum number of tokens in a row of the model; None = no limit.

    Returns:
        A function from strings (B,) or (B, N), of any number of inputs, to tokens (B,) int64. They
        include special tokens and padding to a multiple of 16.

    Example:
        >>> tokens = text_tokens(row_length=32)
        >>> tokens(tf.constant(["four", "", "a" * 99])).numpy().tolist()
        [20, 16, 32]
    """

    def tokens(*texts: tf.Tensor) -> tf.Tensor:
        total = tf.add_n([row_bytes(x) for x in texts]) + _AROUND
        return total if row_length is None else tf.minimum(total, row_length)

    return tokens


def row_bytes(texts: tf.Tensor) -> tf.Tensor:
    """Returns the bytes (B,) int64 of strings (B,); of rows (B, N) the sum, plus 1 per string."""
    lengths = tf.cast(tf.strings.length(texts), tf.int64)
    return lengths if texts.shape.rank == 1 else tf.reduce_sum(lengths + 1, axis=1)


def bounded(signature: Signature, max_bytes: int = MAX_BYTES) -> Signature:
    """Returns an entry point for untrusted requests.

    Args:
        signature: an entry point.
        max_bytes: maximum number of bytes in a text, or in a row of strings.

    Returns:
        An entry point whose graph raises for tensors of another rank and for inputs with different
        numbers of rows. It treats long texts as `too_long` defines, and computes rows in chunks.

    Raises:
        ValueError: `max_bytes` is below 1.

    Example:
        >>> spec = [tf.TensorSpec([None], tf.string, "text")]
        >>> count = Signature(lambda x: {"bytes": tf.strings.length(x)}, spec, text_tokens())
        >>> count = bounded(count, max_bytes=5)
        >>> count.function(tf.constant(["four", ""]))["bytes"].numpy().tolist()
        [4, 0]
        >>> try:
        ...     count.function(tf.constant(["much more"]))
        ... except tf.errors.InvalidArgumentError as error:
        ...     print("at most 5 bytes" in error.message)
        True
    """
    if max_bytes < 1:
        raise ValueError(f"`max_bytes` must be at least 1. Received: max_bytes={max_bytes}")

    compute = signature.function if signature.tokens is None else in_chunks(signature)

    def function(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return compute(*_checked(signature, inputs, max_bytes))

    return replace(signature, function=function, tokens=None, numbered=False)


def in_chunks(signature: Signature) -> Callable[..., dict[str, tf.Tensor]]:
    """Returns an entry point's function that computes large requests in chunks of rows.

    Args:
        signature: an entry point with `tokens`.

    Returns:
        A function with the same arguments, for use in graphs.
    """
    count_tokens = signature.tokens
    assert count_tokens is not None
    specs = list(signature.inputs)
    if signature.numbered:
        specs.append(tf.TensorSpec([None], tf.int32, "row_numbers"))

    def compute(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
        if signature.numbered:
            *columns, numbers = columns
            return signature.function(*columns, row_numbers=numbers)
        return signature.function(*columns)

    @functools.cache
    def traced() -> Any:
        """Shared by both branches below, and by both traces when TensorFlow saves the model."""
        return graph(compute, autograph=False, input_signature=specs).get_concrete_function()

    def function(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        run, rows = traced(), tf.shape(inputs[0])[0]
        if signature.numbered:
            inputs = (*inputs, tf.range(rows))
        tokens = count_tokens(*inputs[: len(signature.inputs)])

        def chunked() -> dict[str, tf.Tensor]:
            order = tf.argsort(tokens, direction="DESCENDING")
            ordered = tf.gather(tokens, order)

            def part(first: tf.Tensor, end: tf.Tensor) -> dict[str, tf.Tensor]:
                return run(*(tf.gather(x, order[first:end]) for x in inputs))

            def end(first: tf.Tensor) -> tf.Tensor:
                # The first row of a chunk is the longest.
                fitting = tf.cast(TOKENS_AT_ONCE // tf.maximum(ordered[first], 1), tf.int32)
                return tf.minimum(first + tf.maximum(fitting, 1), rows)

            outputs = run.structured_outputs
            ordered_outputs = collect(part, rows, end, outputs)
            original_order = tf.math.invert_permutation(order)
            return {name: tf.gather(x, original_order) for name, x in ordered_outputs.items()}

        longest = tf.reduce_max(tf.pad(tokens, [[0, 1]]))
        is_small = tf.cast(rows, tf.int64) * longest <= TOKENS_AT_ONCE
        # Not inlined: small requests skip one operation instead of hundreds in the entry point's
        # graph.
        apart = graph(
            chunked,
            autograph=False,
            input_signature=[],
            experimental_attributes={"_noinline": True},
        )
        return tf.cond(is_small, lambda: dict(run(*inputs)), apart)

    return function


def collect(
    compute: Callable[[tf.Tensor, tf.Tensor], Outputs],
    rows: tf.Tensor,
    end: Callable[[tf.Tensor], tf.Tensor],
    specs: Mapping[str, tf.TensorSpec],
) -> dict[str, tf.Tensor]:
    """Computes outputs chunk by chunk in a graph, and joins them.

    Args:
        compute: function from the first row of a chunk and the row after its last to outputs
            (n, …).
        rows: number B of rows; for 0, `compute` is still called once.
        end: function from the first row of a chunk to the row after its last.
        specs: specs of the outputs, (None, …) each.

    Returns:
        Outputs (B, …), as wide as those of the widest chunk; others are padded with zeros or "".

    Example:
        >>> def squares(first, end):
        ...     return {"y": tf.range(first, end) ** 2}
        >>> spec = {"y": tf.TensorSpec([None], tf.int32)}
        >>> two = lambda first: tf.minimum(first + 2, 5)
        >>> run = graph(lambda: collect(squares, tf.constant(5), two, spec))
        >>> run()["y"].numpy().tolist()
        [0, 1, 4, 9, 16]
    """
    parts = {
        name: tf.TensorArray(
            spec.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=spec.shape
        )
        for name, spec in specs.items()
    }
    sizes = {name: tf.zeros([spec.shape.rank - 1], tf.int32) for name, spec in specs.items()}

    def turn(number: tf.Tensor, first: tf.Tensor, parts: Any, sizes: Any) -> tuple[Any, ...]:
        behind = end(first)
        chunk_outputs = compute(first, behind)
        sizes = {
            name: tf.maximum(x, tf.shape(chunk_outputs[name])[1:]) for name, x in sizes.items()
        }
        parts = {name: x.write(number, chunk_outputs[name]) for name, x in parts.items()}
        return number + 1, behind, parts, sizes

    zero = tf.zeros([], tf.int32)
    turns, _, parts, sizes = tf.while_loop(
        lambda number, first, *_: (number == 0) | (first < rows),
        turn,
        (zero, zero, parts, sizes),
        parallel_iterations=1,
    )
    return {
        name: parts[name].concat()
        if spec.shape[1:].is_fully_defined()
        else _padded(parts[name], turns, sizes[name], spec).concat()
        for name, spec in specs.items()
    }


def _padded(
    parts: tf.TensorArray, turns: tf.Tensor, sizes: tf.Tensor, spec: tf.TensorSpec
) -> tf.TensorArray:
    """Returns the outputs of chunks, padded with zeros or "" to the same sizes.

    Args:
        parts: output (n, …) of each chunk.
        turns: number of chunks.
        sizes: sizes of all axes but the first.
        spec: spec of the output, (None, …).
    """
    padded = tf.TensorArray(spec.dtype, turns, infer_shape=False, element_shape=spec.shape)

    def pad(number: tf.Tensor, padded: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        part = parts.read(number)
        paddings = tf.pad((sizes - tf.shape(part)[1:])[:, None], [[1, 0], [1, 0]])
        return number + 1, padded.write(number, tf.pad(part, paddings))

    start = (tf.zeros([], tf.int32), padded)
    return tf.while_loop(lambda number, _: number < turns, pad, start, parallel_iterations=1)[1]


def _checked(signature: Signature, inputs: Sequence[tf.Tensor], max_bytes: int) -> list[tf.Tensor]:
    """Returns the inputs of a request, with checks in the graph of their shapes and lengths.

    Args:
        signature: entry point; its `too_long` says whether long texts are refused or truncated.
        inputs: tensors of a client.
        max_bytes: maximum number of bytes in a text, or in a row of strings.
    """
    inputs = [
        # A server passes on any tensor of a client. The error message has the operation's name.
        tf.raw_ops.EnsureShape(input=x, shape=spec.shape, name=f"shape_of_input_{spec.name}")
        for spec, x in zip(signature.inputs, inputs, strict=True)
    ]
    names = [spec.name for spec in signature.inputs]
    if signature.tokens is not None and len(inputs) > 1:
        rows = [tf.shape(x)[0] for x in inputs]
        message = (
            f"All inputs must have the same number of rows. Received: rows of {', '.join(names)}:"
        )
        equal = tf.debugging.Assert(tf.reduce_all(tf.equal(rows, rows[0])), [message, *rows])
        inputs = _behind(equal, inputs)
    return [
        _limited(name, x, max_bytes, signature.too_long)
        if x.dtype == tf.string and x.shape.rank in (1, 2)
        else x
        for name, x in zip(names, inputs, strict=True)
    ]


def _behind(check: Any, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the values, which are computed only after the operation `check`."""
    with tf.control_dependencies([check]):
        return [tf.identity(x) for x in values]


def _limited(name: str, texts: tf.Tensor, max_bytes: int, too_long: str) -> tf.Tensor:
    """Returns texts of at most `max_bytes` bytes each: truncated, or with a check that raises.

    Args:
        name: name of the input, for the message.
        texts: strings (B,) or (B, N).
        max_bytes: limit of a text; if texts are refused, of a row of strings.
        too_long: treatment of longer texts, see `Signature`.
    """
    if too_long == REFUSED:
        return _behind(_refuse_longer(name, texts, max_bytes), [texts])[0]
    start: Any = tf.zeros_like(texts, tf.int32)
    if too_long == CUT_BEFORE:
        start = tf.maximum(tf.strings.length(texts) - max_bytes, 0)
    return tf.strings.substr(texts, start, tf.fill(tf.shape(texts), max_bytes))


def _refuse_longer(name: str, texts: tf.Tensor, max_bytes: int) -> Any:
    """Returns an operation that raises if a text, or a row of strings, exceeds `max_bytes`."""
    sizes = row_bytes(texts)
    row = tf.argmax(tf.pad(sizes, [[0, 1]]), output_type=tf.int32)
    longest = tf.reduce_max(tf.pad(sizes, [[0, 1]]))
    subject = "a text" if texts.shape.rank == 1 else "the strings of a row together"
    return tf.debugging.Assert(
        longest <= max_bytes,
        [
            f"{name}: {subject} must have at most {max_bytes} bytes; the export's `max_bytes` sets "
            "another limit. Received: bytes, in row:",
            tf.strings.as_string(longest),
            row,
        ],
    )
