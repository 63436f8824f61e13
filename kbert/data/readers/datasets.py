"""Tables from splits of TensorFlow Datasets, by the names of features."""

from collections.abc import Collection, Mapping
from typing import Any

from kbert.data.readers.rows import table_of_rows
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

    Rows whose class is -1, which stands for no label, are left out and counted in a warning. If all
    are -1, as in unlabelled test splits, the column is left out instead.

    Args:
        path: name of the data set, with the prefix `tfds:`.
        columns: name in the table -> feature; None reads every feature that is not nested.
        optional: keys of `columns` (names in the table) that the data set may lack.

    Raises:
        ValueError: the data set, split or feature does not exist, a feature is nested, or no row
            is left.
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
    to_name = {
        name: getattr(getattr(features[key], "feature", features[key]), "int2str", None)
        for name, key in chosen_columns.items()
    }
    rows = (
        {name: named(x, to_name[name]) if to_name[name] else x for name, x in example.items()}
        for example in dataset.as_numpy_iterator()
    )
    return table_of_rows(((None, row) for row in rows), path)


def named(value: Any, to_name: Any) -> Any:
    """Returns an array, a list or a number as Python values; classes by the function `to_name`.

    A class of -1, which stands for a missing label, is None.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [named(entry, to_name) for entry in value]
    if isinstance(value, bytes):
        return value.decode()
    if to_name is None:
        return value
    return None if value == -1 else to_name(value)
