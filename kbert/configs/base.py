"""Base class of all configurations, and checks of their fields."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from kbert.core.registry import Registered

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")
BLOCKS = ("pre_norm", "post_norm")  # where a block normalises, see kbert.models.blocks
NORMS = ("layer", "layer_no_bias", "rms")  # see kbert.layers.LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Registered, sort="config"):
    """Base of all configurations; a subclass adds the fields of a kind of model and their checks.

    Attributes:
        kind: name of the kind of model in presets; a subclass that defines one is registered.
        told: description of the model and the class that loads it, for messages.
        FORMATS: folder formats that the model can be saved in, the default first; see
            `kbert.checkpoints.write_checkpoint`.
        LATER: fields added after the first version. `to_dict` omits those at their default, so
            presets, runs and caches of a model without them do not change.
    """

    told: ClassVar[str]
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert",)
    LATER: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict for JSON, without fields in `LATER` at their defaults."""
        later_defaults = {field.name: field.default for field in dataclasses.fields(self)}
        later_defaults = {name: later_defaults[name] for name in self.LATER}
        fields = dataclasses.asdict(self)
        return {
            k: v for k, v in fields.items() if k not in later_defaults or v != later_defaults[k]
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Builds a config from a dict of `to_dict`; unknown or missing keys raise ValueError."""
        field_names = [field.name for field in dataclasses.fields(cls)]
        for key in fields:
            if key not in field_names:
                close_names = difflib.get_close_matches(str(key), field_names, n=3)
                hint = f" Did you mean: {', '.join(close_names)}?" if close_names else ""
                raise ValueError(
                    f"{cls.__name__} has no such field.{hint} Known: {', '.join(field_names)}. "
                    f"Received: {key!r}"
                )
        missing_names = [
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING and field.name not in fields
        ]
        if missing_names:
            raise ValueError(
                f"{cls.__name__} requires {', '.join(missing_names)}. Received: "
                f"{', '.join(map(str, fields)) or 'nothing'}"
            )
        return cls(**fields)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; raises ValueError if a field is not valid."""
        return type(self).from_dict({**self.to_dict(), **changes})


class Frozen(dict):
    """A mapping of options that is hashed by its content, like configs."""

    def __hash__(self) -> int:  # type: ignore[override]  # dicts have none
        return hash(tuple(sorted((name, repr(value)) for name, value in self.items())))


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raises ValueError unless the field `name` has an integer of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"`{name}` must be an integer of at least {minimum}. Received: {value!r}")


def check_real(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    """Raises ValueError unless the field `name` has a finite number for which `holds` is true.

    `rule` says in the message what a value must be, such as "at least 0".
    """
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not holds(value):
        raise ValueError(f"`{name}` must be a number that is {rule}. Received: {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the field `name` has a finite number above 0."""
    check_real(name, value, "positive", lambda x: x > 0)


def check_rate(name: str, value: Any) -> None:
    """Raises ValueError unless the field `name` has a dropout rate: at least 0, less than 1."""
    check_real(name, value, "at least 0 and less than 1", lambda x: 0 <= x < 1)


def check_flag(name: str, value: Any) -> None:
    """Raises ValueError unless the field `name` has the value True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"`{name}` must be True or False. Received: {value!r}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ValueError unless the field `name` has one of the values `choices`."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}. Received: {value!r}")


def check_activation(name: str, value: Any) -> None:
    """Raises ValueError unless the field `name` has one of the values `ACTIVATIONS`."""
    check_choice(name, value, ACTIVATIONS)


def check_transformer(config: Any) -> None:
    """Raises ValueError unless the fields that all models of attention blocks share are valid.

    These are sizes (`num_heads` divides `hidden_size`), activation, dropout rates and epsilon.
    """
    for name in (
        *("vocabulary_size", "hidden_size", "num_layers", "num_heads"),
        *("intermediate_size", "max_positions"),
    ):
        check_count(name, getattr(config, name), minimum=1)
    # With a `head_size` of its own, a config may have any number of heads.
    if getattr(config, "head_size", None) is None and config.hidden_size % config.num_heads:
        raise ValueError(
            "`hidden_size` must be a multiple of `num_heads`. "
            f"Received: hidden_size={config.hidden_size}, num_heads={config.num_heads}"
        )
    check_activation("activation", config.activation)
    for name in ("dropout", "attention_dropout"):
        check_rate(name, getattr(config, name))
    check_positive("layer_norm_epsilon", config.layer_norm_epsilon)
