"""Files of torch.save: bit-equal to torch.load, or refused; never run, and bounded."""

import io
import pickle
import resource
import time
import zipfile

import ml_dtypes  # noqa: F401  (gives NumPy its bfloat16)
import numpy as np
import pytest

from kbert.checkpoints.pytorch.file import open_pytorch, read_pytorch

torch = pytest.importorskip("torch")

FORMATS = {
    "zip": {},
    "zip of protocol 4": {"pickle_protocol": 4},
    "stream": {"_use_new_zipfile_serialization": False},
    "stream of protocol 4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}
TYPES = (
    *("float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64"),
    *("uint8", "bool", "complex64", "complex128"),
)
NEWER_TYPES = ("uint16", "uint32", "uint64")  # torch itself does not load streams of them


def tensors():
    torch.manual_seed(0)
    table = torch.randn(4, 6)
    return {
        "table": table,
        "tied": table,
        "view": table[1:3, 2:],
        "transposed": table.t(),
        "every other": table[::2, ::3],
        "parameter": torch.nn.Parameter(table),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "expanded": torch.ones(2, 1).expand(2, 5),
        **{kind: (torch.randn(3, 5) * 3).to(getattr(torch, kind)) for kind in TYPES},
    }


def load(path):
    return torch.load(path, weights_only=False)  # a file of this test


def bits(array):
    return (str(array.dtype), array.shape, array.tobytes())


def torch_bits(tensor):
    raw = tensor.detach().contiguous().reshape(-1)
    raw = raw.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_type_and_view_is_bit_equal(tmp_path, format_):
    path = tmp_path / "pytorch_model.bin"
    values = tensors()
    if "stream" not in format_:
        values |= {kind: torch.ones(3, 2).to(getattr(torch, kind)) for kind in NEWER_TYPES}
    torch.save(values, path, **FORMATS[format_])
    file, theirs = open_pytorch(path), load(path)
    assert file.keys() == list(theirs)
    for name, tensor in theirs.items():
        assert bits(file.get_tensor(name)) == torch_bits(tensor), name


def test_half_precision_is_widened_and_tied_weights_are_one_array(tmp_path):
    torch.save(tensors(), tmp_path / "x")
    arrays = read_pytorch(tmp_path / "x")
    for name, tensor in load(tmp_path / "x").items():
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        assert bits(arrays[name]) == torch_bits(tensor)
    assert arrays["table"] is arrays["tied"]
    assert arrays["table"] is not arrays["view"]


@pytest.mark.parametrize("format_", FORMATS)
def test_the_state_of_a_module(tmp_path, format_):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    torch.save(model.state_dict(), tmp_path / "x", **FORMATS[format_])
    arrays = read_pytorch(tmp_path / "x")
    assert [*arrays] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    np.testing.assert_array_equal(arrays["0.weight"], model[0].weight.detach())


def test_big_endian_numbers(tmp_path):
    """As a zip of such a machine says it: its storages are swapped."""
    from torch.serialization import LoadEndianness, set_default_load_endianness

    torch.save({"a": torch.tensor([1, 2])}, tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    records["x/byteorder"] = b"big"
    records["x/data/0"] = np.array([1, 2], ">i8").tobytes()
    write_zip(tmp_path / "big", records)
    assert read_pytorch(tmp_path / "big")["a"].tolist() == [1, 2]
    set_default_load_endianness(LoadEndianness.NATIVE)
    assert load(tmp_path / "big")["a"].tolist() == [1, 2]


def test_a_part_of_a_storage_in_an_old_stream(tmp_path):
    """Versions before 0.4 wrote views of storages, with their key, start and length."""
    path = tmp_path / "x"
    torch.save({"a": torch.arange(6.0)}, path, **FORMATS["stream"])
    whole = path.read_bytes()
    # The description of the storage ends in its length, None and the tuple.
    at = whole.index(b"K\x06N") + 2
    view = b"X\x01\x00\x00\x00vK\x02K\x03\x87"
    path.write_bytes(whole[:at] + view + whole[at + 1 :].replace(b"K\x06\x85", b"K\x03\x85"))
    assert load(path)["a"].tolist() == [2, 3, 4]
    assert read_pytorch(path)["a"].tolist() == [2, 3, 4]
    path.write_bytes(path.read_bytes().replace(b"K\x03\x85", b"K\x04\x85"))
    with pytest.raises(ValueError, match=r"'a' is larger than its storage.*Received: .*/x"):
        read_pytorch(path)


def test_the_weights_below_a_key(tmp_path):
    import argparse

    saved = {"args": argparse.Namespace(layers=2), "model": {"a": torch.ones(2)}}
    torch.save(saved, tmp_path / "x")
    assert read_pytorch(tmp_path / "x", below="model")["a"].tolist() == [1, 1]
    with pytest.raises(ValueError, match=r"weights as 'ema'. Received: .*/x"):
        read_pytorch(tmp_path / "x", below="ema")
    with pytest.raises(ValueError, match=r"Received: argparse.Namespace as 'args' in .*/x"):
        read_pytorch(tmp_path / "x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [torch.ones(2)], "must be a dict of tensors. Received: a list in "),
        (lambda: {"a": 3}, r"by model.state_dict\(\). Received: 3 as 'a' in "),
        (lambda: {3: torch.ones(2)}, "as returned by .* Received: a Tensor as 3 in "),
        (lambda: torch.nn.Linear(2, 2), r"Received: torch.nn.modules.linear.Linear at byte "),
        (lambda: {"a": torch.eye(2).to_sparse()}, "Received: torch._utils._rebuild_sparse_tensor"),
        (
            lambda: {"a": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)},
            "Received: torch._utils._rebuild_qtensor at byte ",
        ),
        (lambda: {"a": torch.ones(2).to(torch.float8_e5m2)}, "Received: torch.float8_e5m2 at byte"),
        (lambda: {"a": torch.ones(2, dtype=torch.complex64).conj()}, "conjugated or negated view"),
        (lambda: {"a": np.ones(2)}, r"Received: numpy.*_reconstruct at byte "),
    ],
)
@pytest.mark.parametrize("format_", ["zip", "stream"])
@pytest.mark.filterwarnings("ignore")
def test_other_files_of_torch_save(tmp_path, make, message, format_):
    torch.save(make(), tmp_path / "x", **FORMATS[format_])
    with pytest.raises(ValueError, match=message) as error:
        read_pytorch(tmp_path / "x")
    assert str(tmp_path / "x") in str(error.value)


def write_zip(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


@pytest.fixture
def records(tmp_path):
    torch.save({"a": torch.arange(6.0), "b": torch.ones(2, dtype=torch.int64)}, tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x/data.pkl": None}, "the zip has no record data.pkl"),
        ({"x/data/1": None}, "no storage '1' of 'b'"),
        ({"x/data/0": bytes(20)}, "storage '0' of 'a' has 20 bytes, not 6 × 4"),
        ({"x/data/0": bytes(28)}, "storage '0' of 'a' has 28 bytes, not 6 × 4"),
        ({"y/data/0": bytes(24)}, "the record 'data/0' exists twice"),
        ({"x/byteorder": b"middle"}, "byteorder is neither little nor big"),
        ({"x/data.pkl": b"N."}, "dict of tensors. Received: None in "),
        ({"x/data.pkl": b"N.N."}, "data.pkl continues after its pickle"),
        ({"x/data.pkl": bytes((1 << 24) + 1)}, "data.pkl has 16,777,217 bytes"),
    ],
)
def test_zips_that_lie(tmp_path, records, changes, message):
    changed = {name: x for name, x in {**records, **changes}.items() if x is not None}
    write_zip(tmp_path / "lie", changed)
    with pytest.raises(ValueError, match=message) as error:
        read_pytorch(tmp_path / "lie")
    assert f"{tmp_path}/lie" in str(error.value)


def test_a_compressed_record_is_refused(tmp_path, records):
    """So that no small file holds a large one."""
    write_zip(tmp_path / "bomb", {**records, "x/data/0": bytes(1 << 24)}, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "bomb").stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"'x/data.pkl' is compressed or encrypted"):
        read_pytorch(tmp_path / "bomb")


def test_a_changed_number_does_not_have_the_checksum(tmp_path):
    torch.save({"a": torch.arange(6.0)}, tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    at = whole.index(np.arange(6, dtype="float32").tobytes())
    (tmp_path / "x").write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    with pytest.raises(ValueError, match=r"data/0 have another checksum.*Received: .*/x"):
        read_pytorch(tmp_path / "x")


def test_a_view_that_is_far_larger_than_the_file(tmp_path):
    torch.save({"a": torch.ones(1).expand(1 << 40)}, tmp_path / "x")
    with pytest.raises(ValueError, match="at most 20 times as large as the file"):
        read_pytorch(tmp_path / "x")
    torch.save({"a": torch.empty(0, 1 << 31, 1 << 31)}, tmp_path / "x")
    with pytest.raises(ValueError, match="'a' is larger than its storage"):
        read_pytorch(tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\x00" * 100, "neither a zip nor the magic number"),
        (b"PK\x03\x04" + bytes(50), "as a zip: File is not a zip file"),
        (pickle.dumps(5, 2), "neither a zip nor the magic number"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, 2) + b"\x80\x02K\x07.", "its version is not 1001"),
    ],
)
def test_other_files(tmp_path, content, message):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_pytorch(tmp_path / "x")


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file of torch.save. Received: .*nothing"):
        read_pytorch(tmp_path / "nothing")


def test_a_storage_of_a_stream_that_goes_beyond_the_end(tmp_path):
    torch.save({"a": torch.arange(6.0)}, tmp_path / "x", **FORMATS["stream"])
    whole = (tmp_path / "x").read_bytes()
    for content, message in (
        (whole[:-1], "goes beyond the end"),
        (whole[:-30], "goes beyond the end"),
        (whole + b"x", "it continues after its storages"),
        (whole[:-32] + b"\xff" * 8 + whole[-24:], "goes beyond the end"),
        (whole[:-32] + b"\x05" + whole[-31:], "it continues after its storages"),
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_pytorch(tmp_path / "x")


def test_reading_takes_the_memory_of_what_is_read(tmp_path):
    """Ten tensors of 8 MB, read one after the other: never more than one of them."""
    import tracemalloc

    torch.save({str(i): torch.zeros(1 << 21) for i in range(10)}, tmp_path / "x")
    tracemalloc.start()
    file = open_pytorch(tmp_path / "x")
    for name in file.keys():  # noqa: SIM118
        assert file.get_tensor(name).nbytes == 1 << 23
    assert tracemalloc.get_traced_memory()[1] < 1.3 * (1 << 23)
    tracemalloc.stop()


# Mutations.


def changed(content, rng):
    """One to three changes: a byte, a bit, a piece left out, put in, or repeated."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at, length = int(rng.integers(len(content) + 1)), int(rng.integers(1, 9))
        match rng.integers(6):
            case 0 | 1:
                content[at : at + 1] = rng.bytes(1)
            case 2:
                content[at : at + 1] = (
                    bytes([content[at] ^ (1 << rng.integers(8))]) if content[at : at + 1] else b""
                )
            case 3:
                del content[at : at + length]
            case 4:
                content[at:at] = rng.bytes(length)
            case 5:
                start = int(rng.integers(len(content) + 1))
                content[at:at] = content[start : start + length]
    return bytes(content) or b"x"


def small():
    table = torch.arange(6.0).reshape(2, 3)
    return {
        "word.weight": table,
        "tied": table.t(),
        "ids": torch.arange(3)[None],
        "half": torch.ones(2, dtype=torch.bfloat16),
    }


def try_read(path):
    """The arrays, or None where the file is refused by an error of ours."""
    try:
        file = open_pytorch(path)
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except ValueError as error:
        message = str(error)
    assert str(path) in message
    assert len(message) < 1000
    return None


def assert_torch_agrees(path, arrays):
    """Where torch's own restricted reader takes the file too, it finds the same."""
    try:
        theirs = torch.load(path, weights_only=True)
    except Exception:
        return
    assert list(theirs) == list(arrays)
    for name, tensor in theirs.items():
        assert bits(arrays[name]) == torch_bits(tensor)


def fuzz(folder, count, seed):
    """Changed zips are refused or the same; changed pickles and streams are what torch says."""
    rng = np.random.default_rng(seed)
    path = folder / "x"
    torch.save(small(), path)
    whole = path.read_bytes()
    expected = {name: bits(array) for name, array in try_read(path).items()}
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    torch.save(small(), path, **FORMATS["stream"])
    stream = path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept, slowest = 0, 0.0
    for i in range(count):
        if i % 3 == 0:
            path.write_bytes(changed(whole, rng))
        elif i % 3 == 1:  # as if whoever changed it had made the checksums anew
            buffer = io.BytesIO()
            write_zip(buffer, {**records, "x/data.pkl": changed(records["x/data.pkl"], rng)})
            path.write_bytes(buffer.getvalue())
        else:
            path.write_bytes(changed(stream, rng))
        started = time.process_time()
        arrays = try_read(path)
        slowest = max(slowest, time.process_time() - started)
        if arrays is None:
            continue
        kept += 1
        if i % 3 == 0:
            assert {name: bits(array) for name, array in arrays.items()} == expected
        else:
            assert_torch_agrees(path, arrays)
    assert 0 < kept < count
    assert slowest < 2
    # In kB: no more than the 256 MiB that a small file may declare.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


@pytest.mark.filterwarnings("ignore")
def test_files_changed_at_random(tmp_path):
    fuzz(tmp_path, 600, seed=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_files_changed_a_hundred_thousand_times(tmp_path, seed):
    fuzz(tmp_path, 25_000, seed=100 + seed)
