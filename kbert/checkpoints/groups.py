"""The group of weights that each ALBERT layer uses: libraries round differently."""

from collections.abc import Callable

from kbert.checkpoints.sizes import MOST_LAYERS


def check_groups(
    layers: int, groups: int, group_of: Callable[[int], int], whose: str, source: str
) -> None:
    """Raises ValueError if another library assigns ALBERT's layers to other groups than kbert.

    In kbert, layer i of L uses group i * G // L. Other libraries divide floating-point numbers,
    which for a few pairs of L and G ends just below a whole number. The next lower group is then
    used twice. A group may be used by no layer and so be missing in a TensorFlow file. Numbers that
    no config accepts are not checked here.

    Args:
        layers: number of layers (L).
        groups: number of groups (G).
        group_of: layer -> group in the other library.
        whose: name of the other library, for the error message.
        source: where the numbers are from, for the error message.

    Raises:
        ValueError: the other library uses another group for some layer.

    Example:
        >>> check_groups(12, 4, lambda i: int(i / 12 * 4), "Google", "memory")
        >>> check_groups(44, 22, lambda i: int(i / 44 * 22), "Google", "memory")
        Traceback (most recent call last):
        ...
        ValueError: ALBERT of Google assigns a layer of this model to another group than kbert: \
layer 30 to group 14, not 15. Received: 22 groups of 44 layers in memory
    """
    if not 1 < groups <= layers <= MOST_LAYERS:  # one group cannot differ; others raise elsewhere
        return
    for layer in range(layers):
        other_group, group = group_of(layer), layer * groups // layers
        if other_group != group:
            raise ValueError(
                f"ALBERT of {whose} assigns a layer of this model to another group than kbert: "
                f"layer {layer} to group {other_group}, not {group}. Received: {groups} groups of "
                f"{layers} layers in {source}"
            )
