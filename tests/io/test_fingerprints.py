"""Files of every version hold these numbers: they are written here, and never change."""

import hashlib
import zlib

import ml_dtypes
import numpy as np
import pytest

from kbert.io import fingerprints
from kbert.io.paths import Path


def test_the_numbers_are_those_of_files_that_are_there():
    array = np.arange(6, dtype="float32").reshape(2, 3)
    assert fingerprints.crc32(["rain", array]) == 0x348C72A7
    assert fingerprints.blake2b(["rain", array]) == "c0a9a77d48134bc04517ec186e5a53d8"
    value = {"b": [1, None], "a": "ä"}
    digest = "0e83f0ff69c9911ad80234bd6613b028d5929206384b25c59662cdcdf776d40b"
    assert fingerprints.sha256_of_json(value) == digest


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", ml_dtypes.bfloat16])
def test_an_array_counts_by_its_bytes_in_row_major_order(dtype):
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    raw = array.tobytes()
    for found in (array, np.asfortranarray(array)):
        assert fingerprints.crc32([found]) == zlib.crc32(raw)
        assert fingerprints.blake2b([found]) == hashlib.blake2b(raw, digest_size=16).hexdigest()
    assert fingerprints.crc32([array[0, 1]]) == zlib.crc32(array[0, 1].tobytes())
    assert fingerprints.crc32([array[:0]], start=7) == 7


def test_files_count_in_sequence(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "_BLOCK", 2)
    paths = [Path(tmp_path, name) for name in "ab"]
    for path, content in zip(paths, (b"good ", b"day"), strict=True):
        path.write_bytes(content)
    assert fingerprints.crc32_of_files(*paths) == zlib.crc32(b"good day")
