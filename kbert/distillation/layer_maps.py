"""Layer maps: the teacher's layer that each layer of a student learns from."""

from collections.abc import Sequence

RULES = ("uniform", "last")


def layer_map(
    layers: str | Sequence[int | None], student_layers: int, teacher_layers: int
) -> list[int | None]:
    """Returns the teacher's layer for each layer of the student, both counted from 1.

    Args:
        layers: rule or list. "uniform" spreads the layers evenly: layer i of M learns from layer
            i · L / M, rounded down (TinyBERT's g(m) = m · N / M, https://arxiv.org/abs/1909.10351,
            section 4.1). "last" uses the teacher's last M layers (TinyBERT's "top" strategy,
            section 4.4). A list has an entry for each layer of the student: a layer of the teacher,
            or None if it learns from none.
        student_layers: number M of the student's layers.
        teacher_layers: number L of the teacher's layers.

    Returns:
        M entries: numbers from 1 to L, or None.

    Raises:
        ValueError: the rule is unknown, the list has another length or no layer, a layer does not
            exist in the teacher, or a rule is used for a student deeper than its teacher.

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
                f'layers="{layers}" requires a teacher at least as deep as the student; otherwise '
                f"pass a list. Received: a student of {student_layers} layers, a teacher of "
                f"{teacher_layers}"
            )
        if layers == "last":
            return list(range(teacher_layers - student_layers + 1, teacher_layers + 1))
        return [i * teacher_layers // student_layers for i in range(1, student_layers + 1)]
    entries = list(layers)
    if len(entries) != student_layers:
        raise ValueError(
            "A layer map must have an entry for each layer of the student: a layer of the teacher, "
            f"or None. Received: {len(entries)} entries, {entries}, for {student_layers} layers"
        )
    for layer in entries:
        is_integer = isinstance(layer, int) and not isinstance(layer, bool)
        if layer is not None and not (is_integer and 1 <= layer <= teacher_layers):
            raise ValueError(
                f"A layer map must contain layers of the teacher, from 1 to {teacher_layers}, or "
                f"None. Received: {layer!r} in the layer map {entries}"
            )
    if all(layer is None for layer in entries):
        raise ValueError(f"A layer map must name a layer of the teacher. Received: {entries}")
    return entries
