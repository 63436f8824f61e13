"""Freezing of weights, chosen by patterns over their names."""

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

import keras

_SHOWN = 5


def freeze(model: keras.Model, patterns: str | Sequence[str]) -> list[str]:
    """Freezes the weights whose names match: no gradient, no optimizer slots, no weight decay.

    Names are the weights' paths below the model: `encoder/embeddings/token`,
    `encoder/layers_0/attention/qkv/kernel`, `classifier/dense/bias`. In a pattern `*` stands for
    any characters, including slashes, `?` for one character, `[12]` for one of those listed.

    Dropout stays on in frozen layers. Call this before `compile`: an optimizer has slots for the
    weights that were trainable when it was built.

    Args:
        model: A task or an encoder.
        patterns: One or several patterns, e.g. `["encoder/embeddings/*",
            "encoder/layers_[0-5]/*"]`.

    Returns:
        Names of the weights that were frozen, in the model's order, without those frozen before.

    Raises:
        ValueError: A pattern matches nothing; close names are listed.

    Example:
        >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="head")])
        >>> freeze(model, "*/bias")
        ['head/bias']
        >>> [v.name for v in model.trainable_weights]
        ['kernel']
    """
    return _set_trainable(model, patterns, False)


def thaw(model: keras.Model, patterns: str | Sequence[str] = "*") -> list[str]:
    """Makes frozen weights trainable again, by default all weights; reverses `freeze`.

    Args:
        model: A task or an encoder.
        patterns: One or several patterns over the weights' names, see `freeze`.

    Returns:
        Names of the weights that were thawed.

    Raises:
        ValueError: A pattern matches nothing.

    Example:
        >>> model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, name="head")])
        >>> _ = freeze(model, "*")
        >>> thaw(model, "head/*")
        ['head/kernel', 'head/bias']
    """
    return _set_trainable(model, patterns, True)


def _set_trainable(model: keras.Model, patterns: str | Sequence[str], trainable: bool) -> list[str]:
    """Sets `trainable` of all weights whose names match a pattern.

    Returns the names of the weights that this changed; ValueError if a pattern matches nothing.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    weights = {weight.path.removeprefix(f"{model.name}/"): weight for weight in model.weights}
    chosen: set[str] = set()
    for pattern in patterns:
        matches = [name for name in weights if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            raise ValueError(
                "A pattern must match the name of a weight. "
                f"Received: {pattern!r}; close names: {', '.join(_close(pattern, weights))}"
            )
        chosen.update(matches)
    changed = [n for n, w in weights.items() if n in chosen and w.trainable != trainable]
    for name in changed:
        weights[name].trainable = trainable
    return changed


def _close(pattern: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(pattern, names, n=_SHOWN, cutoff=0.0)
