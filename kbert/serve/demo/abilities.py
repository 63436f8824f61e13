"""Abilities of a trained task on the page: JSON requests in, JSON answers out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kbert.attribution import attributions, has_default_target
from kbert.search import Index
from kbert.serve.http.errors import Refused
from kbert.serve.http.json_body import describe
from kbert.tasks import EncoderTask, FineTuningTask, Pretraining, Task, TextEmbedder
from kbert.visualization import AttentionPage, read_attention

Request = Mapping[str, Any]
Answer = Callable[[Request], dict[str, Any]]

TOP_K = 8  # tokens for a mask, and nearest texts
# Columns whose values are lists: the page sends one for each line.
LISTS = ("words", "choices")


class Texts:
    """Reads the texts of requests.

    Args:
        max_bytes: most bytes of a text in UTF-8.

    Example:
        >>> Texts(9).read({"text": "rain"}, "text")
        'rain'
        >>> Texts(3).read({"text": "rain"}, "text")
        Traceback (most recent call last):
        kbert.serve.http.errors.Refused: A text must have at most 3 bytes. Received: 4 in 'text'
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def read(self, request: Request, name: str) -> str:
        """Returns the string under a name of a request; `Refused` if it is none or too large."""
        return self._checked(request.get(name), name)

    def read_list(self, request: Request, name: str) -> list[str]:
        """Returns a list of strings of a request; `Refused` if all together exceed the limit."""
        values = request.get(name)
        if not isinstance(values, list) or not values:
            raise Refused(400, f"{name!r} must be a list of texts. Received: {describe(values)}")
        texts = [self._checked(value, name) for value in values]
        self._checked("".join(texts), name)
        return texts

    def _checked(self, value: Any, name: str) -> str:
        """Returns a value of a request; `Refused` if it is not a string, or is above the limit."""
        if not isinstance(value, str):
            raise Refused(400, f"{name!r} must be a text. Received: {describe(value)}")
        size = len(value.encode())
        if size > self.max_bytes:
            raise Refused(
                400,
                f"A text must have at most {self.max_bytes} bytes. Received: {size} in {name!r}",
            )
        return value


def abilities(task: Task, texts: Texts) -> dict[str, Answer]:
    """Returns name -> answering function for each ability of a task, in the order of the page.

    Args:
        task: a trained task.
        texts: reader of the requests' texts.
    """
    answers: dict[str, Answer] = {}
    if isinstance(task, FineTuningTask) and not isinstance(task, TextEmbedder):
        answers["predict"] = lambda request: _predict(task, request, texts)
    if has_default_target(task):
        answers["explain"] = lambda request: _explain(task, request, texts)
    if isinstance(task, Pretraining):
        if task.masked_lm is not None:
            answers["fill_mask"] = lambda request: _fill_mask(task, texts.read(request, "text"))
        for name, has, ask in (
            ("next_sentence", task.next_sentence, task.predict_next_sentence),
            ("sentence_order", task.sentence_order, task.predict_sentence_order),
        ):
            if has:
                answers[name] = _of_pairs(ask, texts)
    if _has_attention(task):
        answers["attention"] = lambda request: (
            AttentionPage(read_attention(task, texts.read_list(request, "texts"))).data
        )
    return answers


def nearest(task: EncoderTask, lines: Sequence[str], texts: Texts) -> Answer:
    """Returns a function that finds the lines nearest to a text, by the cosine of embeddings.

    Args:
        task: a `TextEmbedder`; with another task, its encoder and the mean of the tokens are used.
        lines: texts to search; duplicates are removed.
        texts: reader of the requests' texts.
    """
    embedder = (
        task if isinstance(task, TextEmbedder) else TextEmbedder(task.encoder, task.tokenizer)
    )
    lines = list(dict.fromkeys(lines))
    index = Index(embedder.predict(lines, verbose=0), lines)

    def answer(request: Request) -> dict[str, Any]:
        query = embedder.predict([texts.read(request, "text")], verbose=0)
        (ids,), (scores,) = index.search(query, k=TOP_K)
        hits = zip(ids.tolist(), scores.tolist(), strict=True)
        return {"hits": [{"text": text, "score": score} for text, score in hits]}

    return answer


def columns(task: Task) -> list[list[str]]:
    """Returns the sets of input columns that `predict` accepts; [] for tasks without columns.

    A set with `words` is left out if there are others.
    """
    if not isinstance(task, FineTuningTask):
        return []
    column_sets = [list(names) for names in task.columns.inputs]
    without_words = [names for names in column_sets if "words" not in names]
    return without_words or column_sets


def _fill_mask(task: Any, text: str) -> dict[str, Any]:
    """Returns the best tokens for each mask of a text, as a JSON value."""
    (answer,) = task.predict([text], top_k=min(TOP_K, task.tokenizer.vocabulary_size))
    pairs = zip(answer["tokens"], answer["probabilities"], strict=True)
    return {
        "masks": [
            [{"token": t, "probability": p} for t, p in zip(tokens, probabilities, strict=True)]
            for tokens, probabilities in pairs
        ]
    }


def _of_pairs(ask: Callable[[Any], Any], texts: Texts) -> Answer:
    """Returns an answering function for a probability of a text pair.

    Args:
        ask: function from a list of pairs to their probabilities.
        texts: reader of the requests' texts, which are `first` and `second`.
    """

    def answer(request: Request) -> dict[str, Any]:
        (probability,) = ask([(texts.read(request, "first"), texts.read(request, "second"))])
        return {"probability": float(probability)}

    return answer


def _predict(task: FineTuningTask, request: Request, texts: Texts) -> dict[str, Any]:
    """Returns the prediction for the `row` of a request, in the form written to files."""
    table = _table(task, request, texts)
    (answer,) = task.file_answers(task).written(task.predict(table, verbose=0))
    return {"answer": plain(answer)}


def _explain(task: Any, request: Request, texts: Texts) -> dict[str, Any]:
    """Returns the tokens for the `row` of a request, with their scores for the answer."""
    (attribution,) = attributions(task, _table(task, request, texts), verbose=0)
    return attribution.to_dict()


def _table(task: FineTuningTask, request: Request, texts: Texts) -> dict[str, list]:
    """Returns the `row` of a request as a table; `Refused` if it lacks the task's columns."""
    row = request.get("row")
    names = task.columns.found_in(row) if isinstance(row, dict) else None
    if not isinstance(row, dict) or names is None:
        received = ", ".join(sorted(row))[:80] if isinstance(row, dict) and row else describe(row)
        raise Refused(
            400, f"'row' must have the column(s) {task.columns.rule}. Received: {received}"
        )
    return {
        name: [texts.read_list(row, name) if name in LISTS else texts.read(row, name)]
        for name in names
    }


def _has_attention(task: Task) -> bool:
    """Returns whether attention can be read from the model, by trying it on a one-word text."""
    try:
        read_attention(task, "a")
    except TypeError:
        return False
    return True


def plain(value: Any) -> Any:
    """Converts a value, also with NumPy's types, to a JSON value.

    >>> plain({"label": "spam", "probability": np.float32(0.5), "words": ("a",)})
    {'label': 'spam', 'probability': 0.5, 'words': ['a']}
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(x) for name, x in value.items()}
    return [plain(x) for x in value] if isinstance(value, list | tuple) else value
