"""Tables: every form of data gives the same columns, and bad data is named by its row."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from kbert.data import Table, as_table

TEXTS = ["red fox", "naïve 字"]
LABELS = ["ham", "spam"]
PAIRS = [("a", "b"), ("c", "d")]


def dataset(*values):
    return tf.data.Dataset.from_tensor_slices(*values)


@pytest.mark.parametrize(
    "data",
    [
        TEXTS,
        np.array(TEXTS),
        np.array(TEXTS, object),
        tf.constant(TEXTS),
        pd.Series(TEXTS, index=[7, 9]),
        (text for text in TEXTS),
        [text.encode() for text in TEXTS],
        {"text": TEXTS},
        [{"text": text} for text in TEXTS],
        pd.DataFrame({"text": TEXTS}, index=["x", "y"]),
        dataset(TEXTS),
        dataset({"text": TEXTS}),
        Table({"text": TEXTS}),
    ],
    ids=lambda data: type(data).__name__,
)
def test_texts_in_any_form(data):
    table = as_table(data, labels=LABELS)
    assert table.columns == {"text": TEXTS, "label": LABELS}
    assert all(type(value) is str for column in table.columns.values() for value in column)


@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, LABELS),
        (np.array(TEXTS), np.array(LABELS)),
        (tf.constant(TEXTS), tf.constant(LABELS)),
        ({"text": TEXTS}, LABELS),
        dataset((TEXTS, LABELS)),
        dataset(({"text": TEXTS}, LABELS)),
        pd.DataFrame({"text": TEXTS, "label": pd.Categorical(LABELS)}),
    ],
)
def test_texts_with_labels_in_any_form(data):
    assert as_table(data).columns == {"text": TEXTS, "label": LABELS}


@pytest.mark.parametrize(
    "data",
    [
        PAIRS,
        np.array(PAIRS),
        tf.constant(PAIRS),
        {"first": ["a", "c"], "second": ["b", "d"]},
        iter(PAIRS),
    ],
)
def test_pairs_in_any_form(data):
    assert as_table(data).columns == {"first": ["a", "c"], "second": ["b", "d"]}


def test_pairs_with_scores():
    expected = {"first": ["a", "c"], "second": ["b", "d"], "label": [4.5, 0.0]}
    assert as_table((PAIRS, [4.5, 0])).columns == expected
    pairs = dataset(((["a", "c"], ["b", "d"]), [4.5, 0.0]))
    assert as_table(pairs).columns == expected


def test_words_with_a_label_each():
    words, labels = [["red", "fox"], ["dog"]], [["A", "N"], ["N"]]
    expected = {"words": words, "labels": labels}
    assert as_table(words, labels=labels).columns == expected
    assert as_table(tf.ragged.constant(words), labels=labels).columns == expected
    assert as_table((words, labels)).columns == expected
    ragged = dataset({"words": tf.ragged.constant(words), "labels": tf.ragged.constant(labels)})
    assert as_table(ragged).columns == expected
    assert as_table({"words": [np.array(w) for w in words], "labels": labels}).columns == expected


def test_numpy_and_boolean_labels_become_pythons_numbers():
    labels = as_table(TEXTS, labels=np.array([0, 1], np.int64))["label"]
    assert labels == [0, 1]
    assert all(type(label) is int for label in labels)
    assert as_table(TEXTS, labels=[True, False])["label"] == [1, 0]
    assert as_table(TEXTS, labels=np.array([0.5, 1], np.float32))["label"] == [0.5, 1.0]
    assert as_table(TEXTS, labels=[["a", "b"], []])["label"] == [["a", "b"], []]


def test_no_rows_are_a_table_of_no_texts():
    assert as_table([]).columns == {"text": []}


def test_the_table_itself_is_given_back():
    table = Table({"text": TEXTS})
    assert as_table(table) is table


def test_rows_keep_their_places():
    table = Table({"review": TEXTS, "id": [3, 4]}, source="dev.tsv", lines=[2, 7])
    assert table.place(1) == "dev.tsv, line 7"
    taken = table.rename({"review": "text"}).take([1])
    assert taken.columns == {"text": TEXTS[1:], "id": [4]}
    assert taken.place(0) == "dev.tsv, line 7"
    several = Table({"text": TEXTS}, source=["a.csv", "b.csv"], lines=[2, 2])
    assert several.take([1, 0]).place(0) == "b.csv, line 2"
    assert Table({"text": TEXTS}, source=["a", "b"]).place(1) == "b (row 1 of all)"
    assert as_table(TEXTS).place(1) == "row 1 of the data"


def test_taken_rows_keep_their_numbers():
    table = as_table([*TEXTS, "last"], start=10)
    assert table[1:][1:].place(0) == "row 12 of the data"
    assert table.take([0, -1]).place(1) == "row 12 of the data"
    assert table.take(range(-2, 0)).place(0) == "row 11 of the data"
    assert table[::-1].rename({"text": "first"}).with_column("x", [*TEXTS, "c"]).place(0) == (
        "row 12 of the data"
    )
    several = Table({"text": [*TEXTS, "c"]}, source=["a", "a", "b"])
    assert several.take([2, 0]).place(0) == "b (row 2 of all)"
    with pytest.raises(IndexError):
        table[:0].take([0])
    with pytest.raises(ValueError, match="row 12 of the data: 'second' must be a string"):
        table[1:].with_column("second", ["b", None])


def test_labels_given_with_a_table_keep_its_places():
    table = Table({"text": TEXTS}, source="dev.tsv", lines=[2, 7])
    assert as_table(table, labels=LABELS).place(1) == "dev.tsv, line 7"


def test_changing_a_table_leaves_the_callers_data_alone():
    columns = {"text": [b"red", b"fox"]}
    Table(columns)["text"].append("more")
    assert columns == {"text": [b"red", b"fox"]}


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (pd.DataFrame({"text": ["a", None]}), "row 1 of the data: 'text' must be a string. Rec"),
        (pd.DataFrame({"text": ["a", np.nan]}), "row 1 of the data: 'text' must be.*Received: nan"),
        (
            pd.DataFrame({"text": TEXTS, "label": ["a", np.nan]}),
            "row 1 of the data: a label must be",
        ),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "Column names must be unique"),
        ([b"a", b"\xff\xfe"], "row 1 of the data: 'text' is not UTF-8 at byte 0.*bytes ff fe"),
        (
            ["a", "\ud800"],
            "row 1 of the data: 'text' contains half a surrogate pair at character 0",
        ),
        (["a", ("b", "c")], "row 1 of the data: 'text' must be a string"),
        ([("a", "b"), ("c",)], "row 1 of the data: a pair must be a tuple of two texts"),
        (
            [("a", "b"), "c"],
            "row 1 of the data: a pair must be a tuple of two texts. Received: 'c'",
        ),
        ([{"text": "a"}, {"body": "b"}], r"row 1.*columns \['text'\]. Received: \['body'\]"),
        ([["a"], "b"], "row 1 of the data: 'words' must be a list of strings. Received: 'b'"),
        ([["a", 3]], "row 0 of the data: 'words' must be a string. Received: 3"),
        ({"text": [TEXTS, TEXTS]}, "batches of rows must be unbatched"),
        (dataset(TEXTS).repeat(), "is infinite"),
        (dataset((TEXTS, TEXTS, LABELS)), "Elements must be x or .x, y.. Received: tuples of 3"),
        ("one text", "a list of texts, pairs or words.*Received: 'one text' .str."),
        (b"one", "a list of texts, pairs or words"),
        (3, "Received: 3 .int."),
        (("a", "b"), "A tuple must be .data, labels.*Received: a tuple of 2"),
        ((TEXTS, LABELS, LABELS), "Received: a tuple of 3"),
        ({"text": "abc"}, "column 'text' must be a sequence with one value per row"),
        ({"text": TEXTS, "label": [1]}, "same number of rows. Received: {'text': 2, 'label': 1}"),
        ({}, "at least one column"),
    ],
)
def test_bad_data_raises(data, match):
    with pytest.raises(ValueError, match=match):
        as_table(data)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (
            ["a", 1],
            r"one type. Received: names \('a' at row 0 .* integers \(1 at row 1 of the data",
        ),
        ([["a"], "a"], "lists of names .* names"),
        ([0.5, float("inf")], "row 1 of the data: a label must be .* finite number.*Received: inf"),
        (["a", None], "row 1 of the data: a label must be"),
        ([["a"], ["b", 2]], "row 1 of the data: 'label' must be a string. Received: 2"),
        ("ab", "column 'label' must be a sequence"),
        (["a"], "same number of rows"),
    ],
)
def test_bad_labels_raise(labels, match):
    with pytest.raises(ValueError, match=match):
        as_table(TEXTS, labels=labels)


def test_labels_are_given_once():
    with pytest.raises(ValueError, match="already has a column 'label'"):
        as_table({"text": TEXTS, "label": LABELS}, labels=LABELS)
    with pytest.raises(ValueError, match="a tuple of 2 and separate labels"):
        as_table((TEXTS, LABELS), labels=LABELS)


def test_columns_that_are_not_there_and_names_that_clash():
    table = Table({"text": TEXTS, "label": LABELS}, source="dev.tsv")
    with pytest.raises(ValueError, match=r"no column 'first' in dev.tsv.*\['text', 'label'\]"):
        table["first"]
    with pytest.raises(ValueError, match="no column 'body'"):
        table.rename({"body": "text"})
    with pytest.raises(ValueError, match="Column names must be unique"):
        table.rename({"label": "text"})
    with pytest.raises(ValueError, match=r"row 0 of dev.tsv: 'text' must be a string. Received: 1"):
        Table({"body": [1]}, source="dev.tsv").rename({"body": "text"})
    with pytest.raises(ValueError, match=r"Received: {'text': 2, 'lines': 1}"):
        Table({"text": TEXTS}, lines=[1])


def test_a_slice_is_a_table_of_its_rows():
    table = Table({"text": list("abcde")}, source=list("vwxyz"), lines=range(5))
    for rows in (slice(2), slice(-2, None), slice(None, None, -2), slice(1, 4, 2), slice(9, 12)):
        part = table[rows]
        assert part["text"] == list("abcde")[rows]
        assert [part.place(row) for row in range(len(part))] == [
            f"{'vwxyz'[row]}, line {row}" for row in range(5)[rows]
        ]
    for row in (3, np.int64(3), [0, 1], True):
        with pytest.raises(ValueError, match=r"slice of rows, such as table\[:500\].*Received: "):
            table[row]


@pytest.mark.parametrize(
    "data",
    [
        set(TEXTS),
        frozenset(TEXTS),
        {"text": set(TEXTS)},
        {"a": 1, "b": 2}.keys() & {"a", "b"},
        (TEXTS, set(LABELS)),
    ],
)
def test_what_has_no_order_is_refused(data):
    with pytest.raises(ValueError, match=r"must have an order.*Received: a (frozen)?set, which"):
        as_table(data)


def test_views_of_a_dict_have_an_order():
    mail = dict(zip(TEXTS, LABELS, strict=True))
    table = as_table(mail.keys(), mail.values())
    assert table.columns == {"text": TEXTS, "label": LABELS}
    assert as_table(mail.items()).columns == {"first": TEXTS, "second": LABELS}


@pytest.mark.parametrize(
    "values",
    [
        {"text": TEXTS, "label": LABELS},
        ({"text": TEXTS}, LABELS),
        (TEXTS, [0.5, 1.0]),
        ((TEXTS, LABELS), [0, 1]),
        ({"first": TEXTS, "second": LABELS}, [0, 1]),
        [PAIRS[0], PAIRS[1]],
        {"context": TEXTS, "choices": [["a", "b"]] * 2},
    ],
    ids=["columns", "x and y", "numbers", "pairs", "pairs in columns", "words", "choices"],
)
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_batches_are_taken_apart(values, drop_remainder):
    rows = dataset(values)
    batches = rows.repeat(3).batch(2, drop_remainder=drop_remainder)
    assert as_table(batches).columns == as_table(rows.repeat(3)).columns
    with pytest.raises(ValueError, match="The data set is infinite"):
        as_table(rows.repeat().batch(2))


def test_a_vector_of_strings_is_a_row_of_words():
    rows = tf.data.Dataset.from_generator(
        lambda: iter([(["a", "b"], [0, 1]), (["c"], [1])]),
        output_signature=(tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)),
    )
    assert as_table(rows).columns == {"words": [["a", "b"], ["c"]], "labels": [[0, 1], [1]]}
