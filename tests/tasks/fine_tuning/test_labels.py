import numpy as np
import pandas as pd
import pytest

import kbert
from kbert.data.tables.table import Table
from kbert.tasks.fine_tuning.labels import (
    Labels,
    class_numbers,
    class_weights_of,
    shown,
    thresholds_of,
)

LABELS = Labels(["a", "b", "c"])


@pytest.fixture
def tiny_encoder(config):
    return kbert.Encoder(config)


def table(labels, **options):
    return Table({"label": labels}, **options)


def test_names_and_indices():
    assert LABELS.ids(table(["c", "a"])).tolist() == [2, 0]
    assert LABELS.ids(table([2, 0])).tolist() == [2, 0]
    assert LABELS.ids(table(["c", "a"])).dtype == np.int32
    assert LABELS.indices(["b", "b"]).tolist() == [1, 1]
    assert LABELS.indicators(table([["a", "c"], []])).tolist() == [[1, 0, 1], [0, 0, 0]]
    assert len(LABELS) == 3
    assert LABELS.ids(table([])).shape == (0,)
    names = Labels(np.unique(["b", "a", "b"])).names
    assert names == ["a", "b"]
    assert all(type(name) is str for name in names)


@pytest.mark.parametrize("label", ["d", -1, 3, 1.5, ""])
def test_what_is_no_class_is_named_with_its_line(label):
    bad = table([label], source="dev.tsv", lines=[7])
    with pytest.raises(ValueError, match=r"dev.tsv, line 7: a label must be one of the task's 3"):
        LABELS.ids(bad)


def test_whole_numbers_may_be_floats_as_pandas_has_them():
    frame = pd.DataFrame({"label": [0, 2, None]}).dropna()
    assert LABELS.ids(table(frame["label"])).tolist() == [0, 2]
    LABELS.check_seen(table([0, 1]), table([1.0]))


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (3, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        (np.int64(1), ["LABEL_0"]),
        ([1, 2, 5], ["1", "2", "5"]),
        (np.array([1, 2, 5]), ["1", "2", "5"]),
        (pd.Series([0.0, 1.0]).unique(), ["0", "1"]),
        ([True, False], ["True", "False"]),
        (np.array([False, True]), ["False", "True"]),
        ("a b".split(), ["a", "b"]),
    ],
)
def test_names_of_classes_in_any_form(names, written):
    labels = Labels(names)
    assert labels.names == written
    assert all(type(name) is str for name in labels.names)
    if not isinstance(names, int | np.integer):
        assert labels.ids(table(names)).tolist() == list(range(len(written)))
    assert Labels(labels.names).ids(table(written)).tolist() == list(range(len(written)))


def test_a_number_is_the_class_that_is_called_so():
    """Ratings from 1 to 5 are no indices from 0."""
    assert Labels(["1", "2", "3"]).ids(table([3, 1])).tolist() == [2, 0]
    assert Labels(["True", "False"]).ids(table([True, False, np.bool_(True)])).tolist() == [0, 1, 0]
    assert class_numbers(["1", "two"]) == {0: 0, 1: 1}
    with pytest.raises(ValueError, match=r"by name \('1', '2', '3'\)\. Received: 0"):
        Labels([1, 2, 3]).ids(table([0]))


@pytest.mark.parametrize(
    "names", ["ham", b"ham", 0, -2, True, [], {"a", "b"}, [0.5, 1], [None], [["a"]], 2.0, {"a": 1}]
)
def test_what_are_no_names(names):
    with pytest.raises(ValueError, match=r"a list of class names, .* or the number of classes"):
        Labels(names)


def test_held_out_labels():
    LABELS.check_seen(table(["a", "b"]), table(["b"]))
    LABELS.check_seen(table([["a"], []]), table([[], ["a"]]))
    with pytest.raises(ValueError, match=r"row 1 .*occur in the training data. Received: 'c'"):
        LABELS.check_seen(table([[], ["a"]]), table([["a"], ["c"]]))
    with pytest.raises(ValueError, match=r"row 0 .*the type .*, numbers. Received: 'a'"):
        LABELS.check_seen(table([0]), table(["a"]))


def test_class_weights():
    ids = np.array([0, 0, 0, 2])
    # A class without an example takes no part; the others' examples add up alike.
    assert class_weights_of(LABELS.names, "balanced", ids)[[0, 2]].tolist() == pytest.approx(
        [2 / 3, 2]
    )
    assert class_weights_of(LABELS.names, {"b": 3}, ids).tolist() == [1, 3, 1]
    assert class_weights_of(LABELS.names, {np.int64(1): 3}, ids).tolist() == [1, 3, 1]
    for wrong, message in (
        ({"d": 1}, "must name the task's classes, 'a', 'b', 'c'. Received: 'd'"),
        ({"a": float("nan")}, "0 or more"),
        (dict.fromkeys("abc", 0), "at least one of them above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            class_weights_of(LABELS.names, wrong, ids)


def test_thresholds():
    assert thresholds_of(LABELS.names, 0.25).tolist() == [0.25] * 3
    with pytest.raises(ValueError, match=r"between 0 and 1.*Received: {'a': -1, 'b': -1"):
        thresholds_of(LABELS.names, -1)


def test_long_lists_are_shown_in_part():
    assert shown([f"class {i}" for i in range(12)]).endswith("'class 9', …")


def test_truths_are_of_two_classes_alone():
    truths = table([True, False])
    assert Labels(["False", "True"]).ids(truths).tolist() == [1, 0]
    assert Labels([True, False]).ids(truths).tolist() == [0, 1]
    assert Labels(["ham", "spam"]).ids(truths).tolist() == [1, 0]
    for names in (["a", "b", "c"], [0, 1, 2], [1, 2]):
        with pytest.raises(ValueError, match=r"row 0 of the data: a label must be.*Received: True"):
            Labels(names).ids(truths)
    with pytest.raises(ValueError, match=r"one type. Received: booleans .* integers"):
        table([True, 0])
    assert table([True, False]).checksum == table([1, 0]).checksum  # of runs begun before


def test_truths_are_no_tags_of_three_and_no_choices(tiny_encoder, tokenizer):
    tagger = kbert.tasks.TokenClassifier(tiny_encoder, tokenizer, ["O", "B-x", "I-x"])
    with pytest.raises(ValueError, match=r"a word's label must be.*Received: True"):
        tagger.evaluate({"words": [["a", "b"]], "labels": [[True, False]]}, verbose=0)
    chooser = kbert.tasks.MultipleChoice(tiny_encoder, tokenizer)
    data = {"context": ["a"], "choices": [["b", "c", "d"]], "label": [True]}
    with pytest.raises(ValueError, match=r"index of the right choice.*Received: True"):
        chooser.evaluate(data, verbose=0)


@pytest.mark.parametrize("labels", [1, ["spam"]])
def test_a_single_class_is_no_choice(labels, tiny_encoder, tokenizer):
    for cls in (kbert.tasks.TextClassifier, kbert.tasks.TokenClassifier):
        with pytest.raises(ValueError, match=r"at least two classes.*Received: the one label"):
            cls(tiny_encoder, tokenizer, labels)
    task = kbert.tasks.TextClassifier(tiny_encoder, tokenizer, labels, multi_label=True)
    assert len(task.labels) == 1
