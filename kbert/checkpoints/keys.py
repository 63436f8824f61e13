"""Keys of another library's config: each is used, or known to say nothing, or refused."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from absl import logging

from kbert.checkpoints.sizes import MOST_LAYERS
from kbert.configs.base import Config


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

    Raises:
        ValueError: a key is unknown or missing, or a value that kbert's encoder has no equal for.

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
    unknown = [key for key in content if key not in {*fields, *required, *ignored}]
    unused = [key for key in unknown if harmless is not None and harmless(key, content[key])]
    unknown = [key for key in unknown if key not in unused]
    if unused and not unknown:
        logging.warning(
            "%s: not used, as they say nothing about the model: %s", source, ", ".join(unused)
        )
    if unknown:
        raise ValueError(
            "Every key of a config must be understood, or the model may be another one. "
            f"Received: unknown {', '.join(unknown)} in {source}"
        )
    missing = [key for key in fields if key not in content and key not in defaults]
    if missing:
        raise ValueError(f"A config of {title} must give {', '.join(missing)}. Received: {source}")
