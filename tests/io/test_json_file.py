import pytest

from kbert.io.json_file import parse_json, read_json


def test_an_object_with_and_without_a_mark(tmp_path):
    path = tmp_path / "x.json"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + '{"é": [1, 2.5, null]}'.encode())
        assert read_json(path) == {"é": [1, 2.5, None]}
    assert parse_json('\ufeff{"a": 1}') == {"a": 1}
    assert parse_json(b"[1]") == [1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"\xff", "invalid start byte"),
        (b"[" * 100_000, "brackets nested too deeply"),
        (b'{"a":' * 100_000, "brackets nested too deeply"),
        (b'{"a": ' + b"7" * 100_000 + b"}", "a number with thousands of digits"),
    ],
)
def test_what_is_no_json_is_one_line_with_the_name(tmp_path, content, reason):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"not JSON \(.*{reason}.*\). Received: {path}$"):
        read_json(path)


def test_what_is_no_object_and_what_is_no_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match=f"must contain a JSON object. Received: {path}"):
        read_json(path)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for none in (tmp_path / "none", tmp_path, loop):
        with pytest.raises(FileNotFoundError, match=f"No such JSON file. Received: {none}"):
            read_json(none)
