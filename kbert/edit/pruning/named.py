"""Gradual pruning methods by the name that a flag gives."""

from kbert.core.options import parse_kind
from kbert.edit.pruning.magnitude import MagnitudePruning
from kbert.edit.pruning.movement import MovementPruning
from kbert.edit.pruning.schedule import GradualPruning

GRADUAL: dict[str, type[GradualPruning]] = {
    "magnitude": MagnitudePruning,
    "movement": MovementPruning,
}


def parse(text: str) -> GradualPruning:
    """Returns the callback that a flag describes.

    Args:
        text: "magnitude" or "movement", a colon and the settings, such as "sparsity=0.85"; see
            `kbert.core.options.parse_kind`.

    Raises:
        ValueError: the method or a setting is unknown, a value is out of range, or `sparsity` is
            missing.

    Example:
        >>> pruning = parse("movement:sparsity=0.85,begin_step=0.1")
        >>> type(pruning).__name__, pruning.settings.begin_step, pruning.settings.end_step
        ('MovementPruning', 0.1, 0.7)
    """
    kind, settings = parse_kind(text)
    if kind not in GRADUAL or "sparsity" not in settings:
        raise ValueError(
            f"The pruning must be {' or '.join(GRADUAL)} with a sparsity, such as "
            f"movement:sparsity=0.85. Received: {text!r}"
        )
    try:
        return GRADUAL[kind](**settings)
    except TypeError as error:
        raise ValueError(f"{error}. Received: {text!r}") from error
