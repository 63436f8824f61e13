"""Records one after the other: the same as a table's rows, whatever the format."""

import gzip
import io
import itertools
import json
import os
import sys

import pytest

from kbert.data.readers import read_table
from kbert.experiments import Records, answer_file
from tests.columnar import FORMS, write

ROWS = [
    ("1", "plain"),
    ("2", 'a "quoted" word, and a comma'),
    ("3", "two\nlines"),
    ("3", "two\r\nlines"),
    ("4", ""),
    ("5", "déjà vu 北京 \u2028 \x0b"),
    ("6", '5" nails'),
]


def write_csv(path):
    quoted = (f'{n},"{text.replace(chr(34), chr(34) * 2)}"' for n, text in ROWS[:-1])
    path.write_text("\n".join(["id,body", *quoted, '6,5" nails', ""]), newline="")


def texts(path, **options):
    return [record["text"] for _, record in Records(path, "classify", **options)]


def test_csv_as_the_table_reads_it(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path)
    columns = {"id": "id", "text": "body"}
    found = list(Records(path, "classify", {"text": "body"}))
    table = read_table(path, columns=columns)
    assert [record for _, record in found] == [
        {"id": number, "text": text} for number, text in ROWS
    ]
    assert [record["text"] for _, record in found] == table["text"]
    assert [line for line, _ in found] == table.lines


def test_tab_separated_has_no_quotes(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('first\tsecond\n"a\tb"\nc\td\n')
    found = [record for _, record in Records(path, "regress")]
    assert found == [{"first": '"a', "second": 'b"'}, {"first": "c", "second": "d"}]


def test_lines_keep_empty_ones(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\r\n\ntwo words"))
    assert list(Records(path, "tag")) == [
        (1, {"text": "one"}),
        (2, {"text": ""}),
        (3, {"text": "two words"}),
    ]


def test_json_lines_take_what_the_task_is_asked_by(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"q": "Who?", "context": "Ann.", "id": n, "label": 0} for n in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = list(Records(path, "answer", {"question": "q"}))
    assert found[1] == (2, {"id": 1, "question": "Who?", "context": "Ann."})


def test_choices_of_several_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("context,x,y\nI,run,sleep\n")
    found = list(Records(path, "choose", {"choices": ["x", "y"]}))
    assert found == [(2, {"context": "I", "choices": ["run", "sleep"]})]


@pytest.mark.parametrize("form", FORMS)
def test_columnar_files_by_rows(tmp_path, form):
    columns = {"id": [7, 8], "q": ["Who?", "Why?"], "context": ["a", "b"], "label": [0, 1]}
    columns |= {"x": ["c", "d"], "y": ["e", None]}
    records = Records(write(tmp_path / f"a.{form}", columns), "answer", {"question": "q"})
    found = list(records)
    assert found[1] == ("row 1", {"id": 8, "question": "Why?", "context": "b"})
    assert records.size - 8 <= records.consumed <= records.size
    found = list(Records(records.path, "choose", {"choices": ["x", "q"]}))
    assert found[0] == ("row 0", {"id": 7, "context": "a", "choices": ["c", "Who?"]})
    table = answer_file._table(list(Records(records.path, "classify", {"text": "x"})), "a.parquet")
    assert table.place(1) == "a.parquet, row 1"
    with pytest.raises(ValueError, match=r"a.parquet, row 1: 'text' must be a string.*None"):
        answer_file._table(list(Records(records.path, "classify", {"text": "y"})), "a.parquet")
    with pytest.raises(ValueError, match=r"must be named 'qq'.*did you mean 'q'"):
        list(Records(records.path, "classify", {"text": "qq"}))
    with pytest.raises(ValueError, match=r"requires the column\(s\) text.*\['id', 'q', 'context'"):
        list(Records(records.path, "classify"))


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é\nb".encode())))
    assert texts("-") == ["é", "b"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    with pytest.raises(ValueError, match="standard input, line 2: invalid UTF-8 at byte 0"):
        texts("-")


def test_it_reads_no_more_than_it_is_asked_for(tmp_path):
    path = tmp_path / "large.txt"
    path.write_text("some text in a line\n" * 1_000_000)
    records = Records(path, "classify")
    assert len(list(itertools.islice(records, 1000))) == 1000
    assert 0 < records.consumed < records.size / 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,x\na,b\nc\n", "a.csv, line 3: the row has 1 columns, the first row has 2"),
        ("a.csv", 'text,x\na,"b\n', "a.csv, line 2: a quote opens here and never closes"),
        ("a.csv", 'text,x\na,"b"c\n', "a.csv, line 2: a quote opens here and closes in line 2"),
        ("a.csv", "body\na\n", "requires the column.s. text or first and second; .*'body'"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "a"}\n', "a.jsonl, line 2: 'text' is missing"),
        ("a.jsonl", '{"text": "a"}\n{', "a.jsonl, line 2 is not JSON"),
        ("a.jsonl", '["a"]', "a.jsonl, line 1: a line must be one JSON object"),
        ("a.pdf", "x", "The suffix of the input must name its format: .txt"),
        ("a.txt", "one\ntw\0o\n", "a.txt, line 2: text must not contain a NUL byte"),
    ],
)
def test_what_is_wrong_in_which_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        texts(tmp_path / name)


def test_a_blank_line_of_one_column_is_a_text_and_columns_have_names_of_their_own(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("text\na\n\nb\n")
    texts = [record["text"] for _, record in Records(path, "classify")]
    assert texts == read_table(path)["text"] == ["a", "", "b"]
    path.write_text("text,text\na,b\n")
    with pytest.raises(
        ValueError, match=r"line 1: column names must be unique.*Received: .'text', 'te"
    ):
        list(Records(path, "classify"))


def test_named_columns_come_before_those_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("question,answer,text,words,body\nwho,me,other,w,b\n")
    pair = {"first": "question", "second": "answer"}
    assert list(Records(path, "classify", pair)) == [(2, {"first": "who", "second": "me"})]
    assert list(Records(path, "classify", {"label": "body"})) == [(2, {"text": "other"})]
    assert list(Records(path, "classify", {"text": "text"})) == [(2, {"text": "other"})]
    assert list(Records(path, "tag", {"text": "body"})) == [(2, {"text": "b"})]
    with pytest.raises(ValueError, match=r"requires the column.*Received: .'question', 'answer'"):
        list(Records(path, "classify", {"first": "question"}))


@pytest.mark.parametrize("columns", [{"nonsense": "body"}, {"choices": ["a", "b"]}])
def test_columns_that_the_task_does_not_have(tmp_path, columns):
    (name,) = columns
    with pytest.raises(ValueError, match=rf"must map text, .* data of classify.*'{name}'"):
        Records(tmp_path / "a.csv", "classify", columns)


def test_lines_have_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("a line\n")
    lines = Records(tmp_path / "a.txt", "classify", {"text": "text"})
    assert list(lines) == [(1, {"text": "a line"})]
    for name in (tmp_path / "a.txt", "-"):
        with pytest.raises(ValueError, match=r"lines of text have no columns.*: text=review"):
            Records(name, "classify", {"text": "review"})


def test_a_pipe_is_lines_as_standard_input_is(monkeypatch):
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(b"\xef\xbb\xbfone\r\ntwo\n")
    assert texts(f"/dev/fd/{reading}") == ["one", "two"]
    os.close(reading)
    for name in ("-", "/dev/stdin"):
        content = io.BytesIO(b"\xef\xbb\xbfone\r\ntwo\n")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(content))
        assert texts(name) == ["one", "two"]


def test_names_of_columns_have_no_white_space_around_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id, text \n1,fox\n")
    assert list(Records(path, "classify")) == [(2, {"id": "1", "text": "fox"})]
