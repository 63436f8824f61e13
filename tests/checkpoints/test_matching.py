import numpy as np
import pytest

from kbert.checkpoints import check_arrays

EXPECTED = {"a": (2, 3), "b": (4,), "c": ()}


def fitting():
    return {name: np.zeros(shape, "float32") for name, shape in EXPECTED.items()}


def test_what_fits_passes():
    check_arrays(EXPECTED, fitting(), "here")


def test_every_difference_is_listed():
    found = fitting()
    found["z"] = found.pop("a")
    found["b"] = np.zeros((5,), "float32")
    found["c"] = np.array(np.nan, "float32")
    with pytest.raises(ValueError, match="The weights do not fit the model") as error:
        check_arrays(EXPECTED, found, "here")
    assert str(error.value).splitlines() == [
        "The weights do not fit the model. Received: here",
        "  - missing a (2, 3)",
        "  + unexpected z (2, 3)",
        "  ! shape of b: expected (4,), is (5,)",
        "  ! c holds NaN or infinity",
    ]


def test_what_a_lenient_check_leaves_is_told():
    found = fitting()
    found["z"] = found.pop("a")
    assert not check_arrays(EXPECTED, fitting(), "here", strict=False)
    left = check_arrays(EXPECTED, found, "here", strict=False)
    assert (left.missing, left.unexpected) == (("a",), ("z",))


def test_a_lenient_check_still_refuses_what_cannot_be_meant():
    with pytest.raises(ValueError, match="! shape of b"):
        check_arrays(EXPECTED, {"b": np.zeros(5)}, "here", strict=False)
    with pytest.raises(ValueError, match="! b holds NaN"):
        check_arrays(EXPECTED, {"b": np.full(4, np.nan)}, "here", strict=False)
    with pytest.raises(ValueError, match=r"- missing a.*\n.*\n.*\n.*unexpected z"):
        check_arrays(EXPECTED, {"z": np.zeros(5)}, "here", strict=False)
