"""Bytes of a file changed at random: refused, or what was written. Nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kbert.io.arrays import check_arrays, read_safetensors, write_safetensors

ARRAYS = {
    "encoder/kernel": np.arange(12, dtype="float32").reshape(3, 4),
    "encoder/bias": np.arange(4, dtype="float32"),
    "scale": np.float32(2),
}
SHAPES = {name: array.shape for name, array in ARRAYS.items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "x.safetensors"
    write_safetensors(path, ARRAYS)
    return path, path.read_bytes()


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_changed_header_is_refused_or_says_the_same(file, data):
    path, whole = file
    header = 8 + int.from_bytes(whole[:8], "little")
    changed = bytearray(whole)
    places = st.tuples(st.integers(0, header - 1), st.integers(0, 255))
    for place, byte in data.draw(st.lists(places, min_size=1, max_size=3)):
        changed[place] = byte
    path.write_bytes(changed)
    try:
        arrays = read_safetensors(path)
        check_arrays(SHAPES, arrays, str(path))
    except ValueError:
        return
    for name, array in ARRAYS.items():
        if arrays[name].dtype.kind == "f":  # integers are for `set_arrays` to refuse
            np.testing.assert_array_equal(arrays[name], array)


@settings(max_examples=100, deadline=None)
@given(keep=st.integers(0, 10**6), more=st.binary(max_size=20))
def test_a_file_of_another_length_is_refused(file, keep, more):
    path, whole = file
    keep %= len(whole)
    changed = whole[:keep] + more
    if changed == whole:
        return
    path.write_bytes(changed)
    try:
        arrays = read_safetensors(path)
    except ValueError:
        return
    # As long as the whole file, with other numbers at the end: no format without a checksum
    # can tell.
    assert len(changed) == len(whole)
    assert {name: array.shape for name, array in arrays.items()} == SHAPES
