"""How pairs of texts become rows of an encoder-decoder: prefix, special tokens, long sources.

Shapes: B rows, W tokens of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kbert.core.late import tf
from kbert.data.tables.bucketing import BUCKET
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.tasks.generation.base import padded, tokenize

# Widths of rows are multiples of this: only TensorFlow does not compile for each.
_MULTIPLE = BUCKET if keras.backend.backend() == "tensorflow" else 32


@dataclasses.dataclass(frozen=True)
class Sources:
    """Tokenised sources.

    Attributes:
        ids: token ids of each of R rows, with special tokens; none for a text without tokens.
        examples: (R,), number of the text of each row: a long text may have several.
        truncated: numbers of the texts that lost tokens.
    """

    ids: list[np.ndarray]
    examples: np.ndarray
    truncated: frozenset[int]

    @property
    def cut(self) -> int:
        """Number of truncated texts."""
        return len(self.truncated)


class PairRows:
    """The rows of a `TextToText`: from texts to framed token ids, in memory and in graphs.

    Args:
        task: the task, with `tokenizer`, `framing` and settings.
    """

    def __init__(self, task: Any) -> None:
        self._task = task

    def check_lengths(self) -> None:
        """Raises ValueError if a limit leaves no space for a text, or exceeds the model's."""
        framing = self._task.framing
        self._check_length("max_length", len(framing.source) + self._before)
        self._check_length("max_target_length", len(framing.target))

    @property
    def _before(self) -> int:
        """Number of tokens of the prefix."""
        if not self._task.prefix:
            return 0
        with tf.init_scope():  # also while a graph is made
            return len(tokenize(self._task.tokenizer, [self._task.prefix])[0])

    def rows(self, table: Table, labelled: bool) -> Rows:
        """Tokenises a table; with `labelled` a row for each reference of an example.

        Lengths are those of both sides. Without `labelled` a long source may have several rows.
        """
        sources = self.sources(table["text"], whole=labelled)
        ids = [x if len(x) else self._framed(x) for x in sources.ids]
        ragged = {"source": _ragged(ids)}
        lengths, examples, cut = np.array([len(x) for x in ids], int), sources.examples, sources.cut
        if labelled:
            counts, targets, cut = self._targets(table, sources)
            examples = np.repeat(examples, counts)
            ragged = {"source": _ragged([ids[i] for i in examples]), "target": _ragged(targets)}
            lengths = lengths[examples] + [len(x) for x in targets]
        return Rows(ragged=ragged, dense={}, lengths=lengths, examples=examples, cut=cut)

    def _targets(self, table: Table, sources: Sources) -> tuple[list[int], list[np.ndarray], int]:
        """Returns the number of references of each row, their ids, and the truncated examples.

        The ids have their special tokens. An example counts as truncated if its source or one of
        its references is.
        """
        references = references_of(table)
        texts = [stripped(text) for row in references for text in row]
        ids = tokenize(self._task.tokenizer.target, texts)
        ends = self._task.framing.target
        budget = (self._task.max_target_length or self._task.seq2seq.max_length) - len(ends)
        counts = [len(row) for row in references]
        is_long = np.array([len(x) > budget for x in ids], bool)
        long_examples = set(np.repeat(np.arange(len(table)), counts)[is_long].tolist())
        framed = [np.array([*ends.begin, *x[:budget], *ends.end], "int32") for x in ids]
        return counts, framed, len(sources.truncated | long_examples)

    def sources(
        self, texts: Sequence[str | bytes], *, whole: bool = False, truncate: bool = False
    ) -> Sources:
        """Tokenises sources, with the prefix and special tokens.

        Args:
            texts: strings.
            whole: whether a long text is truncated where `long_sources` is "windows".
            truncate: whether a long text is truncated where `long_sources` is "refuse".

        Raises:
            ValueError: with long_sources="refuse" a text is too long; the message names it.
        """
        ids = tokenize(self._task.tokenizer, [self.prefixed(text) for text in texts])
        before = self._before
        budget = self._task.row_length - len(self._task.framing.source)
        is_long = np.array([len(x) > budget for x in ids], bool)
        if self._task.long_sources == "refuse" and not truncate and is_long.any():
            raise ValueError(self._too_long(texts, ids, is_long, budget))
        in_windows = self._task.long_sources == "windows" and not whole
        step = budget - before
        rows: list[np.ndarray] = []
        examples: list[int] = []
        for number, x in enumerate(ids):
            stop = len(x) if in_windows else min(len(x), budget)
            for start in range(before, max(stop, before + 1), step):
                window = np.concatenate([x[:before], x[start : min(start + step, stop)]])
                rows.append(self._framed(window) if len(window) > before else window[:0])
                examples.append(number)
        truncated = [] if in_windows else np.flatnonzero(is_long).tolist()
        return Sources(rows, np.array(examples, int), frozenset(truncated))

    def prefixed(self, text: str | bytes) -> str | bytes:
        """Returns a text after the prefix; an empty one stays empty.

        White space around the text is removed: for byte-level tokens a line with its line break
        would be another text.
        """
        text, prefix = stripped(text), self._task.prefix
        if not text or not prefix:
            return text
        return prefix + text if isinstance(text, str) else prefix.encode() + text

    def _framed(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids of a source with its special tokens."""
        ends = self._task.framing.source
        return np.array([*ends.begin, *ids, *ends.end], "int32")

    def _too_long(
        self, texts: Sequence[str | bytes], ids: list[np.ndarray], is_long: np.ndarray, budget: int
    ) -> str:
        """Returns the message for sources of more than `budget` tokens."""
        first = int(np.flatnonzero(is_long)[0])
        return (
            f"A source must have at most {budget} tokens (the maximum is {self._task.row_length}, "
            "including special tokens): split it into sentences, or set long_sources. "
            f"Received: {len(ids[first])} tokens in text {first}, which begins "
            f"{texts[first][:40]!r}; {int(is_long.sum())} of {len(texts)} are too long"
        )

    def features(self, rows: Sequence[np.ndarray], width: int) -> dict[str, np.ndarray]:
        """Returns `encoder_token_ids` and `encoder_padding_mask`, (B, width) int32 each.

        `rows` are those of `sources`.
        """
        ids, mask = padded(rows, width, self._task.framing.source_pad)
        return {"encoder_token_ids": ids, "encoder_padding_mask": mask}

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the inputs of the model, and with `target` its targets; see `Framing.features`.

        `columns` are those of B `Rows`. Runs in a graph.
        """
        columns = dict(columns)
        source = self._dense(
            columns.pop("source"), self._task.row_length, self._task.framing.source_pad
        )
        target = columns.pop("target", None)
        if target is None:
            names = ("encoder_token_ids", "encoder_padding_mask")
            return {**dict(zip(names, source, strict=True)), **columns}
        longest = self._task.max_target_length or self._task.seq2seq.max_length
        targets = self._dense(target, longest, self._task.framing.target_pad)
        return {**self._task.framing.features(source, targets), **columns}

    def _dense(
        self, ids: tf.RaggedTensor, longest: int, pad_id: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids and padding mask (B, W) int32; W is a multiple, at most `longest`."""
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        width = -(-tf.reduce_max(lengths) // _MULTIPLE) * _MULTIPLE
        width = tf.minimum(width, longest)
        dense = ids.to_tensor(pad_id)
        more = [[0, 0], [0, width - tf.shape(dense)[1]]]
        dense = tf.pad(dense, more, constant_values=pad_id)
        return dense, tf.sequence_mask(lengths, width, tf.int32)

    def served(self, text: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns the encoder's inputs for texts (B,), and which have no tokens (B, 1), in a graph.

        The texts are stripped of white space.
        """
        ends, before = self._task.framing.source, self._before
        if self._task.prefix:
            text = tf.where(
                tf.strings.length(text) == 0, text, tf.strings.join([self._task.prefix, text])
            )
        ids = self._task.tokenizer.encode(text)[:, : self._task.row_length - len(ends)]
        is_empty = (ids.row_lengths() <= before)[:, None]
        row = tf.ones_like(is_empty, tf.int32)
        parts = [[i * row for i in ends.begin], [ids], [i * row for i in ends.end]]
        framed = tf.concat([part for side in parts for part in side], axis=1)
        mask = tf.ones_like(framed).to_tensor()
        token_ids = framed.to_tensor(self._task.framing.source_pad)
        return {"encoder_token_ids": token_ids, "encoder_padding_mask": mask}, is_empty

    def _check_length(self, name: str, used: int) -> None:
        """Raises ValueError unless a limit exceeds its `used` tokens and the model supports it."""
        length, most = getattr(self._task, name), self._task.seq2seq.max_length
        if not used < (length or most) <= most:
            raise ValueError(
                f"`{name}` must be at most {most}, the model's maximum, and more than the {used} "
                f"tokens of the prefix and the special tokens. Received: {name}={length}"
            )


def references_of(table: Table) -> list[list[str]]:
    """Returns the references of each row: its `target`, a string or a list of strings.

    Raises:
        ValueError: a target is neither, or a list is empty; the message names the row.
    """
    references = []
    for row, target in enumerate(table["target"]):
        texts = [target] if isinstance(target, str) else target
        is_list = isinstance(texts, list | tuple) and len(texts) > 0
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"{table.place(row)}: 'target' must be a string or a list of reference strings. "
                f"Received: {target!r:.80}"
            )
        references.append(list(texts))
    return references


def equally_many(references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Returns as many references of each text, which repeats the last of a text with fewer.

    BLEU and chrF want equally many, and a repeated one changes neither.

    Example:
        >>> equally_many(["a", ["b", "c"]])
        [['a', 'a'], ['b', 'c']]
    """
    lists = [[x] if isinstance(x, str) else list(x) for x in references]
    most = max(map(len, lists))
    return [[*texts, *[texts[-1]] * (most - len(texts))] for texts in lists]


def _ragged(rows: Sequence[np.ndarray]) -> tf.RaggedTensor:
    """Returns rows of ids as a ragged tensor (R, ragged) int32."""
    lengths = [len(row) for row in rows]
    values = np.concatenate([np.zeros(0, "int32"), *rows]).astype("int32")
    return tf.RaggedTensor.from_row_lengths(values, np.array(lengths, "int64"))


def stripped(text: str | bytes) -> str | bytes:
    """Strips ASCII white space from both ends, as TensorFlow does."""
    return text.strip(" \t\n\r\v\f") if isinstance(text, str) else text.strip()
