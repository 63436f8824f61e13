"""Tables from splits of TensorFlow Datasets, by known layouts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kbert.catalog.named_tasks import named_task
from kbert.data.readers.datasets import feature_names, named, read_split
from kbert.data.readers.layouts import LAYOUTS, Layout, layout_of
from kbert.data.readers.rows import table_of_rows
from kbert.data.tables.table import Table
from kbert.text import tfds

PREFIX = "tfds:"
# Use of a split -> names of the split in data sets.
_SPLITS = {
    "dev": ("validation", "validation_matched"),
    "test": ("test_matched",),
}
_INPUTS = ("text", "first", "second", "words")


def read_tfds(
    name: str,
    *,
    split: str | None = None,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Table:
    """Reads a split of a data set of TensorFlow Datasets as the table of its task.

    `kbert-finetune --help` lists the data sets with a known layout. Their tables have the columns
    of the task (see `kbert.data.Table`) and names of classes; rows of GLUE and SuperGLUE are in
    the order of the published files. Rows without a label, and those that the task cannot learn
    from, are left out and counted in a warning; a split without labels has no column of them. Of
    any other data set the flat features are read, under their own names.

    In a table of MRQA, `answer_starts` is -1 for gold answers that the context has in other words;
    only scoring uses them. In CoQA the two questions before are in front of a question.

    Args:
        name: `NAME[/CONFIG][:SPLIT]`, also with the prefix `tfds:`. "xnli/de" and "xtreme_xnli/de"
            are pairs in one language.
        split: name of the split if `name` has none, such as "train[:10%]"; "dev" also finds
            "validation", "dev" and "test" also find MNLI's matched sets. None = "train".
        task: name of a task that the table is for, such as "pos" or "squad"; a data set for
            another kind of task is refused.
        columns: kbert's name of a column -> the feature to read, instead of the layout's.

    Raises:
        ValueError: the data set, split or feature does not exist, or the data set is for another
            kind of task.
    """
    source, builder, layout = find_data_set(name, split=split, task=task, columns=columns)
    if layout is None:
        return read_split(source, columns)
    features = builder.info.features
    if unknown := sorted({*layout.features} - {*features}):
        raise ValueError(f"{source} has the {feature_names(features)}. Received: {unknown}")
    names = layout.features or [*features]
    found = tfds.read_split(builder, source.split(":", 2)[2]).as_numpy_iterator()
    examples = ({name: _decoded(features[name], x[name]) for name in names} for x in found)
    if (order := layout.order) is not None:
        examples = iter(sorted(examples, key=lambda example: _position(example[order])))
    rows = ((None, row) for example in examples for row in layout.rows_of(example))
    return table_of_rows(rows, source)


def find_data_set(
    name: str,
    *,
    split: str | None = None,
    task: str | None = None,
    columns: Mapping[str, Any] | None = None,
) -> tuple[str, Any, Layout | None]:
    """Finds, downloads and prepares a data set.

    Args:
        name: name of the data set, as in `read_tfds`.
        split: name or use of the split, if `name` has none.
        task: name of a task that the data set is for.
        columns: kbert's name of a column -> the feature to read, or several.

    Returns:
        `tfds:NAME[/CONFIG]:SPLIT`; the builder; and the layout by which it is read, None for the
        names of features.

    Raises:
        ValueError: the data set or split does not exist, or is for another kind of task.
    """
    spec, _, given = name.removeprefix(PREFIX).partition(":")
    if given and split is not None:
        raise ValueError(f"The split must be given once. Received: {name!r} and split={split!r}")
    layout = layout_of(spec)
    language = spec.partition("/")[2] if layout and layout.languages else ""
    builder = tfds.make_builder(spec.removesuffix(f"/{language}"))
    if layout is None and builder.builder_config is not None:  # its default config
        layout = layout_of(f"{builder.name}/{builder.builder_config.name}")
    if layout is not None and task is not None:
        layout = _layout_for(task, spec, layout, bool(columns))
    if layout is not None and columns:
        layout = _with_columns(layout, columns)
    if layout is not None and layout.languages:
        languages = sorted(builder.info.features["premise"])
        if language not in languages:
            raise ValueError(
                f"tfds:{builder.name} is read in one language, as tfds:{builder.name}/LANGUAGE, "
                f"which must be one of {languages}. Received: {name!r}"
            )
        layout = dataclasses.replace(layout, columns={"language": language})
    splits = [given] if given else [*_SPLITS.get(split or "", ()), split or "train"]
    if task == "mnlimm" and not given:  # the same data set as MNLI's, with other splits
        splits = [x.replace("_matched", "_mismatched") for x in splits]
    return f"{PREFIX}{spec}:{tfds.prepare_split(builder, *splits)}", builder, layout


def _layout_for(task: str, spec: str, layout: Layout, by_columns: bool) -> Layout | None:
    """Returns a data set's layout for a task; None if the features are read by their names.

    Args:
        task: name of the task.
        spec: name of the data set.
        layout: its layout.
        by_columns: whether the user names features.

    Raises:
        ValueError: the data set is for another kind of task, and no features are named.
    """
    named = named_task(task)
    kind = "multilabel" if named.fixed.get("multi_label") else named.kind
    feature = layout.label_of.get(task, layout.columns.get("labels"))
    if layout.task == kind and feature != "":
        columns = layout.columns if feature is None else {**layout.columns, "labels": feature}
        return dataclasses.replace(layout, columns=columns)
    if (kind, layout.task) == ("embed", "regress"):  # pairs with a similarity
        return layout
    if by_columns or kind not in {known.task for known in LAYOUTS.values()}:
        return None
    raise ValueError(
        f"tfds:{spec} is a data set for --task={layout.task}; for others name the features to "
        f"read. Received: the task {task}"
    )


def _with_columns(layout: Layout, columns: Mapping[str, Any]) -> Layout | None:
    """Returns a layout with other features, or None if only the names of features say how to read.

    Named features of inputs replace all inputs of the layout.
    """
    if layout.rows is not None or not all(isinstance(x, str) for x in columns.values()):
        return None
    replaced = _INPUTS if {*columns} & {*_INPUTS} else ()
    kept = {name: x for name, x in layout.columns.items() if name not in replaced}
    return dataclasses.replace(layout, columns={**kept, **columns})


def _decoded(feature: Any, value: Any) -> Any:
    """Returns the value of a feature as Python values; classes as in `named`."""
    while hasattr(feature, "feature"):  # a sequence of features
        feature = feature.feature
    if isinstance(value, dict):
        return {name: _decoded(feature[name], x) for name, x in value.items()}
    if hasattr(value, "to_list"):  # ragged
        value = value.to_list()
    return named(value, getattr(feature, "int2str", None))


def _position(index: Any) -> tuple[int, ...]:
    """Returns an index, or a dict of them with the outer ones first, as a tuple."""
    if not isinstance(index, dict):
        return (index,)
    names = ("paragraph", "passage", "question", "query", "answer")
    return tuple(index[name] for name in names if name in index)
