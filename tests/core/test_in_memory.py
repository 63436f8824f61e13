"""What data in memory is: by its type and its names, whichever library made it, never by shape."""

import collections
import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from kbert.core.in_memory import (
    column_or_rows,
    columns_of,
    each_text,
    has_columns,
    number_of,
    pair_rows,
    rows_of,
)
from tests import libraries

TEXTS, OTHERS = ["red fox", "naïve 字"], ["a dog", "b"]
PAIRS = list(zip(TEXTS, OTHERS, strict=True))


def _datasets(columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def _fields(columns):
    dtype = [(name, object) for name in columns]
    return np.array(list(zip(*columns.values(), strict=True)), dtype)


# A library -> what it makes of columns.
MAKERS = {
    "dict": dict,
    "dicts": lambda x: [dict(zip(x, row, strict=True)) for row in zip(*x.values(), strict=True)],
    "named tuples": lambda x: [
        collections.namedtuple("Row", x)(*row) for row in zip(*x.values(), strict=True)
    ],
    "pandas": pd.DataFrame,
    "NumPy": _fields,
    "tf.data": tf.data.Dataset.from_tensor_slices,
    "a stand-in of Arrow": libraries.ArrowTable,
    "a stand-in of datasets": libraries.Dataset,
    "a stand-in of a stream of datasets": lambda x: libraries.IterableDataset(libraries.Dataset(x)),
    "datasets": _datasets,
    "datasets as NumPy": lambda x: _datasets(x).with_format("numpy"),
    "a stream of datasets": lambda x: _datasets(x).to_iterable_dataset(),
    "polars": lambda x: pytest.importorskip("polars").DataFrame(x),
    "pyarrow": lambda x: pytest.importorskip("pyarrow").table(x),
    "a batch of pyarrow": lambda x: pytest.importorskip("pyarrow").record_batch(x),
}


def plain_columns(data):
    """Columns as `kbert.data.Table` has them."""
    from kbert.data import as_table

    return {name: list(map(text_of, x)) for name, x in as_table(data).columns.items()}


def text_of(value):
    """TensorFlow's strings as Python's: columns that kbert does not know stay as they are."""
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("names", [("anchor", "positive"), ("first", "second"), ("text", "body")])
def test_two_columns_are_what_they_are_called(maker, names):
    columns = dict(zip(names, (TEXTS, OTHERS), strict=True))
    assert plain_columns(MAKERS[maker](columns)) == columns
    rows = [dict(zip(names, row, strict=True)) for row in PAIRS]
    found = rows_of(MAKERS[maker](columns))
    assert [{name: text_of(x) for name, x in row.items()} for row in found] == rows


@pytest.mark.parametrize("maker", MAKERS)
def test_one_column_is_what_it_is_called(maker):
    for name in ("text", "sentence"):
        assert plain_columns(MAKERS[maker]({name: TEXTS})) == {name: TEXTS}


@pytest.mark.parametrize("maker", MAKERS)
def test_texts_are_the_column_of_that_name(maker):
    found = each_text(MAKERS[maker]({"label": OTHERS, "text": TEXTS}))
    assert list(map(text_of, found)) == TEXTS
    with pytest.raises(ValueError, match=r"'text'.*Received: the columns label, body"):
        list(each_text(MAKERS[maker]({"label": OTHERS, "body": TEXTS})))


def test_half_a_surrogate_pair_is_named():
    with pytest.raises(ValueError, match=r"^Number 5 of prompts .* at character 2, .*'é \\ud800'"):
        list(each_text(["naïve", "é \ud800"], "prompts", start=4))


@pytest.mark.parametrize("maker", MAKERS)
def test_pairs_are_the_columns_of_these_names(maker):
    found = pair_rows(MAKERS[maker]({"second": OTHERS, "first": TEXTS}))
    assert [tuple(map(text_of, row)) for row in found] == PAIRS
    with pytest.raises(ValueError, match=r"'first' and 'second'.*columns anchor, positive"):
        list(pair_rows(MAKERS[maker]({"anchor": OTHERS, "positive": TEXTS})))


@pytest.mark.parametrize("dataset", [libraries.Dataset, None])
def test_classes_of_datasets_have_names(dataset):
    columns = {"text": TEXTS, "label": [1, 0], "tags": [[0], [1, 0]], "stars": [0, 1]}
    if dataset is None:
        real = pytest.importorskip("datasets")
        features = real.Features(
            text=real.Value("string"),
            label=real.ClassLabel(names=["ham", "spam"]),
            tags=real.Sequence(real.ClassLabel(names=["O", "B-x"])),
            stars=real.ClassLabel(names=["0", "1"]),
        )
        data = real.Dataset.from_dict(columns, features=features)
        stream = data.to_iterable_dataset()
    else:
        data = libraries.Dataset(
            columns,
            label=libraries.ClassLabel(["ham", "spam"]),
            tags=libraries.Sequence(libraries.ClassLabel(["O", "B-x"])),
            stars=libraries.ClassLabel(["0", "1"]),
        )
        stream = libraries.IterableDataset(data)
    names = {"label": ["spam", "ham"], "tags": [["O"], ["B-x", "O"]], "stars": [0, 1]}
    assert plain_columns(data) == {"text": TEXTS, **names}
    assert plain_columns(stream) == {"text": TEXTS, **names}
    from kbert.data import as_table

    assert as_table(TEXTS, labels=data["label"])["label"] == ["spam", "ham"]
    assert as_table({"text": data["text"], "label": data["label"]})["label"] == ["spam", "ham"]
    assert (
        as_table((data["text"], data["label"])).columns == as_table(TEXTS, ["spam", "ham"]).columns
    )


def test_a_class_of_datasets_knows_its_number():
    names = libraries.ClassLabel(["ham", "spam"])
    found = columns_of(libraries.Dataset({"text": TEXTS, "label": [1, 0]}, label=names))["label"]
    kept = copy.deepcopy(pickle.loads(pickle.dumps(found)))
    assert [(x, number_of(x)) for x in kept] == [("spam", 1), ("ham", 0)]
    assert number_of("spam") == "spam"


def test_classes_that_no_row_has_or_that_are_none():
    names = libraries.ClassLabel(["ham", "spam"])
    unlabelled = libraries.Dataset({"text": TEXTS, "label": [-1, -1]}, label=names)
    assert columns_of(unlabelled)["label"] == [-1, -1]
    wrong = libraries.Dataset({"text": TEXTS, "label": [0, 2]}, label=names)
    with pytest.raises(ValueError, match=r"row 1 of the data: 'label' must .* 0 to 1. Received: 2"):
        columns_of(wrong)


def test_arrays_and_series_are_known_by_their_rows():
    assert columns_of(np.array(TEXTS)) == {"text": TEXTS}
    assert columns_of(np.array(PAIRS)) == {"first": TEXTS, "second": OTHERS}
    with pytest.raises(ValueError, match=r"a tuple of two texts. Received: \('a', 'b', 'c'\)"):
        columns_of(np.array([["a", "b", "c"]]))
    assert columns_of(libraries.ArrowArray(TEXTS)) == {"text": TEXTS}
    assert columns_of(tf.ragged.constant([["a", "b"], ["c", "d"]])) == {
        "words": [[b"a", b"b"], [b"c", b"d"]]
    }
    assert columns_of(pd.Series(PAIRS)) == {"first": TEXTS, "second": OTHERS}
    assert columns_of([["a", "b"]]) == {"words": [["a", "b"]]}


class Cursor:
    """A table of a library that nobody knows: iterating over it gives names of columns."""

    columns = ("text", "label")

    def __iter__(self):
        return iter(self.columns)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"train": libraries.Dataset({"text": TEXTS})},
            r"choose a split.*a dict of train",
        ),
        (libraries.LazyFrame(), r"pass data.collect\(\). Received: a LazyFrame"),
        (Cursor(), r"The data must be one of: .* a datasets.Dataset, .*\(Cursor\)$"),
        (np.array("one"), r"The data must be one of.*\(ndarray\)$"),
        (3, r"The data must be one of.*Received: 3 \(int\)$"),
        (pd.DataFrame([["a", "b"]], columns=["x", "x"]), "Column names must be unique"),
        (
            {"text": pd.DataFrame({"x": TEXTS})},
            r"(?s)column 'text' must be a sequence.*\(DataFrame\)$",
        ),
    ],
)
def test_what_is_of_no_known_kind_is_refused_by_its_type(data, message):
    with pytest.raises(ValueError, match=message):
        plain_columns(data)


def test_iterating_is_safe_where_there_are_no_columns():
    assert not has_columns(TEXTS)
    assert not has_columns(pd.Series(TEXTS))
    assert has_columns(pd.DataFrame({"text": TEXTS}))
    assert list(column_or_rows(iter([["a"], "b c"]), ("words", "text"))) == [["a"], "b c"]
    assert list(column_or_rows([{"text": "a b"}], ("words", "text"))) == ["a b"]
