"""NumPy's files: what is damaged is refused before memory is taken for it."""

import re

import numpy as np
import pytest

from kbert.io.npy import read_npy


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3), np.zeros((0, 3), "float16"), np.float32(2)]
)
def test_what_is_whole_is_read(tmp_path, array, mapped):
    path = tmp_path / "a.npy"
    np.save(path, array)
    found = read_npy(path, mapped=mapped)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert isinstance(found, np.memmap) == mapped


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"(2, 3)", b"(9, 3)", "344 bytes declared"),
        (b"(2, 3)", b"(-2,3)", "bytes declared"),
        (b"(2, 3)", b"(2, 3 ", "EOF in multi-line"),
        (b"'<i8'", b"'|O' ", "Python objects"),
        (b"(2, 3), }", b"'''\0\0\0\0\0\0", ""),
        (b"\x01\x00v\x00", b"\x07\x00v\x00", r"version \(7, 0\)|only support"),
        (b"NUMPY", b"numpy", "magic"),
    ],
)
def test_a_damaged_header(tmp_path, old, new, why):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6).reshape(2, 3))
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    rule = (
        rf"one complete array of numbers\. Received: {re.escape(str(path))} of 176 bytes: .*{why}"
    )
    with pytest.raises(ValueError, match=rule):
        read_npy(path)


def test_files_of_other_lengths(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6))
    content = path.read_bytes()
    for changed in (content[:-1], content + b"\0", content[:40], b""):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="one complete array"):
            read_npy(path)
