import pytest

from kbert.distillation import layer_map


@pytest.mark.parametrize(
    ("layers", "student", "teacher", "wanted"),
    [
        ("uniform", 4, 12, [3, 6, 9, 12]),  # TinyBERT's
        ("uniform", 6, 12, [2, 4, 6, 8, 10, 12]),
        ("uniform", 5, 12, [2, 4, 7, 9, 12]),
        ("uniform", 3, 3, [1, 2, 3]),
        ("uniform", 1, 6, [6]),
        ("last", 4, 12, [9, 10, 11, 12]),
        ("last", 2, 2, [1, 2]),
        ([2, 4, 6], 3, 6, [2, 4, 6]),
        ((None, 1, None), 3, 1, [None, 1, None]),
        ([1, 1, 2, 2], 4, 2, [1, 1, 2, 2]),  # deeper than its teacher, by its own account
    ],
)
def test_layers(layers, student, teacher, wanted):
    assert layer_map(layers, student, teacher) == wanted


@pytest.mark.parametrize(
    ("layers", "student", "teacher", "message"),
    [
        ("first", 2, 4, "or one of uniform, last. Received: 'first'"),
        ("uniform", 5, 4, 'layers="uniform" requires a teacher .* of 5 layers, a teacher of 4'),
        ("last", 5, 4, 'layers="last" requires a teacher .* of 5 layers, a teacher of 4'),
        ([1, 2], 3, 4, r"an entry for each layer .*Received: 2 entries, \[1, 2\], for 3 layers"),
        ([0, 2], 2, 4, r"from 1 to 4, or None. Received: 0 in the layer map \[0, 2\]"),
        ([1, 5], 2, 4, r"from 1 to 4, or None. Received: 5 in the layer map \[1, 5\]"),
        ([1, 2.0], 2, 4, "from 1 to 4, or None. Received: 2.0 in"),
        ([1, True], 2, 4, "from 1 to 4, or None. Received: True in"),
        ([None, None], 2, 4, r"must name a layer of the teacher. Received: \[None, None\]"),
    ],
)
def test_what_is_no_map(layers, student, teacher, message):
    with pytest.raises(ValueError, match=message):
        layer_map(layers, student, teacher)
