import os

import numpy as np
import pytest

from kbert.io.arrays import (
    check_arrays,
    map_safetensors,
    read_safetensors,
    release,
    write_safetensors,
)

ARRAYS = {
    "b/kernel": np.arange(6, dtype="float32").reshape(2, 3),
    "a": np.array([2**40, -1]),
    "scalar": np.float32(1.5),
}


def test_round_trip(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, ARRAYS)
    arrays = read_safetensors(path)
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert os.listdir(tmp_path) == ["x.safetensors"]  # no temporary file stays


def test_mapped_arrays_are_parts_of_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {**ARRAYS, "none": np.zeros((0, 3), "float32")})
    read, mapped = read_safetensors(path), map_safetensors(path)
    assert mapped.keys() == read.keys()
    for name, array in read.items():
        assert mapped[name].dtype == array.dtype
        assert mapped[name].shape == array.shape
        np.testing.assert_array_equal(mapped[name], array)
        assert array.flags.writeable
        assert not mapped[name].flags.writeable
    part = mapped["b/kernel"].T[1:]
    release(part)
    np.testing.assert_array_equal(part, ARRAYS["b/kernel"].T[1:])
    release(read["b/kernel"])  # of no file: nothing to give back
    with open(path, "r+b") as file:
        file.write(path.read_bytes().replace(np.float32(1.5).tobytes(), np.float32(2.5).tobytes()))
    assert (mapped["scalar"], read["scalar"]) == (2.5, 1.5)


def test_arrays_between_whole_numbers_of_bytes_are_copied(tmp_path):
    """Others' files may lay them so; no library computes on them where they lie."""
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
    header += b'"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}'
    header += b" " * (-len(header) % 8)
    content = len(header).to_bytes(8, "little") + header + b"\7" + np.float32(1.5).tobytes()
    (tmp_path / "x").write_bytes(content)
    arrays = map_safetensors(tmp_path / "x")
    assert arrays["b"].flags.aligned
    assert (arrays["a"].tolist(), arrays["b"].tolist()) == ([7], [1.5])


def test_the_order_of_names_does_not_change_the_file(tmp_path):
    write_safetensors(tmp_path / "a", ARRAYS)
    write_safetensors(tmp_path / "b", dict(reversed(ARRAYS.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_transposed_view_is_written_as_it_reads(tmp_path):
    write_safetensors(tmp_path / "x", {"t": ARRAYS["b/kernel"].T})
    np.testing.assert_array_equal(read_safetensors(tmp_path / "x")["t"], ARRAYS["b/kernel"].T)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_widened(tmp_path, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    write_safetensors(tmp_path / "x", {"a": np.array([1.5, -2], kind)})
    array = read_safetensors(tmp_path / "x")["a"]
    assert array.dtype == np.float32
    assert array.tolist() == [1.5, -2]


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_file_cut_short_is_refused(tmp_path, keep):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, ARRAYS)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"damaged, truncated.*Received: .*x.safetensors"):
        read_safetensors(path)


def header(content: str, body: bytes = b"", length: int | None = None) -> bytes:
    text = content.encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


ONE = '"dtype":"F32","shape":[1],"data_offsets":'
BAD_FILES = {
    "not JSON": header('{"a"'),
    "no object": header("[]"),
    "longer than the file": header("{}", length=3),
    "of a huge length": header("{}", length=2**62),
    "overlapping": header(f'{{"a":{{{ONE}[0,4]}},"b":{{{ONE}[0,4]}}}}', bytes(4)),
    "with a gap": header(f'{{"a":{{{ONE}[4,8]}}}}', bytes(8)),
    "backwards": header(f'{{"a":{{{ONE}[4,0]}}}}', bytes(4)),
    "beyond the end": header(f'{{"a":{{{ONE}[0,4]}}}}', bytes(2)),
    "short of the end": header(f'{{"a":{{{ONE}[0,4]}}}}', bytes(8)),
    "twice the same": header(f'{{"a":{{{ONE}[0,4]}},"a":{{{ONE}[4,8]}}}}', bytes(8)),
    "a negative size": header(f'{{"a":{{{ONE}[0,4]}}}}'.replace("[1]", "[-1]"), bytes(4)),
    "a size that overflows": header(f'{{"a":{{{ONE}[0,4]}}}}'.replace("[1]", f"[{2**62},8]")),
    "another size": header(f'{{"a":{{{ONE}[0,4]}}}}'.replace("[1]", "[2]"), bytes(4)),
    "an unknown type": header(f'{{"a":{{{ONE}[0,4]}}}}'.replace("F32", "F33"), bytes(4)),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_header_that_lies_is_refused(tmp_path, what):
    (tmp_path / "x").write_bytes(BAD_FILES[what])
    with pytest.raises(ValueError, match=r"damaged, truncated.*Received: .*x"):
        read_safetensors(tmp_path / "x")


def test_a_quantised_file_is_refused(tmp_path):
    content = '{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "x").write_bytes(header(content, bytes(1)))
    with pytest.raises(ValueError, match=r"Quantised .*Received: a \(F8_E4M3\) in .*x"):
        read_safetensors(tmp_path / "x")


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such safetensors file. Received: .*nothing"):
        read_safetensors(tmp_path / "nothing")


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
