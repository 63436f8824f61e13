"""One SavedModel for several tasks on one encoder: signatures per task, the base stored once."""

from collections.abc import Mapping
from typing import Any

from kbert.core import late
from kbert.core.types import PathLike
from kbert.signatures import MAX_BYTES, Signature


def export(
    tasks: Mapping[str, Any], directory: PathLike, max_bytes: int = MAX_BYTES, **options: Any
) -> str:
    """Exports tasks with adapters on one encoder as one SavedModel.

    Args:
        tasks: name -> task; the first task's signature is also `serving_default`.
        directory: folder of the model; it is written to `directory/<n+1>/`, where n is the newest
            version.
        max_bytes: maximum length of a text in a request, in bytes (default: 100,000).
        **options: arguments of the tasks' `signatures`.

    Returns:
        The path written. Its signatures are "NAME_SIGNATURE", such as "reviews_classify".

    Raises:
        ValueError: the tasks have no names, are not on one encoder, or one of them has no own
            adapter.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        raise ValueError(
            "`tasks` must be a dict of one or more tasks by name, such as {'reviews': task}; "
            f"clients use these names. Received: {tasks!r:.80}"
        )
    encoders = {id(task.encoder) for task in tasks.values()}
    if len(encoders) != 1:
        raise ValueError(
            "All tasks of a SavedModel must share one encoder, as those of "
            f"kbert.edit.adapters.load_task(encoder, …) do. Received: {len(tasks)} tasks on "
            f"{len(encoders)} encoders"
        )
    if without_adapter := [name for name, task in tasks.items() if task.variant is None]:
        raise ValueError(
            "Each task must have its own adapter: use kbert.edit.adapters.add(task, …). Received: "
            f"without one: {', '.join(without_adapter)}"
        )
    signatures: dict[str, Signature] = {}
    resources: dict[int, Any] = {}
    for name, task in tasks.items():
        for entry, signature in task.signatures(**options).items():
            signatures[f"{name}_{entry}"] = signature
        resources |= {id(module): module for module in task.tokenizer.resources}
    modules = list(resources.values())
    write = late.load("export", "savedmodel")
    return write(directory, signatures, resources=modules, max_bytes=max_bytes)
