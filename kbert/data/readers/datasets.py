"""Tables from splits of TensorFlow Datasets, by the names of features."""

from collections.abc import Collection, Mapping
from typing import Any

from kbert.data.tables.table import Table
from kbert.text import tfds


def _is_flat(feature: Any) -> bool:
    return not hasattr(feature, "items")


def feature_names(features: Mapping[str, Any]) -> str:
    """Returns the names of flat features, and of nested ones that cannot be read, for messages."""
    flat = sorted(name for name, feature in features.items() if _is_flat(feature))
    nested = sorted(set(features) - set(flat))
    return f"features {flat}" + (f" and, nested and not read, {nested}" if nested else "")


def read_split(
    path: str, columns: Mapping[str, str | int] | None, optional: Collection[str] = ()
) -> Table:
    """Reads the table of `tfds:NAME[/CONFIG][:SPLIT]`, with class labels as names.

    A column of class labels that are all -1, as in unlabelled test splits, is left out.

    Args:
        path: name of the data set, with the prefix `tfds:`.
        columns: name in the table -> feature; None reads every feature that is not nested.
        optional: keys of `columns` (names in the table) that the data set may lack.

    Raises:
        ValueError: the data set, split or feature does not exist, or a feature is nested.
    """
    builder, split = tfds.open_split(path.removeprefix("tfds:"))
    features = builder.info.features
    flat = [name for name, feature in features.items() if _is_flat(feature)]
    chosen_columns = columns or {name: name for name in flat}
    chosen_columns = {
        ours: key for ours, key in chosen_columns.items() if ours not in optional or key in features
    }
    unknown = sorted(set(chosen_columns.values()) - set(flat), key=str)
    if unknown:
        raise ValueError(f"{path} has the {feature_names(features)}. Received: {unknown}")
    dataset = tfds.read_split(builder, split).map(
        lambda example: {name: example[key] for name, key in chosen_columns.items()}
    )
    rows = list(dataset.as_numpy_iterator())
    values = {}
    for name, key in chosen_columns.items():
        column = [row[name] for row in rows]
        feature = features[key]
        to_name = getattr(getattr(feature, "feature", feature), "int2str", None)
        if to_name is None:
            values[name] = column
        elif any(getattr(value, "ndim", 0) for value in column):
            values[name] = [[to_name(entry) for entry in value] for value in column]
        elif not all(value == -1 for value in column):  # all -1: a split without labels
            values[name] = [to_name(value) for value in column]
    return Table(values, source=path)
