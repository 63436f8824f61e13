"""What is no number is found by its name."""

import ml_dtypes
import numpy as np
import pytest

from kbert.core.finite import not_finite, refuse_not_finite

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16])
def test_nan_and_infinity_are_found_in_every_dtype(dtype):
    outputs = {
        "whole": np.array([1.0, -2.0], dtype),
        "nan": np.array([[1.0], [NAN]], dtype),
        "large": np.array([1.0, INF], dtype),
        "never": np.array([1.0, -INF], dtype),  # a beam that is not there
        "none": np.array([-INF, -INF], dtype),
        "empty": np.zeros((0, 2), dtype),
    }
    assert not_finite(outputs) == ["nan", "large", "none"]


def test_what_is_no_float_is_passed_over():
    others = {"ids": np.array([1, 2]), "text": np.array([b"nan"], object), "is": np.array([True])}
    refuse_not_finite(others, "a model")
    with pytest.raises(ValueError, match=r"^Answers must be .*infinity in 'x', 'y' of a model$"):
        refuse_not_finite({**others, "x": np.array([NAN]), "y": np.array([INF])}, "a model")
