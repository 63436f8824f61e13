import numpy as np
import pytest

from kbert.data.tables.table import Table
from kbert.tasks.fine_tuning.labels import Labels, class_weights_of, shown, thresholds_of

LABELS = Labels(["a", "b", "c"])


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


@pytest.mark.parametrize("label", ["d", -1, 3, 1.0, ""])
def test_what_is_no_class_is_named_with_its_line(label):
    bad = table([label], source="dev.tsv", lines=[7])
    with pytest.raises(ValueError, match=r"dev.tsv, line 7: a label must be one of the task's 3"):
        LABELS.ids(bad)


def test_held_out_labels():
    LABELS.check_seen(table(["a", "b"]), table(["b"]))
    LABELS.check_seen(table([["a"], []]), table([[], ["a"]]))
    with pytest.raises(ValueError, match=r"row 1 .*occur in the training data. Received: 'c'"):
        LABELS.check_seen(table([[], ["a"]]), table([["a"], ["c"]]))
    with pytest.raises(ValueError, match=r"row 0 .*of the kind .*, int. Received: 'a'"):
        LABELS.check_seen(table([0]), table(["a"]))


def test_class_weights():
    ids = np.array([0, 0, 0, 2])
    # A class without an example takes no part; the others' examples add up alike.
    assert class_weights_of(LABELS.names, "balanced", ids)[[0, 2]].tolist() == pytest.approx(
        [2 / 3, 2]
    )
    assert class_weights_of(LABELS.names, {"b": 3}, ids).tolist() == [1, 3, 1]
    for wrong, message in (
        ({"d": 1}, "must name the task's classes, 'a', 'b', 'c'. Received: 'd'"),
        ({"a": float("nan")}, "0 or more"),
        (dict.fromkeys("abc", 0), "some above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            class_weights_of(LABELS.names, wrong, ids)


def test_thresholds():
    assert thresholds_of(LABELS.names, 0.25).tolist() == [0.25] * 3
    with pytest.raises(ValueError, match=r"number from 0 to 1.*Received: {'a': -1, 'b': -1"):
        thresholds_of(LABELS.names, -1)


def test_long_lists_are_shown_in_part():
    assert shown([f"class {i}" for i in range(12)]).endswith("'class 9', …")
