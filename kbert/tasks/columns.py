"""The columns of a task's tables: inputs, labels, and those written next to an answer."""

import dataclasses
from collections.abc import Collection

from kbert.data.tables.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a task's tables and files.

    Attributes:
        inputs: alternative sets of input columns; a table needs one set. The first is the usual
            one.
        label: column of labels.
        aux_labels: further columns that training needs.
        optional: columns that training reads if a table has them; `label` may be one.
        shown: columns written next to an answer if the table has them, after "id"; None = all
            columns of `inputs`.
        numeric: whether labels are numbers, also in files whose fields have no types.

    Example:
        >>> Columns(label="grade").found_in(["stars", "text"])
        ('text',)
        >>> Columns(label="grade").rule
        'text or first and second'
    """

    inputs: tuple[tuple[str, ...], ...] = (("text",), ("first", "second"))
    label: str = "label"
    aux_labels: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    shown: tuple[str, ...] | None = None
    numeric: bool = False

    @property
    def usual(self) -> tuple[str, ...]:
        """All columns of the usual labelled table."""
        return (*self.inputs[0], self.label, *self.aux_labels)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that the task reads or shows."""
        inputs = (name for names in self.inputs for name in names)
        others = (self.label, *self.aux_labels, *self.optional, *(self.shown or ()), "id", "group")
        return tuple(dict.fromkeys((*inputs, *others)))

    @property
    def rule(self) -> str:
        """Text for the sets of input columns, for messages."""
        return " or ".join(" and ".join(names) for names in self.inputs)

    def found_in(
        self, there: Collection[str], chosen: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """Returns the first set of `inputs` whose names are all in `there`, or None.

        `there` are the names of a table's columns. Only sets with a name of `chosen` count, if
        there is such a set.
        """
        sets = [names for names in self.inputs if set(names) & set(chosen)] or self.inputs
        return next((names for names in sets if all(name in there for name in names)), None)

    def check_names(self, columns: Collection[str], data: str) -> None:
        """Raises ValueError if the task has no column of a name in `columns`.

        `data` says whose columns they are, for the message.
        """
        if unknown := [name for name in columns if name not in self.names]:
            raise ValueError(
                f"`columns` must map {', '.join(self.names)} to names in the data of {data}. "
                f"Received: {', '.join(map(repr, unknown))}"
            )

    def shown_in(self, table: Table) -> list[str]:
        """Returns the names of a table's columns that are written next to an answer, "id" first."""
        inputs = tuple(dict.fromkeys(name for names in self.inputs for name in names))
        shown = inputs if self.shown is None else self.shown
        return [name for name in ("id", *shown) if name in table]
