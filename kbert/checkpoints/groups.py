"""Which group of weights a layer of ALBERT's uses: everybody rounds in another way."""

from collections.abc import Callable

from kbert.checkpoints.sizes import MOST_LAYERS


def check_groups(
    layers: int, groups: int, group_of: Callable[[int], int], whose: str, source: str
) -> None:
    """Refuses an ALBERT whose layers are of other groups elsewhere than in kbert.

    In kbert layer i of L is of group i * G // L. The other libraries divide floating-point numbers,
    which for a few pairs of L and G falls short of a whole number: the next lower group is used
    twice, and one may be used by no layer, so that a file of TensorFlow's does not hold it.

    Args:
        layers: L.
        groups: G.
        group_of: layer -> group, as the other library takes it.
        whose: that library, for the message.
        source: where the numbers are from, for the message.

    Raises:
        ValueError: a layer is of another group there.

    Example:
        >>> check_groups(12, 4, lambda i: int(i / 12 * 4), "Google", "memory")
        >>> check_groups(44, 22, lambda i: int(i / 44 * 22), "Google", "memory")
        Traceback (most recent call last):
        ...
        ValueError: ALBERT of Google rounds so that a layer of this model is of another group than \
in kbert: layer 30 of group 14, not 15. Received: 22 groups of 44 layers in memory
    """
    if not 1 < groups <= layers <= MOST_LAYERS:  # one group is one; the others are refused anyhow
        return
    for layer in range(layers):
        there, here = group_of(layer), layer * groups // layers
        if there != here:
            raise ValueError(
                f"ALBERT of {whose} rounds so that a layer of this model is of another group than "
                f"in kbert: layer {layer} of group {there}, not {here}. "
                f"Received: {groups} groups of {layers} layers in {source}"
            )
