"""Text files and JSON lines: documents, over-long ones, and every kind of bad input by name."""

import gzip
import json

import pytest
from hypothesis import example, given, settings, strategies as st

from kbert.text import files, source
from kbert.text.files import JsonLinesFile, TextFile


def write(path, content: bytes) -> str:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def read(path, content: bytes, on_bad_utf8: str = "fail") -> list[bytes]:
    return list(TextFile(write(path, content), on_bad_utf8).documents())


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_blank_lines_separate_documents(tmp_path, name):
    content = b"\xef\xbb\xbf\n\none\r\ntwo\r\n\r\nthree\n \t \n\n\nfour\nfive"
    assert read(tmp_path / name, content) == [b"one\ntwo", b"three", b"four\nfive"]


@settings(deadline=None)
@given(
    text=st.text(alphabet="aé字\n\n \r", min_size=1, max_size=40),
    block=st.integers(min_value=1, max_value=7),
)
@example(text="a\r\r\na", block=1)
def test_blocks_of_any_size_give_the_same_documents(tmp_path_factory, text, block):
    if not text.strip() or ("\n" not in text and "\r" in text.rstrip("\r")):
        return
    path = tmp_path_factory.mktemp("blocks") / "a.txt"
    with pytest.MonkeyPatch.context() as patch:
        whole = read(path, text.encode())
        patch.setattr(files, "_READ_BYTES", block)
        assert read(path, text.encode()) == whole


@settings(deadline=None)
@given(
    text=st.text(alphabet="aé字. \n\n", min_size=1, max_size=80),
    block=st.integers(min_value=1, max_value=9),
)
def test_over_long_documents_are_cut_the_same_way_at_any_block_size(tmp_path_factory, text, block):
    if not text.strip():
        return
    path = tmp_path_factory.mktemp("parts") / "a.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "MAX_DOCUMENT_BYTES", 10)
        whole = read(path, text.encode())
        assert max(map(len, whole)) <= 10
        assert b"".join(b" ".join(whole).split()) == b"".join(text.encode().split())
        assert all(part.decode().strip() for part in whole)
        patch.setattr(files, "_READ_BYTES", block)
        assert read(path, text.encode()) == whole


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_lines_that_end_in_a_carriage_return_alone_are_refused(tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "_READ_BYTES", block)
    with pytest.raises(ValueError, match=r"a.txt: lines must end in .*`tr .*one line, with \\r in"):
        read(tmp_path / "a.txt", b"one.\rtwo.\r\rthree.\r")
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 4)
    with pytest.raises(ValueError, match=r"one line, with \\r inside"):
        read(tmp_path / "a.txt", b"one.\rtwo.\r\rthree.\r")
    assert read(tmp_path / "a.txt", b"one\r") == [b"one"]
    assert read(tmp_path / "a.txt", b"a\rb\n\nc") == [b"a\rb", b"c"]


def test_where_an_over_long_document_is_cut(monkeypatch):
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 20)
    cut = source.cut_document
    assert cut(b"one two.\nthree. four five six") == [b"one two.", b"three. four five six"]
    assert cut(b"one two. three four five six") == [b"one two.", b"three four five six"]
    assert cut(b"one two three four five") == [b"one two three four", b"five"]
    assert cut("字".encode() * 8) == ["字".encode() * 6, "字".encode() * 2]


def test_a_cut_is_warned_about_once_with_file_and_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(files, "_READ_BYTES", 300)
    path = write(tmp_path / "long.txt", b"short\n\n" + b"a line of text\n" * 500 + b"\nshort too\n")
    text = TextFile(path, "fail")
    documents = list(text.documents())
    assert text.cut_documents == 1
    assert [m for m in caplog.messages if "split into parts" in m and "long.txt, line 3:" in m]
    assert len([m for m in caplog.messages if "split into parts" in m]) == 1
    assert documents[0] == b"short"
    assert documents[-1] == b"short too"
    assert b"\n".join(documents[1:-1]) == b"\n".join([b"a line of text"] * 500)


def test_a_line_of_100_megabytes_needs_no_more_memory_than_a_part(tmp_path):
    path = tmp_path / "line.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"word " * 200_000)
    text = TextFile(str(path), "fail")
    sizes = [len(part) for part in text.documents()]
    assert sum(sizes) > 99_000_000
    assert max(sizes) <= source.MAX_DOCUMENT_BYTES
    assert text.cut_documents == 1


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("block", [2, 5, 1 << 20])
def test_invalid_utf8_names_file_byte_and_line(tmp_path, monkeypatch, name, block):
    monkeypatch.setattr(files, "_READ_BYTES", block)
    content = "é first\nsecond ".encode() + b"\xe5\xad" + b" third"
    with pytest.raises(ValueError, match=r"a\.txt.*invalid UTF-8 at byte 16 \(line 2\).*e5 ad"):
        read(tmp_path / name, content)
    with pytest.raises(ValueError, match=r"byte 2 \(line 1\): unexpected end of data"):
        read(tmp_path / name, b"ab\xe5")


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_invalid_utf8_replaced_and_counted(tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "_READ_BYTES", block)
    path = write(tmp_path / "a.txt", "字 � ".encode() + b"\xff b\xe5\xad")
    text = TextFile(path, "replace")
    assert list(text.documents()) == ["字 � � b�".encode()]
    assert text.replaced_characters == 2


def test_utf16_is_recognised(tmp_path):
    with pytest.raises(ValueError, match="byte-order mark of UTF-16"):
        read(tmp_path / "a.txt", "word".encode("utf-16"))


def test_files_without_text(tmp_path):
    with pytest.raises(ValueError, match=r"a\.txt is empty"):
        read(tmp_path / "a.txt", b"")
    with pytest.raises(ValueError, match=r"b\.txt holds no text"):
        read(tmp_path / "b.txt", b" \n\n \n")
    with pytest.raises(ValueError, match=r"c\.txt\.gz holds no text"):
        read(tmp_path / "c.txt.gz", b"")


def test_unsound_gzip(tmp_path):
    whole = gzip.compress(b"a line of text\n" * 10_000)
    for name, content, message in (
        ("cut.txt.gz", whole[: len(whole) // 2], "truncated"),
        ("plain.txt.gz", b"not packed at all", "not valid gzip"),
        ("bent.txt.gz", whole[:40] + b"\xff\xff\xff" + whole[43:], "not valid gzip|truncated"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.*({message})"):
            list(TextFile(str(path), "fail").documents())


def lines(*records) -> bytes:
    return "\n".join(json.dumps(record) for record in records).encode()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    content = lines({"body": "One.\r\n\nTwo. é", "id": 1}, {"body": "字"}) + b"\n\n"
    found = JsonLinesFile(write(tmp_path / name, content), "body", "fail").documents()
    assert list(found) == ["One.\n\nTwo. é".encode(), "字".encode()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text": "b"', r"line 2 is not JSON.*Received: '{\"text\": \"b\"'"),
        (lines({"text": "a"}, {"body": "b"}), r"line 2: .*string 'text'.*\['body'\]"),
        (lines({"text": 3}), r"line 1: .*\['text'\]"),
        (lines(["text"]), r"line 1: .*Received: list"),
        (b'{"text": "half \\ud83d pair"}', r"line 1: .*half a surrogate pair at character 5"),
        (b'{"text": "\xff"}', r"invalid UTF-8 at byte 10"),
    ],
)
def test_bad_json_names_file_and_line(tmp_path, content, message):
    path = write(tmp_path / "bad.jsonl", content)
    with pytest.raises(ValueError, match=r"bad\.jsonl.*" + message):
        list(JsonLinesFile(path, "text", "fail").documents())


def test_half_a_surrogate_pair_replaced(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text": "half \\ud83d pair \\ud83d\\ude00"}')
    json_lines = JsonLinesFile(path, "text", "replace")
    assert list(json_lines.documents()) == ["half � pair 😀".encode()]
    assert json_lines.replaced_characters == 1


def test_a_json_line_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_JSON_LINE_BYTES", 1000)
    monkeypatch.setattr(files, "_READ_BYTES", 300)
    path = write(tmp_path / "a.jsonl", lines({"text": "a"}, {"text": "b" * 5000}))
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: .*at most 1000 bytes. Received: 1186"):
        list(JsonLinesFile(path, "text", "fail").documents())


def test_an_unknown_policy_for_bad_bytes(tmp_path):
    with pytest.raises(ValueError, match=r"'fail' or 'replace'. Received: 'ignore'"):
        TextFile(write(tmp_path / "a.txt", b"a"), "ignore")


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_json_lines_without_a_line(tmp_path, name):
    path = write(tmp_path / name, b"\n  \n\n")
    with pytest.raises(ValueError, match=rf"{name} holds no text, only white space"):
        list(JsonLinesFile(path, "text", "fail").documents())
