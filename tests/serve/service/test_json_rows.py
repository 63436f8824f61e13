"""Outputs as JSON: nested lists of any shape."""

import numpy as np
import pytest

from kbert.serve.service.json_rows import write_columns


@pytest.mark.parametrize(
    "shape", [(), (0,), (3,), (2, 0), (0, 2), (2, 0, 5), (2, 3, 0), (2, 0, 3, 0), (2, 2, 0, 3)]
)
def test_strings_of_any_shape_are_nested_as_by_numpy(shape):
    array = np.full(shape, b"a", object)
    assert write_columns([{"text": array}]) == np.full(shape, "a", object).tolist()
