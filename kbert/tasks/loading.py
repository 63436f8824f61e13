"""Loading tasks from folders: the class, its settings, the tokenizer and the model."""

from collections.abc import Sequence
from typing import Any, cast

import keras

from kbert.checkpoints import Checkpoint
from kbert.configs.base import Config
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.core import late, registry
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, PathLike
from kbert.models.edits import restore_edits
from kbert.models.encoder import Encoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import get_arrays, set_arrays
from kbert.tokenizers.loading import load_tokenizer
from kbert.tokenizers.words.characters import CharacterTokenizer


class WrongTaskError(ValueError):
    """A folder holds a task of another class than the requested one.

    Args:
        message: message for the user.
        found: class of the folder's task; None if unknown.
    """

    def __init__(self, message: str, found: type[Any] | None) -> None:
        super().__init__(message)
        self.found = found


def find_class(asked: type[Any], kind: str | None, module: str | None, source: str) -> type[Any]:
    """Returns the class of a folder's task.

    Args:
        asked: class whose `from_preset` was called.
        kind: kind of the saved task.
        module: module that defines its class, for messages; None for classes of kbert.
        source: the folder, for messages.

    Returns:
        `asked`, or the class registered for `kind` if `asked` is a base of it.

    Raises:
        WrongTaskError: the folder holds another task, or one whose class is not imported.
        ValueError: the folder's task has no `kind`.
    """
    if kind is None:
        raise ValueError(f"The task of a folder must have a `kind`. Received: none in {source}")
    if kind == asked.kind:
        return asked
    task_class = registry.find("task", kind)
    if task_class is not None and issubclass(task_class, asked):
        return task_class
    rule = f"The folder must contain a task of the class {asked.__name__}. Received: a"
    if task_class is not None:
        raise WrongTaskError(
            f"{rule} {task_class.__name__} in {source}. With new_head=True only the encoder is "
            "loaded",
            task_class,
        )
    raise WrongTaskError(
        f"{rule} {kind} in {source}, which is not a registered class: first import the module that "
        f"defines it{f', {module}' if module else ''} (programs: --task_module)",
        None,
    )


def saved_settings(checkpoint: Checkpoint, strict: bool, asked: type[Any]) -> dict[str, Any]:
    """Returns the kind and constructor arguments of the saved task.

    Args:
        checkpoint: content of the folder.
        strict: whether the folder must hold exactly the requested task.
        asked: class whose `from_preset` was called.

    Raises:
        ValueError: with `strict`, the folder has no task but `asked` needs a head, or the folder
            has a head that kbert has no task for.
    """
    if checkpoint.task is None and strict and (asked.has_head or checkpoint.foreign_head):
        hint = (
            "new_head=True loads the encoder of any task and initialises new heads"
            if asked.has_head
            else "strict=False loads the model alone"
        )
        raise ValueError(
            f"A {asked.__name__} can only be loaded from a folder with its own heads; "
            f"{hint}. Received: {checkpoint.foreign_head or 'no head that kbert supports'} in "
            f"{checkpoint.source}"
        )
    settings = dict(checkpoint.task or {})
    settings.pop("input_tokens", None)  # the model's
    if checkpoint.labels is not None:
        settings["labels"] = list(checkpoint.labels)
    return settings


def check_order(labels: Any, saved: Sequence[Any] | None, source: str) -> None:
    """Raises ValueError if `labels` are a folder's class names in another order.

    `labels` may also be None or a number of classes, `saved` are the folder's, `source` is its name
    for the message.
    """
    if labels is None or isinstance(labels, int) or saved is None or list(labels) == list(saved):
        return
    if sorted(map(str, labels)) == sorted(map(str, saved)):
        raise ValueError(
            "`labels` must be in the order of the folder's head: leave them out, or pass "
            "new_head=True for a new head. "
            f"Received: {list(labels)!r:.80}, where {source} has {list(saved)!r:.80}"
        )


def read_tokenizer(checkpoint: Checkpoint, folder: PathLike) -> Any:
    """Loads the tokenizer of a folder; for ELMo, makes the one that the config describes."""
    if isinstance(checkpoint.config, ElmoConfig):
        return CharacterTokenizer(checkpoint.config.max_characters)
    return load_tokenizer(folder)


def make_model(config: Config, dtype: DType) -> keras.Model:
    """Returns the model for a config, with newly initialised weights."""
    if config.kind in late.TABLE["model"]:
        return late.load("model", config.kind)(config, dtype=dtype)
    return Encoder(cast(EncoderConfig, config), dtype=dtype)


def load_encoder(
    checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, *, strict: bool, pooler: bool
) -> keras.Model:
    """Loads the encoder of a folder for a newly initialised head.

    Args:
        checkpoint: content of the folder.
        tokenizer: the folder's tokenizer, which helps to distinguish architectures.
        dtype: a Keras dtype policy or its name.
        strict: whether the weights must be exactly those of the encoder.
        pooler: whether the encoder must have a pooler; it is newly initialised if the folder has
            none.
    """
    config = checkpoint.config
    if config.kind in late.TABLE["encoder of"]:
        return late.load("encoder of", config.kind)(checkpoint, dtype, strict, pooler)
    checkpoint.expect(EncoderConfig)
    pooler_is_new = pooler and config.pooler_activation is None
    if pooler_is_new:
        huggingface = late.load("checkpoint format", "huggingface")
        activation = huggingface.usual_pooler(config, checkpoint.arrays, tokenizer.kind)
        config = config.replace(pooler_activation=activation)
    arrays = checkpoint.take("encoder/")
    with without_drawing():
        encoder = Encoder(config, dtype=dtype)
        restore_edits(encoder, checkpoint.edits, checkpoint.source)
        encoder.pooler_is_new = pooler_is_new
        if pooler_is_new:
            arrays |= get_arrays(encoder.pooler, "encoder/pooler")
        set_arrays(encoder, "encoder", arrays, checkpoint.source, strict, consume=True)
    encoder.weights_from = checkpoint.source
    return encoder
