"""Questions and their contexts as rows: windows of the context, each with the question.

Shapes: Q questions, C distinct contexts, W windows of all questions, B rows of a batch, T columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kbert import inference
from kbert.core.late import tf
from kbert.data.tables.windows import Windows, cut_windows
from kbert.tasks.input_form import InputForm
from kbert.tasks.question_answering.answer_edges import Edges, covering_pieces, find_edges
from kbert.tokenizers.base import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contexts:
    """Tokenised contexts.

    Args:
        ids: (C, ragged) int32.
        edges: positions where answers may begin and end.
    """

    ids: tf.RaggedTensor
    edges: Edges


class QuestionWindows:
    """Tokenises contexts and splits them into windows; runs in a graph or eagerly.

    Args:
        tokenizer: tokenizer of the task.
        form: form of the task's rows: the special tokens around a question and a window.
        max_length: maximum number of tokens in a row: [CLS] question [SEP] window [SEP].
        max_question_length: number of tokens to which a question is truncated.
        doc_stride: tokens from the start of a window to that of the next.

    Raises:
        ValueError: a size is out of range.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        form: InputForm,
        *,
        max_length: int,
        max_question_length: int,
        doc_stride: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._max_question_length = max_question_length
        self._doc_stride = doc_stride
        self.specials = form.specials(2)
        self._before = form.begin + form.separators  # special tokens before a window
        self._cls_last = form.cls_last
        budget = max_length - max_question_length - self.specials
        if max_question_length < 1 or budget < 1:
            raise ValueError(
                "max_length must be enough for max_question_length (1 or more), the special tokens "
                f"and a token of the context. Received: max_question_length={max_question_length}, "
                f"max_length={max_length}"
            )
        if not 1 <= doc_stride <= budget:
            raise ValueError(
                f"doc_stride must be from 1 to {budget}, the context tokens in a window with the "
                f"longest question. Received: doc_stride={doc_stride}"
            )

    def too_long(self, questions: tf.RaggedTensor) -> tf.Tensor:
        """Returns whether each question will be truncated, (Q,) bool."""
        return questions.row_lengths() > self._max_question_length

    def read(self, texts: tf.Tensor) -> Contexts:
        """Tokenises contexts, (C,) strings; runs in a graph or eagerly."""
        with tf.device("CPU"):
            pieces = self._tokenizer.encode_with_offsets(texts, unit="character")
            edges = find_edges(texts, pieces["starts"], pieces["ends"])
        return Contexts(ids=pieces["token_ids"], edges=edges)

    def read_all(self, texts: Sequence[str]) -> Contexts:
        """Tokenises any number of contexts, in chunks to bound memory."""
        chunks = [chunk for _, chunk in inference.chunks(texts)] or [[]]
        contexts = [self.read(tf.constant(chunk, tf.string)) for chunk in chunks]
        names = [field.name for field in dataclasses.fields(Edges)]
        edges = {name: tf.concat([getattr(x.edges, name) for x in contexts], 0) for name in names}
        return Contexts(ids=tf.concat([x.ids for x in contexts], 0), edges=Edges(**edges))

    def columns(
        self, questions: tf.RaggedTensor, contexts: Contexts, context: tf.Tensor
    ) -> tuple[dict[str, tf.RaggedTensor], Windows]:
        """Returns the columns of the rows, one row per window, and the windows.

        Args:
            questions: (Q, ragged) ids.
            contexts: the C contexts.
            context: (Q,) int32, index of each question's context.

        Returns:
            Columns: `first`, ids of the question, and `second`, ids of the window, (W, ragged);
            `answer_starts` and `answer_ends` (W, ragged) int32, for each subword of the window the
            character at which an answer that begins or ends with it begins or ends, -1 if no answer
            can. Second, the positions of the windows in the contexts.
        """
        questions = questions[:, : self._max_question_length]
        budget = self._max_length - self.specials - tf.cast(questions.row_lengths(), tf.int32)
        ids, edges = contexts.ids, contexts.edges
        lengths = tf.gather(tf.cast(ids.row_lengths(), tf.int32), context)
        windows = cut_windows(lengths, budget, self._doc_stride)
        positions = windows.positions()  # (W, ragged), in the context
        offsets = tf.gather(tf.cast(ids.row_starts(), tf.int32), context)
        offsets = tf.gather(offsets, windows.text)
        pieces = positions.flat_values + tf.gather(offsets, positions.value_rowids())

        def characters(place: Any, allowed: Any) -> tf.Tensor:
            allowed = tf.gather(allowed.flat_values, pieces)
            return tf.where(allowed, tf.gather(place.flat_values, pieces), -1)

        starts = characters(edges.starts, edges.can_begin)
        # A span belongs to the window with the most context around its first subword.
        starts = tf.where(windows.most_context().flat_values, starts, -1)
        flat = {
            "second": tf.gather(ids.flat_values, pieces),
            "answer_starts": starts,
            "answer_ends": characters(edges.ends, edges.can_end),
        }
        first = tf.gather(questions, windows.text)
        return {"first": first} | {
            k: positions.with_flat_values(x) for k, x in flat.items()
        }, windows

    def labels(
        self,
        questions: tf.RaggedTensor,
        contexts: Contexts,
        context: np.ndarray,
        windows: Windows,
        answers: tuple[np.ndarray, np.ndarray],
    ) -> np.ndarray:
        """Returns the columns of the answer's first and last token in each row.

        Without an answer, both are the column of [CLS].

        Args:
            questions: (W, ragged), the column `first`.
            contexts: the C contexts.
            context: (Q,), index of each question's context.
            windows: the windows, from `columns`.
            answers: first character of each question's answer and the character after its last one,
                (Q,) each; -1 for no answer.

        Returns:
            (W, 2) int32.
        """
        starts, _ = answers
        pieces = np.stack(covering_pieces(contexts.edges, context, *answers), 1)  # (Q, 2)
        pieces[starts < 0] = -1
        pieces = pieces[windows.text.numpy()]  # (W, 2)
        positions = pieces - windows.starts.numpy()[:, None]
        sizes = windows.sizes.numpy()
        inside = (pieces[:, 0] >= 0) & (positions[:, 0] >= 0) & (positions[:, 1] < sizes)
        tokens_before = questions.row_lengths().numpy() + self._before
        cls = tokens_before + sizes + 1 if self._cls_last else np.zeros_like(tokens_before)
        columns = np.where(inside[:, None], positions + tokens_before[:, None], cls[:, None])
        return columns.astype(np.int32)

    def edge_columns(
        self, columns: dict[str, tf.RaggedTensor], width: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns `answer_starts` and `answer_ends` (B, T) for the tokens of packed rows.

        `columns` are those of B rows, see `columns`; `width` is T. Special tokens, question and
        padding have -1.
        """
        tokens_before = tf.cast(columns["first"].row_lengths(), tf.int32) + self._before
        names = ("answer_starts", "answer_ends")
        return {name: _behind(tokens_before, columns[name], width) for name in names}


def _behind(before: tf.Tensor, values: tf.RaggedTensor, width: tf.Tensor) -> tf.Tensor:
    """Places values (B, ragged) into (B, T), T = `width`; -1 elsewhere.

    In each row they follow `before` (B,) columns of -1.
    """
    flat = tf.concat([values.flat_values, [-1]], 0)
    column = tf.range(width) - before[:, None]
    inside = (column >= 0) & (column < tf.cast(values.row_lengths(), tf.int32)[:, None])
    index = tf.cast(values.row_starts(), tf.int32)[:, None] + column
    return tf.gather(flat, tf.where(inside, index, tf.size(flat) - 1))
