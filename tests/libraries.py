"""Stand-ins for objects of libraries that tests do not install: what kbert knows them by."""

from typing import Any


class ClassLabel:
    """A class of `datasets`, by its number."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class Sequence:
    """Lists of a feature of `datasets`."""

    def __init__(self, feature: Any) -> None:
        self.feature = feature


class Column:
    """A column of a data set of `datasets`."""

    def __init__(self, source: "Dataset", column_name: str) -> None:
        self.source, self.column_name = source, column_name

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Any:
        return iter(self[:])

    def __getitem__(self, rows: slice) -> list:
        return self.source.values[self.column_name][rows]


class Dataset:
    """A data set of `datasets`: iterating over it gives dicts, its shape is (rows, columns)."""

    def __init__(self, values: dict[str, list], **features: Any) -> None:
        self.values = values
        self.features = {name: features.get(name) for name in values}

    @property
    def column_names(self) -> list[str]:
        return list(self.values)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self.values)

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def __iter__(self) -> Any:
        return (
            dict(zip(self.values, row, strict=True))
            for row in zip(*self.values.values(), strict=True)
        )

    def __getitem__(self, name: str) -> Column:
        return Column(self, name)

    def with_format(self, kind: None) -> "Dataset":
        return self

    def select_columns(self, names: list[str]) -> "Dataset":
        return Dataset({name: self.values[name] for name in names})

    def iter(self, batch_size: int) -> Any:
        for start in range(0, len(self), batch_size):
            yield {name: x[start : start + batch_size] for name, x in self.values.items()}


class IterableDataset:
    """A stream of rows of `datasets`."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.features, self.column_names = dataset.features, dataset.column_names

    def __iter__(self) -> Any:
        return iter(self.dataset)

    def with_format(self, kind: None) -> "IterableDataset":
        return self

    def iter(self, batch_size: int) -> Any:
        return self.dataset.iter(batch_size)


class ArrowArray:
    """A column of Arrow."""

    def __init__(self, values: list) -> None:
        self.values = values

    def __iter__(self) -> Any:
        return iter(map(ArrowScalar, self.values))

    def to_pylist(self) -> list:
        return self.values


class ArrowScalar:
    """A value of Arrow."""

    def __init__(self, value: Any) -> None:
        self.as_py = lambda: value


class ArrowTable:
    """A table of Arrow."""

    schema = "its schema"

    def __init__(self, values: dict[str, list]) -> None:
        self.columns = [ArrowArray(x) for x in values.values()]
        self.column_names = list(values)

    def __getitem__(self, name: str) -> ArrowArray:
        return self.columns[self.column_names.index(name)]


class LazyFrame:
    """A frame of polars without rows yet."""

    def collect(self) -> None: ...

    def collect_schema(self) -> None: ...
