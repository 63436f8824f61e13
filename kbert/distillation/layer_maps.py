"""Which layer of a teacher each layer of a student learns from."""

from collections.abc import Sequence

RULES = ("uniform", "last")


def layer_map(
    layers: str | Sequence[int | None], student_layers: int, teacher_layers: int
) -> list[int | None]:
    """The teacher's layer for each layer of the student, both counted from 1.

    Args:
        layers: "uniform" spreads them evenly: of M layers, the i-th learns from layer i · L / M,
            rounded down (TinyBERT's g(m) = m · N / M, https://arxiv.org/abs/1909.10351, section
            4.1). "last" takes the teacher's last M (its "top" strategy, section 4.4). Or a list
            with a layer for each, None for a student's layer that learns from none.
        student_layers: M.
        teacher_layers: L.

    Returns:
        M numbers from 1 to L, or None.

    Raises:
        ValueError: no such rule, a list of another length, a layer that the teacher does not have,
            or a student that is deeper than its teacher without a list.

    Example:
        >>> layer_map("uniform", 4, 12), layer_map("last", 2, 6), layer_map([None, 5], 2, 6)
        ([3, 6, 9, 12], [5, 6], [None, 5])
    """
    if isinstance(layers, str):
        if layers not in RULES:
            raise ValueError(
                "A layer map must be a list of the teacher's layers, or one of "
                f"{', '.join(RULES)}. Received: {layers!r}"
            )
        if student_layers > teacher_layers:
            raise ValueError(
                f'layers="{layers}" needs a teacher that is at least as deep as the student; give '
                f"a list for others. Received: a student of {student_layers} layers, a teacher of "
                f"{teacher_layers}"
            )
        if layers == "last":
            return list(range(teacher_layers - student_layers + 1, teacher_layers + 1))
        return [i * teacher_layers // student_layers for i in range(1, student_layers + 1)]
    found = list(layers)
    if len(found) != student_layers:
        raise ValueError(
            "A layer map must have an entry for each layer of the student: a layer of the teacher, "
            f"or None. Received: {len(found)} entries, {found}, for {student_layers} layers"
        )
    for layer in found:
        whole = isinstance(layer, int) and not isinstance(layer, bool)
        if layer is not None and not (whole and 1 <= layer <= teacher_layers):
            raise ValueError(
                f"The teacher's layers are counted from 1 to {teacher_layers}. Received: {layer!r} "
                f"in the layer map {found}"
            )
    if all(layer is None for layer in found):
        raise ValueError(f"A layer map must name a layer of the teacher. Received: {found}")
    return found
