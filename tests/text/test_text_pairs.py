"""Pairs of texts from files: every kind, nothing lost, errors by file and line."""

import gzip
import json

import pytest

from kbert.text import documents, files, open_sources, read_pairs, source, split_pairs

PAIRS = [("Go.", "Geh."), ("Is it 8\u2028o'clock?", "Ist es acht?"), ("Größe", "大きさ")]


def write(path, text):
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def aligned(folder, pairs, suffix="", end="\n"):
    return [
        write(folder / f"{name}{suffix}", "".join(text + end for text in texts))
        for name, texts in zip(("a.en", "a.de"), zip(*pairs, strict=True), strict=True)
    ]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_two_files(tmp_path, suffix, end):
    pairs = read_pairs(*aligned(tmp_path, PAIRS, suffix, end))
    # U+2028 ends no line; and a second pass gives the same.
    assert list(pairs) == list(pairs) == PAIRS
    assert pairs.consumed == pairs.size > 0


def test_the_last_line_may_lack_its_end_and_the_first_have_a_byte_order_mark(tmp_path):
    one = write(tmp_path / "a", "\ufeffGo.\nRun!")
    other = write(tmp_path / "b", "Geh.\nLauf!\n")
    assert list(read_pairs(one, other)) == [("Go.", "Geh."), ("Run!", "Lauf!")]


def test_lines_on_the_border_of_two_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_READ_BYTES", 3)
    assert list(read_pairs(*aligned(tmp_path, PAIRS))) == PAIRS


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "Go.\tGeh.\nHi\tHallo\textra\n", None),
        ("a.txt.gz", "1\tGeh.\tGo.\n2\tHallo\tHi\n", (2, 1)),
        ("a.tsv", "de\ten\nGeh.\tGo.\nHallo\tHi\n", ("en", "de")),
        ("a.jsonl", '{"en": "Go.", "de": "Geh."}\n\n{"en": "Hi", "de": "Hallo"}', ("en", "de")),
    ],
)
def test_one_file(tmp_path, name, text, columns):
    pairs = read_pairs(write(tmp_path / name, text), columns=columns)
    assert list(pairs) == [("Go.", "Geh."), ("Hi", "Hallo")]
    assert pairs.consumed == pairs.size


def test_patterns_and_lists_pair_their_files_in_order(tmp_path):
    for number in (2, 1):
        for side in ("en", "de"):
            write(tmp_path / f"{number}.{side}", f"{side} {number}\n")
    found = list(read_pairs(f"{tmp_path}/*.en", f"{tmp_path}/*.de"))
    assert found == [("en 1", "de 1"), ("en 2", "de 2")]
    paths = [[tmp_path / f"{number}.{side}" for number in (2, 1)] for side in ("de", "en")]
    assert list(read_pairs(*paths)) == [("de 2", "en 2"), ("de 1", "en 1")]


def test_empty_sides_are_left_out_and_counted(tmp_path, caplog):
    texts = [("a", "b"), ("", "c"), ("d", " \t"), ("", ""), (" e ", "f")]
    pairs = read_pairs(*aligned(tmp_path, texts))
    assert list(pairs) == list(pairs) == [("a", "b"), ("e", "f")]
    assert pairs.empty == 3
    assert caplog.text.count("3 pairs with an empty side are skipped") == 1
    assert f"the first: {tmp_path}/a.en, line 2" in caplog.text


def test_bad_bytes_are_named_or_replaced(tmp_path):
    one, other = write(tmp_path / "a", "Go.\nHi\n"), write(tmp_path / "b", b"Geh.\nH\xfc\n")
    with pytest.raises(ValueError, match=r"b: invalid UTF-8 at byte 6 \(line 2\)"):
        list(read_pairs(one, other))
    pairs = read_pairs(one, other, on_bad_utf8="replace")
    assert list(pairs)[1] == ("Hi", "H\ufffd")
    assert pairs.replaced_characters == 1


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (
            "a\tb\nc\n",
            None,
            r"a\.tsv, line 2: a row must have at least 2 columns.*Received: 1 columns",
        ),
        (
            "a\tb\tc\nd\te\n",
            (0, 2),
            r"line 2: a row must have at least 3 columns.*Received: 2 columns",
        ),
        (
            "en\tfr\na\tb\n",
            ("en", "de"),
            r"line 1: exactly one column must be named 'de'.*'en', 'fr'",
        ),
        ("a\tb\n", ("en", 1), r"two different names or numbers from 0.*Received: \('en', 1\)"),
        ("a\tb\n", (0, -1), r"numbers from 0.*Received: \(0, -1\)"),
        ("a\tb\n", (1, 1), r"Received: \(1, 1\)"),
        ("a\tb\n", "01", r"Received: '01'"),
        ("", None, r"a\.tsv is empty"),
        (b"a\tb\n\xff\tc\n", None, r"a\.tsv: invalid UTF-8 at byte 4 \(line 2\)"),
    ],
)
def test_errors_of_columns(tmp_path, content, columns, message):
    with pytest.raises(ValueError, match=message):
        list(read_pairs(write(tmp_path / "a.tsv", content), columns=columns))


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ("1\n2\n3\n4\n", "1\n2\n", r"line 3 of \S+a is the first.*4 lines in \S+a, 2 in \S+b"),
        ("1\n", "1\n2\n3", r"line 2 of \S+b is the first.*3 lines in \S+b, 1 in \S+a"),
    ],
)
def test_files_of_unequal_length(tmp_path, ours, theirs, message):
    pairs = read_pairs(write(tmp_path / "a", ours), write(tmp_path / "b", theirs))
    with pytest.raises(ValueError, match=message):
        list(pairs)


def test_what_is_not_read(tmp_path, monkeypatch):
    text = write(tmp_path / "a.txt", "a\n")
    record = write(tmp_path / "a.jsonl", json.dumps({"en": "a", "de": 3}))
    with pytest.raises(FileNotFoundError, match="No file matches"):
        read_pairs(text, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"with kbert.data.read_table"):
        read_pairs(write(tmp_path / "a.csv", "a,b\n"))
    with pytest.raises(ValueError, match=r"A source must be text or JSON lines.*a\.zip"):
        read_pairs(write(tmp_path / "a.zip", "a"), text)
    with pytest.raises(ValueError, match=r"JSON lines, .* must have both sides in one file"):
        read_pairs(text, record)
    with pytest.raises(ValueError, match=r"columns=\('en', 'de'\). Received: columns=None"):
        read_pairs(record)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1: .*a string 'de'"):
        list(read_pairs(record, columns=("en", "de")))
    with pytest.raises(ValueError, match="Files must all be of one format"):
        read_pairs([text, record])
    with pytest.raises(
        ValueError, match=r"Every source file must have a target file.*2 files and 1"
    ):
        read_pairs([text, text], text)
    with pytest.raises(ValueError, match="must not be passed with `target`"):
        read_pairs(text, text, columns=(0, 1))
    with pytest.raises(ValueError, match="an empty list"):
        read_pairs([])
    with pytest.raises(ValueError, match=r"'fail' or 'replace'. Received: 'ignore'"):
        read_pairs(text, text, on_bad_utf8="ignore")
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 3)
    monkeypatch.setattr(files, "_READ_BYTES", 4)
    long = write(tmp_path / "long", "a\nbbbbbbbb\n")
    with pytest.raises(ValueError, match="long, line 2: a line of a pair may have at most 3 bytes"):
        list(read_pairs(long, long))


def test_splits_go_by_the_source_text():
    pairs = [(f"text {n}", f"{m} {n}") for n in range(400) for m in "ab"]
    train, held_out = (list(split_pairs(pairs, split, 0.2)) for split in ("train", "held_out"))
    assert sorted(train + held_out) == sorted(pairs)
    assert not {a for a, _ in train} & {a for a, _ in held_out}
    assert 100 < len(held_out) < 220
    assert list(split_pairs(pairs)) == pairs
    assert not list(split_pairs(pairs, "held_out"))
    assert sorted(split_pairs(pairs[::-1], "held_out", 0.2)) == sorted(held_out)
    with pytest.raises(ValueError, match=r"Received: split='dev', held_out_share=0.2"):
        split_pairs(pairs, "dev", 0.2)
    with pytest.raises(ValueError, match="held_out_share=1"):
        split_pairs(pairs, "train", 1)


def test_as_a_source_of_both_sides(tmp_path):
    pairs = read_pairs(*aligned(tmp_path, PAIRS))
    assert open_sources(pairs) == [pairs]
    assert list(documents(pairs)) == [[text] for pair in PAIRS for text in pair]
    before = pairs.identity()
    assert json.loads(json.dumps(before)) == before
    write(tmp_path / "a.de", "another\n" * 3)
    assert read_pairs(str(tmp_path / "a.en"), str(tmp_path / "a.de")).identity() != before
