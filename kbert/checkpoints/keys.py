"""Checks keys of other libraries' configs: each is used, known to be irrelevant, or an error."""

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
    """Ignores, inside a `with` block, unknown config keys that the caller declares irrelevant.

    Args:
        keys: names of keys that do not affect what the model computes. A config may lack some of
            them. A key that belongs to another architecture, or whose name shows that it changes
            the model, still raises an error.

    Raises:
        ValueError: `keys` is a string or not a collection.

    Example:
        >>> with ignoring(["house_style"]):
        ...     check_keys({"size": 3, "house_style": 1}, fields=["size"], title="a toy",
        ...                source="memory", decisive=lambda key: False)
    """
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise ValueError(f"`ignore` must be a list of names of keys. Received: {keys!r}")
    token = _IGNORED.set(_IGNORED.get() | frozenset(keys))
    try:
        yield
    finally:
        _IGNORED.reset(token)


def make_config(kind: type[Config], fields: Mapping[str, Any], source: str) -> Any:
    """Makes a config from values read from a file.

    Args:
        kind: class of the config.
        fields: field name -> value.
        source: name of the file, for error messages.

    Returns:
        A config of that class.

    Raises:
        ValueError: a field is unknown, missing or has an invalid value; the message names the file.
            Or there are more than 1000 layers, which the size of the weights does not show if
            layers share weights.
    """
    try:
        config = kind.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"{error} in {source}") from error
    layers = getattr(config, "num_layers", 0)
    if layers > MOST_LAYERS:
        raise ValueError(
            f"A config must have at most {MOST_LAYERS} layers: with more it is probably damaged. "
            f"Received: {layers:,} in {source}"
        )
    return config


def known_activation(name: Any, known: Mapping[str, str], what: str, source: str) -> str:
    """Translates the name of an activation from another library to kbert's.

    Args:
        name: name in the other library.
        known: name in the other library -> name in kbert.
        what: key that holds the name, for the error message.
        source: where the name is from, for the error message.

    Raises:
        ValueError: kbert has no such activation.
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
    """Raises ValueError if a config may describe another model than kbert would build from it.

    Args:
        content: key -> value of the config.
        fields: keys that are read.
        title: name of the architecture, for messages.
        source: where the config is from, for messages.
        defaults: keys among `fields` that may be absent.
        required: key -> values that kbert supports, the default first.
        ignored: keys that do not affect what the encoder computes.
        harmless: function of key and value: whether an unknown key does not affect the model after
            all. Such keys are named in a warning. None = no such key.
        decisive: function of a key: whether it changes the model, so that `ignoring` does not
            apply to it. None = no key may be ignored.

    Raises:
        ValueError: a key is unknown or missing, a value is not supported by kbert, or a key to
            ignore changes the model.

    Example:
        >>> check_keys({"size": 3, "speed": 1}, fields=["size"], title="a toy", source="memory")
        Traceback (most recent call last):
        ...
        ValueError: Every key of a config must be supported, as others may change the model. \
Received: unknown speed in memory
    """
    required = required or {}
    for key, allowed in required.items():
        if key in content and content[key] not in allowed:
            raise ValueError(
                f"`{key}` must be {allowed[0]!r} in a config of {title} that kbert supports. "
                f"Received: {content[key]!r} in {source}"
            )
    requested_keys = (
        {key for key in _IGNORED.get() if key in content} if decisive is not None else set()
    )
    read = {*fields, *required}
    if refused := sorted(
        key
        for key in requested_keys
        if key in read
        or (decisive and decisive(key) and not (harmless and harmless(key, content[key])))
    ):
        raise ValueError(
            "A key that changes what the model computes cannot be ignored. Received: "
            f"ignore={refused} for {source}"
        )
    unknown = [key for key in content if key not in {*read, *ignored, *requested_keys}]
    unused = [key for key in unknown if harmless is not None and harmless(key, content[key])]
    unknown = [key for key in unknown if key not in unused]
    if unknown:
        ignorable_keys = [key for key in unknown if decisive is not None and not decisive(key)]
        hint = (
            f" If they do not change the model, pass ignore={ignorable_keys} (programs: "
            f"--ignore={','.join(ignorable_keys)})."
        )
        raise ValueError(
            "Every key of a config must be supported, as others may change the "
            f"model.{hint if ignorable_keys else ''} Received: unknown {', '.join(unknown)} in "
            f"{source}"
        )
    if unused:
        logging.warning(
            "%s: not used, as they do not change the model: %s", source, ", ".join(unused)
        )
    if requested_keys:
        logging.warning("%s: ignored, as requested: %s", source, ", ".join(sorted(requested_keys)))
    missing = [key for key in fields if key not in content and key not in defaults]
    if missing:
        raise ValueError(f"A config of {title} must have {', '.join(missing)}. Received: {source}")
