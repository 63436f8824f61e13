"""`run.json`: what a run is, as it was at its first start."""

import json
import warnings
from pathlib import Path

from kbert import atomic, registry
from kbert.version import __version__


def write_settings(path: Path, settings: dict, resumed: bool) -> None:
    """Keeps the settings of the first start; says so where a later start has others.

    Args:
        path: The file.
        settings: What the run is, as JSON can hold it.
        resumed: Whether the run goes on from a checkpoint.
    """
    settings = json.loads(json.dumps({"kbert": __version__, **settings}))
    if not (resumed and path.exists()):
        atomic.write(path, (json.dumps(settings, indent=2) + "\n").encode())
        return
    began = json.loads(path.read_text())
    if isinstance(began.get("task"), dict):
        began["task"] = registry.current(began["task"])
    before, now = _flat(began), _flat(settings)
    changed = [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in sorted({*before} & {*now})  # of the others one of two versions knows nothing
        if before.get(name) != now.get(name)
    ]
    if changed:
        warnings.warn(
            "The run goes on with other settings than it began with; if they matter to training, "
            f"its losses are not those of an uninterrupted run: {'; '.join(changed)}",
            stacklevel=3,
        )


def _flat(settings: dict, prefix: str = "") -> dict:
    """Nested settings under joined names."""
    flat = {}
    for name, value in settings.items():
        name = f"{prefix}{name}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
