"""Keys of another library's config: each is used, or known to say nothing, or refused."""

import contextlib
import contextvars
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from absl import logging

from kbert.checkpoints.sizes import MOST_LAYERS
from kbert.configs.base import Config

_IGNORED: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "keys to ignore", default=frozenset()
)


@contextlib.contextmanager
def ignoring(keys: Collection[str]) -> Iterator[None]:
    """Lets unknown keys of a `config.json` pass, on the word of whoever names them.

    Args:
        keys: names of keys that say nothing about what the model computes. A config that lacks one
            of them is read as it is; one that kbert knows to change the model, of another
            architecture or by its name, is still refused.

    Raises:
        ValueError: `keys` is a string, or no collection.

    Example:
        >>> with ignoring(["house_style"]):
        ...     check_keys({"size": 3, "house_style": 1}, fields=["size"], title="a toy",
        ...                source="memory", decisive=lambda key: False)
    """
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise ValueError(f"`ignore` is a list of keys' names. Received: {keys!r}")
    token = _IGNORED.set(_IGNORED.get() | frozenset(keys))
    try:
        yield
    finally:
        _IGNORED.reset(token)


def make_config(kind: type[Config], fields: Mapping[str, Any], source: str) -> Any:
    """A config of values out of a file.

    Args:
        kind: of the config.
        fields: its fields.
        source: the file, for messages.

    Returns:
        A config of that kind.

    Raises:
        ValueError: a field that it has not, lacks, or cannot have such a value; with the file. Or
            more than 1000 layers: those that share their weights store few.
    """
    try:
        config = kind.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"{error} in {source}") from error
    layers = getattr(config, "num_layers", 0)
    if layers > MOST_LAYERS:
        raise ValueError(
            f"A config of more than {MOST_LAYERS} layers is taken to be damaged. "
            f"Received: {layers:,} in {source}"
        )
    return config


def known_activation(name: Any, known: Mapping[str, str], what: str, source: str) -> str:
    """What kbert calls an activation of another library.

    Args:
        name: there.
        known: names there -> names here.
        what: whose name it is, for the message.
        source: where it is from, for the message.

    Raises:
        ValueError: kbert has none of that name.
    """
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"{what} must be one of {', '.join(known)}. Received: {name!r} in {source}"
        )
    return known[name]


def check_keys(
    content: Mapping[str, Any],
    *,
    fields: Collection[str],
    title: str,
    source: str,
    defaults: Collection[str] = (),
    required: Mapping[str, tuple] | None = None,
    ignored: Collection[str] = (),
    harmless: Callable[[str, Any], bool] | None = None,
    decisive: Callable[[str], bool] | None = None,
) -> None:
    """Refuses a config that may be of another model than kbert would make of it.

    Args:
        content: key -> value.
        fields: keys that are read.
        title: whose config it is, for messages.
        source: where it is from, for messages.
        defaults: those of the fields that may be absent.
        required: key -> values that kbert's encoder has an equal for, the default first.
        ignored: keys that say nothing about the encoder's function.
        harmless: key, value -> whether an unknown key says nothing about the model all the same:
            then it is named in a warning. None = no such key.
        decisive: key -> whether it changes the model, so that `ignoring` cannot let it pass.
            None = no key may be ignored.

    Raises:
        ValueError: a key is unknown or missing, a value that kbert's encoder has no equal for, or
            a key to ignore that changes the model.

    Example:
        >>> check_keys({"size": 3, "speed": 1}, fields=["size"], title="a toy", source="memory")
        Traceback (most recent call last):
        ...
        ValueError: Every key of a config must be understood, or the model may be another one. \
Received: unknown speed in memory
    """
    required = required or {}
    for key, allowed in required.items():
        if key in content and content[key] not in allowed:
            raise ValueError(
                f"`{key}` must be {allowed[0]!r} in a config of {title} that kbert reads. "
                f"Received: {content[key]!r} in {source}"
            )
    asked = {key for key in _IGNORED.get() if key in content} if decisive is not None else set()
    read = {*fields, *required}
    if refused := sorted(
        key
        for key in asked
        if key in read
        or (decisive and decisive(key) and not (harmless and harmless(key, content[key])))
    ):
        raise ValueError(
            "A key that decides what the model computes is not ignored. "
            f"Received: ignore={refused} for {source}"
        )
    unknown = [key for key in content if key not in {*read, *ignored, *asked}]
    unused = [key for key in unknown if harmless is not None and harmless(key, content[key])]
    unknown = [key for key in unknown if key not in unused]
    if unknown:
        free = [key for key in unknown if decisive is not None and not decisive(key)]
        hint = (
            f" If you know that they say nothing about the model: ignore={free}, in programs "
            f"--ignore={','.join(free)}."
        )
        raise ValueError(
            "Every key of a config must be understood, or the model may be another one."
            f"{hint if free else ''} Received: unknown {', '.join(unknown)} in {source}"
        )
    if unused:
        logging.warning(
            "%s: not used, as they say nothing about the model: %s", source, ", ".join(unused)
        )
    if asked:
        logging.warning("%s: ignored, as asked: %s", source, ", ".join(sorted(asked)))
    missing = [key for key in fields if key not in content and key not in defaults]
    if missing:
        raise ValueError(f"A config of {title} must give {', '.join(missing)}. Received: {source}")
