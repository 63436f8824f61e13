"""Extractive question answering: an answer is a span of the context.

Shapes: Q questions, W windows, B rows of a batch, T tokens, K best spans.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert.core.late import tf
from kbert.core.types import MaybeNone, Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.heads import SpanHead
from kbert.metrics.squad import PERCENTAGES, best_no_answer_threshold, squad_scores, token_f1
from kbert.signatures import Signature
from kbert.tasks.columns import Columns
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.losses import Prediction, accuracy, cross_entropy
from kbert.tasks.question_answering.answer_spans import best_spans, choose, merge_windows
from kbert.tasks.question_answering.options import QuestionAnswererOptions
from kbert.tasks.question_answering.question_windows import QuestionWindows
from kbert.tasks.question_answering.serving import answer_signature
from kbert.tokenizers.base import Tokenizer

# Maximum defaults, from run_squad.py; they are lower for an encoder with fewer positions.
MAX_LENGTH, MAX_QUESTION_LENGTH, DOC_STRIDE = 384, 64, 128
PADDING = -1e9  # the logits of padding: exp(-1e9) is 0 in float32


class QuestionAnswerer(FineTuningTask):
    """Finds the answer to a question in a context, or that the context has none (SQuAD 1.1, 2.0).

    Each token gets two logits, for the first and the last token of an answer; the span with the
    highest sum wins (BERT, sections 4.2 and 4.3, https://arxiv.org/abs/1810.04805; run_squad.py of
    google-research/bert). A context that does not fit into a row with its question is read in
    windows. Answers are exact substrings of the given context: `context[start:end]`.

    Columns of the data: `question` and `context`, or pairs of them; for training and evaluation
    also `answers` (a list of texts, empty if the context has no answer) and `answer_starts` (the
    characters at which they begin). Training uses the first answer. The target of a window without
    it is [CLS].

    Args:
        encoder: a `kbert.Encoder` or a `kbert.models.Seq2SeqEncoder`.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings:

            {options}

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "rollo", "did", "it"])
        >>> config = kbert.EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=16)
        >>> task = QuestionAnswerer(kbert.Encoder(config), tokenizer)
        >>> found, = task.predict([("Who did it?", "Rollo did it.")], verbose=0)
        >>> "Rollo did it."[found["start"] : found["end"]] == found["answer"]
        True
    """

    kind = "answer"
    columns: ClassVar = Columns(
        inputs=(("question", "context"),),
        label="answers",
        aux_labels=("answer_starts",),
        shown=("question",),
    )
    options: ClassVar = QuestionAnswererOptions
    metric = "f1"
    shown_metrics = ("start_accuracy", "end_accuracy")
    predicts_per = "token"
    averages = "logits"  # spans are ranked by sums of logits, whatever all spans sum up to
    takes_seq2seq = True
    percentages = PERCENTAGES
    prepares_rows = False  # `fit` checks the whole table for questions without an answer
    max_length: int | MaybeNone
    max_question_length: int | MaybeNone
    doc_stride: int | MaybeNone
    null_threshold: float | None

    def __init__(self, encoder: keras.Model, tokenizer: Tokenizer, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        self.span = SpanHead(encoder.config, dtype=encoder.dtype_policy)
        self.build()

    @functools.cached_property
    def windows(self) -> QuestionWindows:
        """Makes windows of contexts, each with its question."""
        return QuestionWindows(
            self.tokenizer,
            self.form,
            max_length=self.max_length,
            max_question_length=self.max_question_length,
            doc_stride=self.doc_stride,
        )

    def _check_settings(self) -> None:
        """Sets the lengths that are None to their defaults, and makes `windows`, which checks them.

        Raises ValueError if windows have no room for a question and a token.
        """
        super()._check_settings()
        chosen, tokenizer = self.chosen, self.tokenizer
        if chosen.max_length is None:
            longest = min(MAX_LENGTH, self.encoder.config.max_positions)
            chosen = chosen.replace(max_length=longest)
        if chosen.max_question_length is None:
            longest = min(MAX_QUESTION_LENGTH, chosen.max_length // 4)
            chosen = chosen.replace(max_question_length=longest)
        if chosen.doc_stride is None:
            overhead = chosen.max_question_length + 2 + tokenizer.pair_separators
            stride = min(DOC_STRIDE, max((chosen.max_length - overhead) // 2, 1))
            chosen = chosen.replace(doc_stride=stride)
        self.chosen = chosen
        self.__dict__.pop("windows", None)
        _ = self.windows

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "span": self.span}

    def settings_of_data(self, table: Table) -> dict[str, Any]:
        """Returns `null_threshold` 0.0 if it is None and a question has no answer, else nothing."""
        chooses = self.null_threshold is None and not all(_golds(table))
        return {"null_threshold": 0.0} if chooses else {}

    def as_table(self, data: Any, labels: Any = None) -> Table:
        """Converts data like `FineTuningTask.as_table`; pairs are questions and contexts."""
        return _questions(super().as_table(data, labels))

    @classmethod
    def can_tune(cls, settings: Mapping[str, Any]) -> bool:
        """Returns True: every task has a threshold for questions without an answer."""
        return True

    def tune(self, data: Any, **options: Any) -> str:
        self.tune_null_threshold(data, **options)
        return f"null_threshold={self.null_threshold:.4g}"

    def describe_example(self, table: Table, row: int) -> str:
        answers = table["answers"][row]
        return f"answer {answers[0]!r}" if answers else "no answer"

    def token_marks(self, features: Tensors) -> dict[int, str]:
        """Returns token index -> "*" for each token of the answer, if the window contains it."""
        first, last = features["labels"].tolist()
        return dict.fromkeys(range(first, last + 1), "*") if first else {}

    def tune_null_threshold(self, data: Any, **options: Any) -> dict[str, float]:
        """Sets `null_threshold` to the value with the highest F1 on a table, such as the dev set.

        Args:
            data: questions with and without answers.
            **options: arguments of `predict`.

        Returns:
            The scores at that threshold; see `score`.

        Raises:
            ValueError: every question has an answer.
        """
        table = self.as_table(data)
        golds = table["answers"]
        if all(golds):
            raise ValueError(
                "Tuning the null threshold requires some questions without an answer in their "
                f"context. Received: {len(golds)} questions, all with an answer"
            )
        answers = self.predict(table, **options)
        spans, nulls = _best_spans(answers)
        f1 = [token_f1(*pair, can_be_empty=True) for pair in zip(spans, golds, strict=True)]
        answerable, empty = np.array([bool(x) for x in golds]), np.array([not x for x in spans])
        best, threshold = best_no_answer_threshold(f1, nulls, answerable, empty)
        if np.isclose(best, 100.0 * np.mean(~answerable)):  # no answer at all is best
            threshold = -np.inf
        # Halfway to the next question's score: scores of other data lie between these.
        below = max([x for x in nulls if x <= threshold], default=min(nulls) - 1.0)
        above = min([x for x in nulls if x > threshold], default=max(nulls) + 1.0)
        self.null_threshold = (below + above) / 2
        return self.score(table, answers)

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        table = _questions(table)
        questions = self.encode_texts(table["question"])
        number = {text: i for i, text in enumerate(dict.fromkeys(table["context"]))}
        context = np.array([number[text] for text in table["context"]], np.int32)  # (Q,)
        contexts = self.windows.read_all(list(number))  # each distinct context once
        ragged, windows = self.windows.columns(questions, contexts, context)
        dense = {}
        if labelled:
            label_inputs = (contexts, context, windows, _first_answers(table))
            dense["labels"] = self.windows.labels(ragged["first"], *label_inputs)
        tokens = sum(ragged[name].row_lengths().numpy() for name in ("first", "second"))
        return Rows(
            ragged=ragged,
            dense=dense,
            lengths=tokens + self.windows.specials,
            examples=windows.text.numpy(),
            cut=int(np.sum(self.windows.too_long(questions))),
        )

    def report_cut(self, cut: int, count: int, what: str = "") -> None:
        if cut:
            logging.warning(
                "%d of %d %squestions have more than %d tokens and are truncated",
                *(cut, count, what, self.max_question_length),
            )

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        ragged = ("first", "second", "answer_starts", "answer_ends")
        features = self.build_inputs(columns["first"], columns["second"])
        features |= self.windows.edge_columns(columns, tf.shape(features["token_ids"])[1])
        return features | {name: x for name, x in columns.items() if name not in ragged}

    def global_positions(self, features: Mapping[str, Any]) -> Tensor:
        """Returns the positions of [CLS] and the question, the tokens before the first separator.

        (Longformer, section 6.1.)
        """
        is_separator = features["token_ids"] == self.form.sep_id
        ends = ops.argmax(ops.cast(is_separator, "int32"), axis=1)  # (B,), the first one
        columns = ops.arange(1 + self.max_question_length, dtype="int32")[None]
        return ops.where(columns < ops.cast(ends, "int32")[:, None], columns, -1)

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Returns the logits of an answer's first token, `start`, and last, `end`, (B, T) each."""
        start, end = self.span(self.encode(batch, training)["sequence"])
        # Padding is masked, so that the loss does not depend on the width of the batch.
        real = ops.cast(batch["padding_mask"], "bool")
        return {name: ops.where(real, x, PADDING) for name, x in (("start", start), ("end", end))}

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        weights = batch["label_weights"]
        pairs = [(logits["start"], 0), (logits["end"], 1)]
        predictions = [(x, batch["labels"][:, column], weights) for x, column in pairs]
        (start, count), (end, _) = (cross_entropy(*answer) for answer in predictions)
        metrics = {
            "start_accuracy": accuracy(*predictions[0]),
            "end_accuracy": accuracy(*predictions[1]),
        }
        return {"span_loss": ((start + end) / 2, count)}, metrics

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        weights = batch["label_weights"]
        return {name: Prediction("classes", logits[name], weights) for name in ("start", "end")}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        spans = best_spans(
            logits["start"],
            logits["end"],
            batch["answer_starts"],
            batch["answer_ends"],
            max_length=self.max_answer_length,
            count=self.n_best,
        )
        sums = logits["start"] + logits["end"]
        cls = self.form.cls_columns(batch["padding_mask"])[:, None]
        return {**spans, "null_scores": ops.take_along_axis(sums, cls, axis=1)[:, 0]}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        table = _questions(table)
        if not outputs:
            return []
        with tf.device("CPU"):
            windows = {name: np.stack([row[name] for row in outputs]) for name in outputs[0]}
            merged = merge_windows(tf.constant(rows.examples), len(table), windows)
            answers = {k: v.numpy() for k, v in choose(merged, self.null_threshold).items()}
        spans = {name: merged[name].numpy() for name in ("starts", "ends")}
        return [self._answer(row, table, spans, answers) for row in range(len(table))]

    def _answer(
        self, row: int, table: Table, spans: dict[str, np.ndarray], chosen: dict[str, np.ndarray]
    ) -> dict[str, Any]:
        """Returns the answer to the question in a row of the table, as an entry of `predict`.

        `spans` has "starts" and "ends" (Q, K), the best spans; `chosen` is the result of `choose`.
        """
        context = table["context"][row]
        n_best = [
            {"answer": context[start:end], "start": start, "end": end, "probability": probability}
            for start, end, probability in zip(
                *(spans[name][row].tolist() for name in ("starts", "ends")),
                chosen["span_probabilities"][row].tolist(),
                strict=True,
            )
            if end > start
        ]
        if self.null_threshold is not None:
            null = float(chosen["null_probabilities"][row])
            n_best.append({"answer": "", "start": 0, "end": 0, "probability": null})
            n_best.sort(key=lambda entry: -entry["probability"])
        start, end = int(chosen["starts"][row]), int(chosen["ends"][row])
        return {
            **({"id": table["id"][row]} if "id" in table else {}),
            "answer": context[start:end],
            "start": start,
            "end": end,
            "probability": float(chosen["probabilities"][row]),
            "score": float(chosen["scores"][row]),
            "null_score": float(chosen["null_scores"][row]),
            "n_best": n_best,
        }

    def check_labels(self, table: Table) -> None:
        _golds(table)

    def score(self, table: Table, answers: Sequence[Mapping]) -> dict[str, float]:
        """Returns `exact` and `f1` in percent, and the other values of `squad_scores`.

        See `kbert.metrics.squad_scores`.
        """
        golds = _golds(table)
        if all(golds):
            return squad_scores([answer["answer"] for answer in answers], golds)
        spans, nulls = _best_spans(answers)
        return squad_scores(spans, golds, no_answer_scores=nulls, threshold=self.null_threshold)

    def score_names(self, table: Table) -> list[str] | None:
        golds = _golds(table)
        nulls = None if all(golds) else [0.0] * len(golds)
        return list(squad_scores([""] * len(golds), golds, no_answer_scores=nulls))

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry points `answer`, also `serving_default`, and `encode` of `EncoderTask`.

        Returns:
            `answer`: `question` and `context` (Q,) strings -> `answer` (Q,) strings, `start` and
            `end` (Q,) int32, its characters in the context, `score`, `probability` and
            `null_score` (Q,) float32 as in `predict`. A context of any length up to the export's
            `max_bytes` is read in windows; a longer context or question raises an error. A
            context without words gives "", 0 and 0, with a score of -1e9. Bytes that are not UTF-8
            become U+FFFD, also in an answer.
        """
        return {"answer": answer_signature(self), **super().signatures()}


def _questions(table: Table) -> Table:
    """Returns a table with `question` and `context`, which in pairs are `first` and `second`.

    Raises ValueError if the table has neither.
    """
    if "question" in table:
        return table
    if not len(table):
        return Table({"question": [], "context": []})
    if "first" not in table:
        raise ValueError(
            "The table must have the columns `question` and `context`, or `first` and `second`. "
            f"Received: the columns {list(table.columns)}"
        )
    return table.rename({"first": "question", "second": "context"})


def _golds(table: Table) -> list:
    """Returns the column `answers`: a list of right texts per question, empty for no answer."""
    return _questions(table)["answers"]


def _first_answers(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns start and end of each question's first answer in characters, (Q,) each; -1 = none.

    The end is the character after the last one. Raises ValueError if the context does not have the
    answer at its start.
    """
    starts, ends = np.full(len(table), -1, np.int64), np.full(len(table), -1, np.int64)
    columns = (table[name] for name in ("context", "answers", "answer_starts"))
    for row, (context, answers, positions) in enumerate(zip(*columns, strict=True)):
        are_listed = isinstance(positions, list | tuple)
        if not (
            are_listed and all(isinstance(position, int | np.integer) for position in positions)
        ):
            raise ValueError(
                f"{table.place(row)}: answer_starts must be a list of whole numbers, the "
                f"characters at which the answers begin. Received: {positions!r:.80}"
            )
        if len(answers) != len(positions):
            raise ValueError(
                f"{table.place(row)}: answer_starts must have one entry per answer. Received: "
                f"{len(answers)} answers, {len(positions)} entries"
            )
        if not answers:
            continue
        start, end = positions[0], positions[0] + len(answers[0])
        if not answers[0] or start < 0 or context[start:end] != answers[0]:
            raise ValueError(
                f"{table.place(row)}: the context must have the answer at the character given in "
                f"answer_starts. Received: {answers[0]!r:.80} at {start}, where the context has "
                f"{context[max(start, 0) : max(end, 0)]!r:.80}"
            )
        starts[row], ends[row] = start, end
    return starts, ends


def _best_spans(answers: Sequence[Any]) -> tuple[list[str], list[float]]:
    """Returns each question's best span as text, even if "no answer" was chosen; and null scores.

    A null score, that of "no answer", is relative to the score of the best span.
    """
    spans = [next((x["answer"] for x in a["n_best"] if x["answer"]), "") for a in answers]
    return spans, [answer["null_score"] - answer["score"] for answer in answers]
