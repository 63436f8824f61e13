"""The explained answers of a task: which logits, and the texts whose tokens are scored.

Shapes: N examples, B rows of a batch, K sequences of a row, T tokens, C classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.core.late import tf
from kbert.core.types import Arrays
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.inference import as_rows
from kbert.models.pooling import ALL_TOKENS
from kbert.tasks.fine_tuning.tagging import words_of


class Text(NamedTuple):
    """A text and its tokens.

    Attributes:
        text: the text.
        starts: (n,), start of each token in characters of the text.
        ends: (n,), their ends.
        words: (n,), number of each token's word.
    """

    text: str
    starts: np.ndarray
    ends: np.ndarray
    words: np.ndarray

    def part(self, first: int) -> "Text":
        """Returns the text without the tokens before number `first`."""
        return self._replace(
            starts=self.starts[first:], ends=self.ends[first:], words=self.words[first:]
        )


class Target(NamedTuple):
    """The explained answer of one example.

    Attributes:
        row: number of the row of tokens in which the answer is explained.
        label: name of the answer.
        texts: the texts of the row, in the order in which the encoder reads them.
        logits: function from the features of the row, without the batch axis, to the index of the
            explained logit in each flattened output of the task.
        read: function from the features and the mask (K, T) of real tokens to the weights (K, T) of
            the positions that the head reads; None = those of the pooled vector.
    """

    row: int
    label: str
    texts: Sequence[Text]
    logits: Callable[[Arrays], dict[str, int]]
    read: Callable[[Arrays, np.ndarray], np.ndarray] | None = None


# (task, table, its rows, its answers, requested target of each example or None) -> targets.
Targets = Callable[[Any, Table, Rows, Sequence[Any], Sequence[Any]], Iterator[Target]]


def pooled_weights(task: Any, is_real: np.ndarray) -> np.ndarray:
    """Returns the weights of the positions that the pooled vector reads, (K, T).

    Args:
        task: the task.
        is_real: (K, T) bool, whether a position is a token; all False in a missing sequence.
    """
    pooling = getattr(task.encoder.config, "pooling", None)
    if pooling in ALL_TOKENS:
        return is_real / max(is_real.sum(), 1)
    last = task.reads_by_decoder or task.form.cls_last
    weights = np.zeros(is_real.shape)
    for k in np.flatnonzero(is_real.any(1)):
        weights[k, np.flatnonzero(is_real[k])[-1 if last else 0]] = 1.0
    return weights / max(weights.sum(), 1)  # no token at all: an empty text without special tokens


def _classes(
    task: Any, table: Table, rows: Rows, answers: Sequence[Any], requests: Sequence[Any]
) -> Iterator[Target]:
    """Targets of a `TextClassifier`: a label; by default the most probable one."""
    texts = _texts(task, table)
    for row, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        probabilities = answer["probabilities"]
        label = max(probabilities, key=probabilities.get) if request is None else request
        number = _class_index(task.labels, label)
        yield Target(row, task.labels[number], texts[row], _constant("classifier", number))


def _score(
    task: Any, table: Table, rows: Rows, answers: Sequence[Any], requests: Sequence[Any]
) -> Iterator[Target]:
    """Targets of a `TextRegressor`: the score."""
    texts = _texts(task, table)
    for row, request in enumerate(requests):
        if request is not None:
            raise ValueError(
                "A regression has one output: target must be left out. Received: "
                f"target={request!r}"
            )
        yield Target(row, "score", texts[row], _constant("classifier", 0))


def _choices(
    task: Any, table: Table, rows: Rows, answers: Sequence[Any], requests: Sequence[Any]
) -> Iterator[Target]:
    """Targets of `MultipleChoice`: the index of a choice; by default the most probable one."""
    contexts = _read(task, table["context"])
    for row, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        choices = table["choices"][row]
        number = answer["choice"] if request is None else request
        if not _is_index(number, len(choices)):
            raise ValueError(
                "target of a choice must be the index of one of the row's choices, from 0 to "
                f"{len(choices) - 1}. Received: target={request!r}"
            )

        def read(features: Arrays, is_real: np.ndarray, number: int = number) -> np.ndarray:
            chosen = np.arange(len(is_real)) == number
            return pooled_weights(task, is_real & chosen[:, None])

        texts = [contexts[row], *_read(task, choices)]
        yield Target(row, choices[number], texts, _constant("choice", int(number)), read)


def _word_labels(
    task: Any, table: Table, rows: Rows, answers: Sequence[Any], requests: Sequence[Any]
) -> Iterator[Target]:
    """Targets of a `TokenClassifier`: a word's index, or (index, label); in one window."""
    splits = words_of(table).words.row_splits.numpy()
    columns = {name: rows.ragged[name].to_list() for name in ("places", "words")}
    sizes = np.asarray(rows.ragged["first"].row_lengths())
    for example, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        is_pair = isinstance(request, tuple) and len(request) == 2
        word, label = request if is_pair else (request, None)
        count = len(answer["words"])
        if not _is_index(word, count):
            raise ValueError(
                "target of a tagger must be the index of a word, from 0, or (index, label). "
                f"Received: target={request!r} for {count} words"
            )
        label = answer["labels"][word] if label is None else label
        number = _class_index(task.labels, label)
        # The window with the most context around the word.
        around = {}
        for row in np.flatnonzero(rows.examples == example):
            if splits[example] + word in columns["words"][row]:
                position = columns["words"][row].index(splits[example] + word)
                place = columns["places"][row][position]
                around[row, place] = min(place, sizes[row] - place)
        row, place = max(around, key=around.__getitem__)
        numbers = np.array(columns["words"][row]) - splits[example]
        pieces = np.diff([*columns["places"][row], sizes[row]])
        column = place + task.form.begin

        def index(features: Arrays, column: int = column, number: int = number) -> dict[str, int]:
            return {"tokens": column * len(task.labels) + number}

        def read(features: Arrays, is_real: np.ndarray, column: int = column) -> np.ndarray:
            return np.eye(is_real.shape[1])[[column]]

        text = _words_as_text(answer, table, example, np.repeat(numbers, pieces))
        name = f"{answer['words'][word]}: {task.labels[number]}"
        yield Target(int(row), name, [text], index, read)


def _spans(
    task: Any, table: Table, rows: Rows, answers: Sequence[Any], requests: Sequence[Any]
) -> Iterator[Target]:
    """Targets of a `QuestionAnswerer`: (start, end) in characters; start + end logit, one window.

    (0, 0) is no answer, explained in the first window.
    """
    names = ("question", "context") if "question" in table else ("first", "second")
    questions, contexts = (_read(task, table[name]) for name in names)
    starts, ends = (rows.ragged[f"answer_{side}"].to_list() for side in ("starts", "ends"))
    for example, (answer, request) in enumerate(zip(answers, requests, strict=True)):
        span = (answer["start"], answer["end"]) if request is None else request
        is_pair = isinstance(span, tuple) and len(span) == 2
        start, end = span if is_pair else (-1, -1)
        windows = np.flatnonzero(rows.examples == example)
        row = windows[0]
        if (start, end) != (0, 0):
            fitting = [r for r in windows if start in starts[r] and end in ends[r]]
            if not fitting or not 0 <= start < end:
                raise ValueError(
                    "target of an answer must be (start, end) in characters, at which tokens of "
                    f"one window begin and end. Received: target={request!r}"
                )
            row = fitting[0]

        def columns(features: Arrays, start: int = start, end: int = end) -> list[int]:
            if not end:  # no answer
                return [int(task.form.cls_columns(features["padding_mask"][None])[0])] * 2
            edges = ((features["answer_starts"], start), (features["answer_ends"], end))
            return [int(np.flatnonzero(column == value)[0]) for column, value in edges]

        def index(features: Arrays, columns: Callable = columns) -> dict[str, int]:
            return dict(zip(("start", "end"), columns(features), strict=True))

        def read(features: Arrays, is_real: np.ndarray, columns: Callable = columns) -> np.ndarray:
            return np.eye(is_real.shape[1])[columns(features)].mean(0, keepdims=True)

        question, context = questions[example], contexts[example]
        # A window begins `doc_stride` tokens after the one before, see `cut_windows`.
        sizes = np.asarray(rows.ragged["second"].row_lengths())[windows]
        step = min(task.doc_stride, int(sizes[0]))
        texts = [question, context.part(int(row - windows[0]) * step)]
        label = context.text[start:end] if end else "no answer"
        yield Target(int(row), label, texts, index, read)


# Kind of task -> its targets.
TARGETS: dict[str, Targets] = {
    "classify": _classes,
    "regress": _score,
    "choose": _choices,
    "tag": _word_labels,
    "answer": _spans,
}
# Kinds of tasks whose users must name a target.
WITHOUT_DEFAULT = ("tag",)


def _is_index(value: Any, count: int) -> bool:
    """Returns whether a value is an integer from 0 to `count` - 1, and not a bool."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and 0 <= value < count


def _constant(name: str, index: int) -> Callable[[Mapping], dict[str, int]]:
    return lambda features: {name: index}


def _class_index(labels: Sequence[str], label: Any) -> int:
    """Returns the index of a class given by its name or index; raises ValueError for others."""
    if label in labels:
        return labels.index(label)
    if not _is_index(label, len(labels)):
        raise ValueError(
            f"The label of a target must be a class, by name ({', '.join(labels)}) or index. "
            f"Received: {label!r:.80}"
        )
    return int(label)


def _texts(task: Any, table: Table) -> list[list[Text]]:
    """Returns the texts of each row of a table: one, or both of a pair."""
    names = ("text",) if "text" in table else ("first", "second")
    sides = [_read(task, table[name]) for name in names]
    return [list(row) for row in zip(*sides, strict=True)]


def _read(task: Any, texts: Sequence[Any]) -> list[Text]:
    """Returns texts with the positions of their tokens."""
    strings = [x.decode("utf-8", "replace") if isinstance(x, bytes) else x for x in texts]
    arrays = task.tokenizer.encode_with_offsets(
        tf.constant(list(texts), tf.string), unit="character"
    )
    columns = (as_rows(arrays[name]) for name in ("starts", "ends", "word_index"))
    return [Text(*row) for row in zip(strings, *columns, strict=True)]


def _words_as_text(
    answer: Mapping[str, Any], table: Table, example: int, words: np.ndarray
) -> Text:
    """Returns the text of a sentence of words; tokens have the positions of their whole words.

    Args:
        answer: answer of the tagger.
        table: the table.
        example: number of the sentence.
        words: (n,), number of each token's word.
    """
    if "starts" in answer:
        text, starts, ends = table["text"][example], answer["starts"], answer["ends"]
    else:
        text = " ".join(answer["words"])
        ends = np.cumsum([len(word) + 1 for word in answer["words"]]) - 1
        starts = ends - np.array([len(word) for word in answer["words"]])
    return Text(text, np.asarray(starts, int)[words], np.asarray(ends, int)[words], words)
