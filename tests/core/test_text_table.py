"""Tables of text: aligned, numbers to the right, wide characters counted as two columns."""

import pytest

from kbert.core.text_table import text_table


def test_columns_are_aligned():
    table = text_table(["run", "f1", "rows"], [["a", 0.5, 12], ["longer", None, 3]])
    assert table == "run         f1  rows\na       0.5000    12\nlonger       -     3"


def test_wide_characters_take_two_columns():
    lines = text_table(["label", "n"], [["好", 1], ["cafe\u0301", 2]]).splitlines()
    assert lines[1:] == ["好     1", "cafe\u0301   2"]


def test_no_rows_leave_the_header():
    assert text_table(["a", "b"], []) == "a  b"


def test_a_row_of_other_length_raises():
    with pytest.raises(ValueError, match=r"one cell for each of the 2 columns. Received: \[1\]"):
        text_table(["a", "b"], [[1]])
