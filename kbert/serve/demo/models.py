"""Models of a demo: loaded once, running one request at a time."""

import os
import threading
from collections.abc import Sequence
from typing import Any

from absl import logging

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.preset import member_folders
from kbert.data.readers.content import DataFile
from kbert.hub import locate
from kbert.serve.demo.abilities import Answer, Texts, abilities, columns, nearest
from kbert.serve.demo.settings import DemoOptions
from kbert.serve.http.errors import Refused
from kbert.tasks import EncoderTask, Task, TextEmbedder


class Models:
    """Tasks of a demo and their abilities.

    Args:
        options: settings of the demo: presets, lines, limits.

    Raises:
        FileNotFoundError, ValueError: a preset does not load, or the file of lines has none.
    """

    def __init__(self, options: DemoOptions) -> None:
        texts = Texts(options.max_text_bytes)
        self._options = options
        self._tasks: list[Task] = [_load(path) for path in options.preset]
        self._answers: list[dict[str, Answer]] = [abilities(task, texts) for task in self._tasks]
        self._lines = 0
        if options.lines is not None:
            self._find_among(options.lines, texts)
        # A task is not thread-safe, and two threads would compute no faster.
        self._computing = threading.Lock()
        self._waiting = threading.BoundedSemaphore(options.max_waiting)

    def about(self) -> dict[str, Any]:
        """Returns the data that the page starts with: models, abilities, number of lines."""
        names = distinct([short_name(path) for path in self._options.preset])
        return {
            "models": [
                {
                    "name": name,
                    "about": described(task),
                    "mask": getattr(task.tokenizer, "mask_token", None),
                    "abilities": list(answers),
                    "columns": columns(task),
                }
                for name, task, answers in zip(names, self._tasks, self._answers, strict=True)
            ],
            "lines": self._lines,
        }

    def answer(self, ability: str, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of a model to a request.

        Args:
            ability: name of an ability in `about`.
            request: request with the number of the model in `model`.

        Raises:
            Refused: the model or ability does not exist, the request is invalid, or too many
                requests wait.
        """
        number: Any = request.get("model")
        last = len(self._tasks) - 1
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or not 0 <= number <= last:
            raise Refused(
                400, f"'model' must be a number from 0 to {last}. Received: {number!r:.80}"
            )
        answer = self._answers[number].get(ability)
        if answer is None:
            known_abilities = ", ".join(self._answers[number]) or "nothing"
            raise Refused(
                404,
                f"The abilities of this model are {known_abilities}. Received: {ability[:80]!r}",
            )
        if not self._waiting.acquire(blocking=False):
            raise Refused(503, "Too many requests are waiting. Try again.", retry_after=1)
        try:
            with self._computing:
                return answer(request)
        except ValueError as error:  # the task rejects the input; the message has the rule
            raise Refused(400, str(error)) from error
        finally:
            self._waiting.release()

    def _find_among(self, path: str, texts: Texts) -> None:
        """Adds the ability "nearest", over the lines of a file, to the first model that embeds.

        Without a `TextEmbedder` the first model gets it; ValueError if that has no encoder.

        Args:
            path: file with one text per line.
            texts: reader of the requests' texts.
        """
        lines = _read_lines(path, self._options.most_lines)
        embedders = [i for i, task in enumerate(self._tasks) if isinstance(task, TextEmbedder)]
        number = (embedders or [0])[0]
        task = self._tasks[number]
        if not isinstance(task, EncoderTask):
            raise ValueError(
                "The nearest lines require a model on an encoder. Received: a "
                f"{type(task).__name__} of {self._options.preset[number]!r}"
            )
        self._answers[number]["nearest"] = nearest(task, lines, texts)
        self._lines = len(lines)
        logging.info("%d lines of %s", len(lines), path)


def _load(path: str) -> Task:
    """Loads the task of a folder; a folder with only an encoder becomes a `TextEmbedder`."""
    folder = locate(path)
    if not member_folders(folder) and read_checkpoint(folder).task is None:
        return TextEmbedder.from_preset(folder)
    return Task.from_preset(folder)


def _read_lines(path: str, most: int) -> list[str]:
    """Returns the first `most` distinct lines of a file; ValueError if all are empty."""
    unique_lines: dict[str, None] = {}
    for _, line in DataFile(path).lines():
        if line.strip():
            unique_lines[line.strip()] = None
        if len(unique_lines) == most:
            logging.warning("Of %s only the first %d lines are read", path, most)
            break
    if not unique_lines:
        raise ValueError(
            f"A file of lines must have at least one line that is not empty. Received: {path!r}"
        )
    return list(unique_lines)


def short_name(path: str) -> str:
    """Returns the name of a preset on the page, without the folders of this machine.

    >>> short_name("/home/me/quickstart/preset"), short_name("google/electra-small")
    ('quickstart', 'electra-small')
    """
    parts = [part for part in os.path.normpath(path).split(os.sep) if part]
    named = [part for part in parts if part not in ("preset", ".", "..")]
    return (named or parts or [path])[-1]


def distinct(names: Sequence[str]) -> list[str]:
    """Makes names unique by adding a number to repeated ones.

    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    unique_names: list[str] = []
    for index, name in enumerate(names):
        num_before = names[:index].count(name)
        unique_names.append(f"{name} ({num_before + 1})" if num_before else name)
    return unique_names


def described(task: Any) -> str:
    """Describes a task in one line: its type, parameters, layers, heads and width."""
    config = task.model.config
    parts = [type(task).__name__, f"{task.count_params() / 1e6:.1f} M parameters"]
    for name, unit in (("num_layers", "layers"), ("num_heads", "heads"), ("hidden_size", "wide")):
        if isinstance(getattr(config, name, None), int):
            parts.append(f"{getattr(config, name)} {unit}")
    return ", ".join(parts)
