"""Tables from splits of TensorFlow Datasets."""

from collections.abc import Collection, Mapping

from kbert.data.tables.table import Table
from kbert.text import tfds


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
        ValueError: the data set, split or feature does not exist.
    """
    builder, split = tfds.open_split(path.removeprefix("tfds:"))
    features = builder.info.features
    chosen_columns = columns or {
        name: name for name, feature in features.items() if not hasattr(feature, "items")
    }
    chosen_columns = {
        ours: key for ours, key in chosen_columns.items() if ours not in optional or key in features
    }
    unknown = sorted(set(chosen_columns.values()) - set(features), key=str)
    if unknown:
        raise ValueError(f"{path} has the features {sorted(features)}. Received: {unknown}")
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
