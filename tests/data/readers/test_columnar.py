"""Parquet and Arrow files as tables: what was written comes back, and what is bad is named."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings, strategies as st

from kbert.core.in_memory import number_of
from kbert.data import as_table, read_table, table_parts
from kbert.data.tables.table import Table
from kbert.text import columnar
from tests.columnar import FORMS, classes, write

COLUMNS = {
    "text": ["a", "naïve 字", "", "d"],
    "label": [1, 0, 1, 0],
    "words": [["a", "b"], ["c"], ["d", "e"], []],
    "labels": [[0, 1], [0], [1, 1], []],
    "weight": [0.5, 1.0, 2.0, 4.0],
}
FEATURES = {
    "text": {"dtype": "string", "_type": "Value"},
    "label": classes("ham", "spam"),
    "words": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "List"},
    "labels": {"feature": classes("O", "B-PER"), "_type": "Sequence"},
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_and_classes(tmp_path, form):
    path = write(tmp_path / f"a.{form}", COLUMNS, **FEATURES)
    table = read_table(path)
    named = {
        "label": ["spam", "ham", "spam", "ham"],
        "labels": [["O", "B-PER"], ["O"], ["B-PER", "B-PER"], []],
    }
    assert table.columns == COLUMNS | named
    assert list(map(number_of, table["label"])) == COLUMNS["label"]
    assert table.place(3) == table[2:].place(1) == f"{path}, row 3"
    found = read_table(path, columns={"label": "weight", "text": "text"}, optional=["label"])
    assert found.columns == {"label": COLUMNS["weight"], "text": COLUMNS["text"]}
    found = read_table(path, columns={"text": "text", "label": "none"}, optional=["label"])
    assert list(found.columns) == ["text"]
    assert read_table(write(tmp_path / f"b.{form}", COLUMNS))["label"] == COLUMNS["label"]


@pytest.mark.parametrize("form", FORMS)
def test_parts_and_patterns(tmp_path, form, monkeypatch):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 2)
    paths = [write(tmp_path / f"{x}.{form}", COLUMNS, **FEATURES) for x in "ab"]
    pattern = tmp_path / f"*.{form}"
    parts = list(table_parts(pattern, size=3))
    assert [len(part) for part in parts] == [3, 1, 3, 1]
    assert [x.place(0) for x in parts] == [f"{x}, row {row}" for x in paths for row in (0, 3)]
    whole = read_table(pattern)
    assert whole["text"] == [text for part in parts for text in part["text"]]
    assert whole.place(5) == f"{paths[1]}, row 1"


def test_files_of_several_formats(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,ham\n")
    write(tmp_path / "b.parquet", {"text": ["y"], "label": ["spam"]})
    table = read_table(tmp_path / "*")
    assert table.place(0).endswith("a.csv, line 2")
    assert table.place(1).endswith("b.parquet, row 0")


@pytest.mark.parametrize("form", FORMS)
def test_classes_that_no_row_has(tmp_path, form, monkeypatch):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 3)
    path = write(tmp_path / f"a.{form}", COLUMNS | {"label": [-1] * 4}, **FEATURES)
    assert "label" not in read_table(path)
    assert "label" not in read_table(path, columns={"text": "text", "label": "label"})
    assert all("label" not in part for part in table_parts(path))
    for labels, message in (
        ([-2, 1, 1, 0], r"row 0: 'label' must be the number of one of 2 .* 0 to 1. Received: -2"),
        ([0, -1, 0, 2], r"row 3: 'label' must be the number of one of 2 .* 0 to 1. Received: 2"),
        ([0, 1, None, 1], r"row 2: a label must be a name.*Received: None"),
    ):
        path = write(tmp_path / f"b.{form}", COLUMNS | {"label": labels}, **FEATURES)
        with pytest.raises(ValueError, match=rf"b\.{form}, {message}"):
            read_table(path)
    tags = [*COLUMNS["labels"][:3], [0, 5]]
    path = write(tmp_path / f"c.{form}", COLUMNS | {"labels": tags}, **FEATURES)
    with pytest.raises(ValueError, match=rf"c\.{form}, row 3: 'labels' must .* Received: 5"):
        read_table(path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [("ham", "spam"), ("0", "1")])
def test_rows_without_a_label_are_left_out(tmp_path, form, names, monkeypatch, caplog):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 2)
    labels = {"label": [-1, -1, 0, -1], "labels": COLUMNS["labels"]}  # a batch without any
    features = FEATURES | {"label": classes(*names)}
    path = write(tmp_path / f"a.{form}", COLUMNS | labels, **features)
    table = read_table(path)
    assert (table["text"], table["label"]) == ([""], [0 if names[0] == "0" else "ham"])
    assert table.place(0) == f"{path}, row 2"
    assert f"{path}: 3 rows are left out: they have no label" in caplog.text
    assert [part.columns for part in table_parts(path, size=1)] == [table.columns]
    assert read_table(path, columns={"text": "text"})["text"] == COLUMNS["text"]
    features |= {"kind": classes("x", "y")}
    columns = COLUMNS | labels | {"kind": [0, 1, -1, -1]}
    path = write(tmp_path / f"b.{form}", columns, **features)
    with pytest.raises(ValueError, match=rf"b\.{form} holds no rows with every label"):
        read_table(path)


def test_tables_of_pyarrow_have_the_same_classes(tmp_path):
    path = write(tmp_path / "a.parquet", COLUMNS, **FEATURES)
    data = pyarrow.parquet.read_table(path)
    stream = pa.RecordBatchReader.from_batches(data.schema, data.to_batches(max_chunksize=3))
    for found in (data, data.combine_chunks().to_batches()[0], stream):
        assert as_table(found).columns == read_table(path).columns
    labels = data.set_column(1, "label", pa.array([0, 1, 1, 2]))
    stream = pa.RecordBatchReader.from_batches(data.schema, labels.to_batches(max_chunksize=3))
    for found in (labels, stream):
        with pytest.raises(ValueError, match=r"row 3 of the data: 'label' must .*Received: 2"):
            as_table(found.cast(data.schema) if found is labels else found)


@pytest.mark.parametrize("form", FORMS)
def test_answers_of_squad(tmp_path, form):
    answers = [{"text": ["Ann"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    columns = {"question": ["Who?", "Why?"], "context": ["Ann sings.", "Bo."], "answers": answers}
    path = write(tmp_path / f"a.{form}", columns)
    wanted = {"answers": [["Ann"], []], "answer_starts": [[0], []]}
    assert read_table(path).columns == columns | wanted == as_table(pa.table(columns)).columns
    names = {name: name for name in ("question", "context", "answers", "answer_starts")}
    assert read_table(path, columns=names).columns == columns | wanted
    named = {"text": "context", "answers": "answers.text"}
    assert read_table(path, columns=named)["answers"] == [["Ann"], []]
    path = write(tmp_path / f"b.{form}", columns | {"mine": [[4], []]})
    assert read_table(path, columns=names | {"answer_starts": "mine"})["answer_starts"] == [[4], []]


def test_texts_of_labels_and_bytes_of_ids(tmp_path):
    path = write(
        tmp_path / "a.parquet", {"id": [b"q1", b"q2"], "text": ["a", "b"], "label": ["1.5", "2"]}
    )
    table = read_table(path, numeric_labels=True)
    assert (table["label"], table["id"]) == ([1.5, 2.0], ["q1", "q2"])
    assert read_table(path, label_separator=".")["label"] == [["1", "5"], ["2"]]
    path = write(tmp_path / "b.parquet", {"id": [b"q1", b"\xff"], "text": ["a", "b"]})
    with pytest.raises(ValueError, match=r"b.parquet, row 1: 'id' is not UTF-8 at byte 0"):
        read_table(path)
    with pytest.raises(
        ValueError, match=r"CSV and TSV only. Received: quoted=True for .*b.parquet"
    ):
        read_table(path, quoted=True)
    with pytest.raises(ValueError, match=r"b.parquet has none of the columns. Received: \['y'\]"):
        read_table(path, columns={"label": "y"}, optional=["label"])


@pytest.mark.parametrize("form", FORMS)
def test_categories_are_their_names(tmp_path, form):
    frame = pd.DataFrame({"text": ["a", "b"], "label": pd.Categorical(["x", "y"])})
    path = write(tmp_path / f"a.{form}", pa.Table.from_pandas(frame))
    assert read_table(path)["label"] == as_table(frame)["label"] == ["x", "y"]
    frame["label"] = pd.Categorical(["x", None])
    path = write(tmp_path / f"b.{form}", pa.Table.from_pandas(frame))
    with pytest.raises(ValueError, match=rf"b\.{form}, row 1: a label must .* Received: None"):
        read_table(path)
    with pytest.raises(ValueError, match=r"row 1 of the data: a label must .* Received: nan"):
        as_table(frame)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None]}, r"row 1: 'text' must be a string. Received: None"),
        ({"text": [1, 2]}, r"row 0: 'text' must be a string. Received: 1"),
        ({"text": [{"x": "a"}]}, r"row 0: 'text' must be a string. Received: {'x': 'a'}"),
        ({"words": [["a"], None]}, r"row 1: 'words' must be a list of strings. Received: None"),
        ({"words": [[["a"]]]}, r"row 0: 'words' must be a string.*Received: \['a'\]"),
        ({"label": [{"x": 1}]}, r"row 0: a label must be a name.*Received: {'x': 1}"),
        ({"label": [1.0, float("nan")]}, r"row 1: a label must be .*Received: nan"),
        ({"text": pa.array([], "string")}, "holds no rows"),
    ],
)
def test_bad_values_are_named(tmp_path, form, columns, message):
    path = write(tmp_path / f"a.{form}", columns)
    with pytest.raises(ValueError, match=rf"a\.{form}.*{message}"):
        read_table(path)


@pytest.mark.parametrize("form", FORMS)
def test_missing_columns_are_named(tmp_path, form):
    path = write(tmp_path / f"a.{form}", COLUMNS)
    with pytest.raises(ValueError, match=rf"a\.{form}: .* named 'texts'.*did you mean 'text'"):
        read_table(path, columns={"text": "texts"})
    with pytest.raises(ValueError, match=r"exactly one column must be named '0'"):
        read_table(path, columns={"text": 0})


@st.composite
def tables(draw):
    """Columns of one type each: values, lists of values, or structs, some of them missing."""
    rows = draw(st.integers(1, 9))
    columns = {"text": draw(st.lists(st.text(), min_size=rows, max_size=rows))}
    cells = (st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans())
    for name in draw(st.lists(st.text(min_size=1, max_size=3), max_size=4, unique=True)):
        cell = draw(st.sampled_from(cells))
        wrap = draw(st.sampled_from(("plain", "list", "struct")))
        if wrap == "list":
            cell = st.lists(st.none() | cell, max_size=3)
        elif wrap == "struct":
            cell = st.fixed_dictionaries({"a": st.none() | cell, "b": st.text()})
        columns[f"x{name}"] = draw(st.lists(st.none() | cell, min_size=rows, max_size=rows))
    return columns


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(FORMS), st.integers(1, 4), st.integers(1, 5))
def test_what_was_written_is_read(tmp_path_factory, columns, form, rows, size):
    path = write(tmp_path_factory.mktemp("x") / f"a.{form}", columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "BATCH_ROWS", rows)
        table, parts = read_table(path), list(table_parts(path, size=size))
    wanted = Table(pa.table(columns).to_pydict())
    assert table.columns == wanted.columns
    assert {n: [v for part in parts for v in part[n]] for n in columns} == table.columns
    assert [part.place(0) for part in parts] == [
        f"{path}, row {row}" for row in range(0, len(table), size)
    ]
