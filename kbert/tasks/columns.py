"""The columns that a table must have for a task: inputs, labels, and what is shown."""

import dataclasses
from collections.abc import Collection

from kbert.data.tables.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a task's tables, and so of its files.

    Attributes:
        inputs: sets of input columns, of which a table has one; the first is the usual one.
        label: the column of labels.
        aux_labels: further columns that training needs.
        optional: columns that training reads where a table has them; `label` may be one.
        shown: columns that are written next to an answer, where the table has them, and "id"
            before them; None = all of `inputs`.
        numeric: whether a label is a number also in files whose fields have no types.

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
    def rule(self) -> str:
        """The sets of input columns, in words."""
        return " or ".join(" and ".join(names) for names in self.inputs)

    def found_in(self, there: Collection[str]) -> tuple[str, ...] | None:
        """The first of `inputs` of which all columns are there; None where there is none."""
        whole = (names for names in self.inputs if all(name in there for name in names))
        return next(whole, None)

    def shown_in(self, table: Table) -> list[str]:
        """The columns of a table that are written next to an answer."""
        inputs = tuple(dict.fromkeys(name for names in self.inputs for name in names))
        shown = inputs if self.shown is None else self.shown
        return [name for name in ("id", *shown) if name in table]
