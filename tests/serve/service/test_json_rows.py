"""Outputs as JSON: nested lists of any shape."""

import numpy as np
import pytest

from kbert.serve.http.errors import Refused
from kbert.serve.service.json_rows import read_array, write_columns
from kbert.serve.service.loaded import Spec


@pytest.mark.parametrize(
    "shape", [(), (0,), (3,), (2, 0), (0, 2), (2, 0, 5), (2, 3, 0), (2, 0, 3, 0), (2, 2, 0, 3)]
)
def test_strings_of_any_shape_are_nested_as_by_numpy(shape):
    array = np.full(shape, b"a", object)
    assert write_columns([{"text": array}]) == np.full(shape, "a", object).tolist()


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [
        ("float16", 65504.0, 65520),
        ("bfloat16", 3.38e38, 3.4e38),
        ("float32", 3.4e38, -1e39),
        ("float64", 1.7e308, float("inf")),  # how the parser reads 1e999
    ],
)
def test_numbers_out_of_bounds_are_refused(name, largest, beyond):
    """They would be infinity, which JSON does not have."""
    spec = Spec(np.dtype(name), (None, None), name)
    found = read_array([[largest, -largest]], spec, "numbers", 8)
    assert found.dtype == spec.dtype
    assert np.isfinite(found).all()
    rule = rf"The input 'numbers' must be {name} of shape \(B, any\)\. Received: "
    with pytest.raises(
        Refused, match=f"{rule}{beyond}, out of bounds for {name}".replace("+", ".")
    ):
        read_array([[largest, beyond]], spec, "numbers", 8)
