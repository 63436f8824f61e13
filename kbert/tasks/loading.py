"""Tasks out of folders: which class a folder holds, with which settings, and what it lacks."""

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
    """A folder holds another task than the one that it is loaded as.

    Args:
        message: what the user reads.
        found: the class of the folder's task; None where it is not known.
    """

    def __init__(self, message: str, found: type[Any] | None) -> None:
        super().__init__(message)
        self.found = found


def find_class(asked: type[Any], kind: str | None, module: str | None, source: str) -> type[Any]:
    """The class of a folder's task.

    Args:
        asked: the class whose `from_preset` was called.
        kind: the task's that was saved.
        module: where its class was defined, for messages; None for those of kbert.
        source: the folder, for messages.

    Returns:
        `asked`, or the class of that kind where `asked` is a base of it.

    Raises:
        WrongTaskError: the folder holds another task, or one whose class is not imported.
        ValueError: it holds one of no kind.
    """
    if kind is None:
        raise ValueError(f"A folder's task must say its `kind`. Received: none in {source}")
    if kind == asked.kind:
        return asked
    found = registry.find("task", kind)
    if found is not None and issubclass(found, asked):
        return found
    rule = f"The folder must hold the task that it is loaded as, {asked.__name__}. Received: a"
    if found is not None:
        raise WrongTaskError(
            f"{rule} {found.__name__} in {source}. With new_head=True an encoder is taken alone",
            found,
        )
    raise WrongTaskError(
        f"{rule} {kind} in {source}, of which no class is known: import the module that defines it "
        f"before{f', {module}' if module else ''} (programs: --task_module)",
        None,
    )


def saved_settings(checkpoint: Checkpoint, strict: bool, asked: type[Any]) -> dict[str, Any]:
    """Kind and constructor arguments of the task that was saved.

    Args:
        checkpoint: the folder's content.
        strict: whether the folder must hold the requested task, and nothing else.
        asked: the class whose `from_preset` was called.

    Raises:
        ValueError: there is none, or a head that no task has.
    """
    if checkpoint.task is None and strict and (asked.has_head or checkpoint.foreign_head):
        way_out = (
            "new_head=True loads the encoder of any task and initialises new heads"
            if asked.has_head
            else "strict=False takes the model alone"
        )
        raise ValueError(
            f"A {asked.__name__} is loaded from a folder with its own heads and no others; "
            f"{way_out}. Received: {checkpoint.foreign_head or 'no head that kbert knows'} in "
            f"{checkpoint.source}"
        )
    settings = dict(checkpoint.task or {})
    settings.pop("input_tokens", None)  # the model's
    if checkpoint.labels is not None:
        settings["labels"] = list(checkpoint.labels)
    return settings


def check_order(labels: Any, saved: Sequence[Any] | None, source: str) -> None:
    """Raises ValueError where names of classes are those of a folder, but at other places."""
    if labels is None or isinstance(labels, int) or saved is None or list(labels) == list(saved):
        return
    if sorted(map(str, labels)) == sorted(map(str, saved)):
        raise ValueError(
            "`labels` names the classes of the folder's head by their place, and these are the "
            "folder's own in another order: leave them out, or have a new head by new_head=True. "
            f"Received: {list(labels)!r:.80}, where {source} has {list(saved)!r:.80}"
        )


def read_tokenizer(checkpoint: Checkpoint, folder: PathLike) -> Any:
    """The tokenizer of a folder; for ELMo's the one that its config describes."""
    if isinstance(checkpoint.config, ElmoConfig):
        return CharacterTokenizer(checkpoint.config.max_characters)
    return load_tokenizer(folder)


def make_model(config: Config, dtype: DType) -> keras.Model:
    """The model that a task on such a config is built on, its weights drawn."""
    if config.kind in late.TABLE["model"]:
        return late.load("model", config.kind)(config, dtype=dtype)
    return Encoder(cast(EncoderConfig, config), dtype=dtype)


def load_encoder(
    checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, *, strict: bool, pooler: bool
) -> keras.Model:
    """The encoder of a folder for a newly initialised head.

    Args:
        checkpoint: the folder's content.
        tokenizer: the folder's, which helps to tell architectures apart.
        dtype: a Keras dtype policy or its name.
        strict: whether the weights must be the encoder's exactly.
        pooler: whether it must have a pooler; where the folder has none, it is drawn.
    """
    config = checkpoint.config
    if config.kind in late.TABLE["encoder of"]:
        return late.load("encoder of", config.kind)(checkpoint, dtype, strict)
    checkpoint.expect(EncoderConfig)
    arrays = checkpoint.part("encoder/")
    drawn = pooler and config.pooler_activation is None
    if drawn:
        huggingface = late.load("checkpoint format", "huggingface")
        activation = huggingface.usual_pooler(config, checkpoint.arrays, tokenizer.kind)
        config = config.replace(pooler_activation=activation)
    with without_drawing():
        encoder = Encoder(config, dtype=dtype)
        restore_edits(encoder, checkpoint.edits, checkpoint.source)
        encoder.pooler_is_new = drawn
        if drawn:
            arrays |= get_arrays(encoder.pooler, "encoder/pooler")
        set_arrays(encoder, "encoder", arrays, checkpoint.source, strict)
    encoder.weights_from = checkpoint.source
    return encoder
