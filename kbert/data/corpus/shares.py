"""Parses folders of shards and their weights from a command line flag."""

from kbert.io.paths import is_dir


def parse_folders(text: str) -> str | dict[str, float] | list[str]:
    """Parses the folders of a flag: `a`, `a,b` (a list) or `a:0.7,b:0.3` (folder -> weight).

    A text without a comma, or one that is the path of a folder, is returned unchanged.

    Raises:
        ValueError: some folders have a weight and some have none, or a weighted folder is repeated.

    Example:
        >>> parse_folders("shards"), parse_folders("a,b"), parse_folders("a:0.7,gs://b/c:0.3")
        ('shards', ['a', 'b'], {'a': 0.7, 'gs://b/c': 0.3})
    """
    parts = text.split(",")
    if len(parts) == 1 or is_dir(text):
        return text
    folders = [_weight_of(part) for part in parts]
    weighted = [weight is not None for _, weight in folders]
    if not any(weighted):
        return parts
    if not all(weighted):
        raise ValueError(f"Give all folders a weight, as in a:0.7,b:0.3, or none. Received: {text}")
    names = [name for name, _ in folders]
    if len(set(names)) < len(names):
        raise ValueError(f"The folders of a mixture must be different. Received: {text}")
    return {name: weight for name, weight in folders if weight is not None}


def _weight_of(part: str) -> tuple[str, float | None]:
    name, colon, weight = part.rpartition(":")
    try:
        return (name, float(weight)) if colon else (part, None)
    except ValueError:  # a path that contains a colon
        return part, None
