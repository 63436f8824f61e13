"""HDF5 files: what they declare is there, or they are refused before memory is taken."""

import zlib

import h5py
import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.hdf5 import open_datasets
from tests.models.elmo.elmo_reference import OPTIONS, make_weights, write_folder

ARRAY = np.arange(600, dtype="float32").reshape(20, 30)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weights.hdf5"


def read(path):
    with open_datasets(path) as datasets:
        return {name: np.asarray(dataset) for name, dataset in datasets.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (7, 11)},
        {"chunks": (7, 11), "compression": "gzip"},
        {"chunks": (7, 11), "shuffle": True, "fletcher32": True},
        {"maxshape": (None, 30)},
    ],
)
def test_whole_datasets_are_read_however_they_are_stored(path, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("a/b", data=ARRAY, **options)
        file["scalar"] = np.float64(3)
        file["nothing"] = np.zeros((0, 4))
    found = read(path)
    np.testing.assert_array_equal(found["a/b"], ARRAY)
    assert found["scalar"] == 3
    assert found["nothing"].shape == (0, 4)


@pytest.mark.parametrize("options", [{}, {"chunks": (10, 10)}, {"compression": "gzip"}])
@pytest.mark.parametrize("shape", [(40_000, 40_000), (20, 30)])
def test_values_that_were_never_written(path, options, shape):
    """The first would take 6.4 GB; the second would be zeros."""
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", shape, "float32", **options)
    assert path.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"read as zeros. Received: kernel of shape .*hdf5"):
        read(path)


def test_a_dataset_that_was_written_in_part(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", (20, 30), "float32", chunks=(10, 30))[:10] = 1
    with pytest.raises(ValueError, match=r"2,400 bytes, of which 1,200 are stored"):
        read(path)


def test_zeros_that_are_compressed(path):
    zeros = zlib.compress(bytes(500 * 9000 * 4))
    with h5py.File(path, "w") as file:
        options = {"chunks": (500, 9000), "compression": "gzip"}
        many = file.create_dataset("kernel", (9000, 9000), "float32", **options)
        for row in range(0, 9000, 500):
            many.id.write_direct_chunk((row, 0), zeros)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(ValueError, match=r"at most 20 times as large as the file.*324,000,000 by"):
        read(path)


def test_datasets_of_other_files(path, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(2400))
    with h5py.File(path, "w") as file:
        file.create_dataset("kernel", (20, 30), "float32", external=[(str(secret), 0, 2400)])
    with pytest.raises(ValueError, match=r"in the file itself.*Received: kernel in .*hdf5"):
        read(path)
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["kernel"] = ARRAY
    layout = h5py.VirtualLayout((20, 30), "float32")
    layout[:] = h5py.VirtualSource(tmp_path / "other.hdf5", "kernel", (20, 30))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("kernel", layout)
    with pytest.raises(ValueError, match=r"in the file itself.*Received: kernel in .*hdf5"):
        read(path)


def test_a_dataset_without_a_shape(path):
    with h5py.File(path, "w") as file:
        file["kernel"] = h5py.Empty("float32")
    with pytest.raises(ValueError, match=r"have a shape. Received: kernel, which is null"):
        read(path)


def test_a_name_that_is_no_text(path):
    with h5py.File(path, "w") as file:
        file[b"a/\xff"] = [1.0]
    with (
        pytest.raises(ValueError, match=r"Names must be text in UTF-8\. Received: b'a/\\xff' in"),
        open_datasets(path),
    ):
        pass


def test_an_elmo_that_would_fill_the_memory(tmp_path):
    write_folder(tmp_path, OPTIONS, make_weights(OPTIONS))
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        del file["char_embed"]
        file.create_dataset("char_embed", (40_000, 40_000), "float32")
    with pytest.raises(ValueError, match=r"Received: char_embed of shape \(40000, 40000\)"):
        read_checkpoint(tmp_path)
