"""Several fine-tuned tasks whose averaged probabilities are one answer.

Shapes: B rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self, cast

import keras
from keras import ops

from kbert.checkpoints import preset
from kbert.core import registry
from kbert.core.types import PathLike, Tensors, Terms
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.tasks.loading import WrongTaskError
from kbert.tasks.losses import mean_logits
from kbert.tasks.task import Task

_KEYS = {"format_version", "members", "settings"}


class Ensemble(FineTuningTask):
    """Fine-tuned tasks of one class as one task, whose answers are made of the members' mean.

    Classes, tags, choices and labels get the mean of the members' probabilities, numbers the mean
    of the members' numbers. Spans are ranked by the sum of the members' scores. (Hansen & Salamon
    1990, https://doi.org/10.1109/34.58871; for BERT the "ensemble" rows of Devlin et al. 2019,
    table 2, https://arxiv.org/abs/1810.04805.) The members may have encoders of different sizes.

    An ensemble is a task of its members' class: it predicts, evaluates, and is exported and served
    like one of them. It cannot be trained. `encoder`, which a student is made of, is that of the
    first member.

    Args:
        tasks: two or more tasks, such as runs with different seeds. They must have the same class,
            labels, tokenizer and settings of rows.
        name: name of the model; None = the class name in snake case.
        **settings: settings that differ from the first member's, such as `threshold`.

    Attributes:
        members: the tasks.

    Raises:
        TypeError: a task is not fine-tuned, or its answers have no mean, such as generated texts.
        ValueError: there are fewer than two tasks, or they do not fit together.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "free", "money", "lunch"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> tasks = [kbert.TextClassifier(kbert.Encoder(config), tokenizer, ["ham", "spam"])
        ...          for _ in range(2)]
        >>> ensemble = Ensemble(tasks)
        >>> spam = [task.predict("free money")[0]["probabilities"]["spam"]
        ...         for task in (*tasks, ensemble)]
        >>> abs(spam[2] - (spam[0] + spam[1]) / 2) < 1e-6
        True
    """

    members: list[FineTuningTask]

    def __new__(cls, tasks: Sequence[FineTuningTask], **options: Any) -> Self:
        check_alike(tasks, "An ensemble")
        check_averages(type(tasks[0]))
        kind: Any = type(tasks[0])
        return cast(Self, super().__new__(_class_of(kind)))

    def __init__(
        self, tasks: Sequence[FineTuningTask], *, name: str | None = None, **settings: Any
    ) -> None:
        first = tasks[0]
        Task.__init__(self, first.model, first.tokenizer, name=name or f"{first.name}_ensemble")
        self.encoder = first.encoder
        self.members = list(tasks)
        # The constructor of the members' class would make a head of its own: instead, what it sets
        # besides layers is taken from a task that it makes.
        single = type(first)(first.model, first.tokenizer, **{**first.settings, **settings})
        for name in settings:
            if first.options.details(name).fixed and getattr(single, name) != getattr(first, name):
                raise ValueError(
                    f"An ensemble has its members' `{name}`, which they were made with. Received: "
                    f"{name}={settings[name]!r} in the place of {getattr(first, name)!r}"
                )
        for attribute, value in vars(single).items():
            if attribute not in vars(self) and not isinstance(value, keras.layers.Layer):
                setattr(self, attribute, value)
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {
            f"{_folder_of(number)}/{prefix}": part
            for number, member in enumerate(self.members)
            for prefix, part in member.parts.items()
        }

    def call(self, batch: Tensors, training: bool = False) -> Tensors:
        """Returns logits in the form of a member's, whose probabilities are the members' mean."""
        outputs = [member(batch, training=training) for member in self.members]
        rows = ops.shape(batch["padding_mask"])[:1]
        predictions = self.predictions(outputs[0], {**batch, "label_weights": ops.ones(rows)})
        return {
            name: mean_logits(
                predictions[name].kind if self.averages == "probabilities" else "number",
                [logits[name] for logits in outputs],
            )
            for name in outputs[0]
        }

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        """Returns the task's terms; an ensemble raises ValueError in training."""
        if training:
            self._refuse_training()
        return self.terms(self(batch), batch)

    def make_objective(self, data: Any, labels: Any = None, **settings: Any) -> NoReturn:
        """Raises ValueError: an ensemble cannot be trained."""
        self._refuse_training()

    def _refuse_training(self) -> NoReturn:
        raise ValueError(
            "An ensemble cannot be trained: train its members, then make a new one. Received: an "
            f"ensemble of {len(self.members)} {type(self.members[0]).__name__}s"
        )

    def signatures(self, **options: Any) -> dict[str, Any]:
        """Returns the entry points of the members' class; without `encode`, which has no mean."""
        entries = super().signatures(**options)
        return {name: entry for name, entry in entries.items() if name != "encode"}

    def export(self, directory: PathLike, *, format: str = "savedmodel", **options: Any) -> str:
        """Exports like `Task.export`, in all formats but "safetensors".

        Raises:
            ValueError: as in `Task.export`; or the task has a `doc_stride` and the format is not
                "savedmodel": the windows of a text would be pooled after the members' mean.
        """
        if format != "savedmodel" and getattr(self, "doc_stride", None) and self.texts is not None:
            raise ValueError(
                'An ensemble with a doc_stride must be exported with format="savedmodel": each '
                "member pools the windows of a text before their mean. Received: "
                f"format={format!r}, doc_stride={self.texts.doc_stride}"
            )
        return super().export(directory, format=format, **options)

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """Writes each member to a subfolder that is a preset itself, and `ensemble.json`.

        Args:
            path: the folder; created if missing.
            format: must be "kbert": other libraries have no ensembles.
            **options: not supported; for options of other formats save the members.

        Raises:
            ValueError: there is another format or an option, the folder holds another model, or a
                member's weights or answers are not finite.
        """
        if format != "kbert" or options:
            raise ValueError(
                'An ensemble must be saved with format="kbert"; its members can be saved in '
                "other formats. Received: "
                f"{', '.join(f'{k}={x!r}' for k, x in {'format': format, **options}.items())}"
            )
        members = {_folder_of(number): member for number, member in enumerate(self.members)}
        preset.write_several(path, preset.ENSEMBLE_FILE, members, settings=self.settings)


def load_ensemble(
    asked: type[Any], folder: Path, *, new_head: bool = False, **options: Any
) -> Ensemble:
    """Loads an ensemble, for `from_preset` of a task.

    Args:
        asked: class whose `from_preset` was called.
        folder: folder that `Ensemble.save_to_preset` has written.
        new_head: must be False: a new head requires a single encoder.
        **options: arguments of `Task.from_preset`, for every member.

    Raises:
        ValueError: the folder is damaged, `new_head` is set, or the members do not fit together.
        WrongTaskError: the members are not of the class `asked`.
    """
    content = read_json(folder / preset.ENSEMBLE_FILE)
    names = preset.member_folders(folder)
    if set(content) != _KEYS or not isinstance(content["settings"], Mapping):
        raise ValueError(
            f"`{preset.ENSEMBLE_FILE}` must have the keys {', '.join(sorted(_KEYS))}. "
            f"Received: {', '.join(content)} in {folder}"
        )
    if new_head:
        raise ValueError(
            "new_head=True requires the folder of a single model, such as a member's. "
            f"Received: an ensemble in {folder}"
        )
    tasks = [Task.from_preset(name, **options) for name in names]
    changes = {k: x for k, x in options.items() if k not in ("dtype", "strict", "ignore")}
    ensemble = Ensemble(tasks, **{**registry.current(content["settings"]), **changes})
    if not isinstance(ensemble, asked):
        raise WrongTaskError(
            f"The folder must contain a task of the class {asked.__name__}. Received: an ensemble "
            f"of {type(tasks[0]).__name__}s in {folder}",
            type(tasks[0]),
        )
    return ensemble


def check_averages(kind: type[Any]) -> None:
    """Raises TypeError unless the answers of tasks of the class `kind` have a mean."""
    if getattr(kind, "averages", None) is None:
        raise TypeError(
            "An ensemble requires tasks whose answers have a mean: classes, labels, numbers, tags, "
            f"choices or spans. Received: a {kind.__name__}"
        )


def check_alike(tasks: Any, what: str) -> None:
    """Raises TypeError or ValueError unless tasks read the same rows and give the same answers.

    Args:
        tasks: the tasks.
        what: what they are combined to, for messages.
    """
    if not isinstance(tasks, Sequence) or len(tasks) < 2:
        raise ValueError(f"{what} requires a list of two or more tasks. Received: {tasks!r:.200}")
    for task in tasks:
        if not isinstance(task, TableTask) or isinstance(task, Ensemble):
            raise TypeError(
                f"{what} requires fine-tuned tasks, each with a single model. Received: a "
                f"{type(task).__name__}"
            )
    first, *others = map(_compared, tasks)
    for other in others:
        for name, value in first.items():
            if other.get(name) != value:
                raise ValueError(
                    f"{what} requires tasks of the same {name}. Received: {value!r:.200} and "
                    f"{other.get(name)!r:.200}"
                )


def _compared(task: TableTask) -> dict[str, Any]:
    """Returns what tasks must have in common to read the same rows and give the same answers."""
    row_settings = {
        name: value
        for name, value in task.chosen.to_dict().items()
        if task.options.details(name).of_rows
    }
    return {
        "class": type(task).__name__,
        "tokenizer": f"a {type(task.tokenizer).__name__}, {task.tokenizer.checksum}",
        "special tokens": getattr(task, "form", None),
        "num_segments": getattr(task.model.config, "num_segments", None),
        **row_settings,
        "max_length": task.row_length,
        "precision": task.dtype_policy.name,
    }


@functools.cache
def _class_of(kind: type[FineTuningTask]) -> type[Any]:
    """Returns the class of ensembles of a class of tasks, which is a subclass of both."""
    content = {"__module__": kind.__module__, "__doc__": Ensemble.__doc__}
    return type(f"{kind.__name__}Ensemble", (Ensemble, kind), content)


def _folder_of(number: int) -> str:
    return f"member-{number}"
