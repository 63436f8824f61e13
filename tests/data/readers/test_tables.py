"""CSV, TSV, JSON lines and plain lines: what was written is read, and what is bad is named."""

import csv
import gzip
import io
import json
import os
import re

import pytest
from hypothesis import example, given, settings, strategies as st

from kbert.data import read_table
from kbert.text import open_sources


def write(path, content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '\ufeffreview,stars,extra\r\n"Good,\n""cheap""",5,x\r\nBad,1,\r\n'),
        ("a.tsv", 'stars\treview\n5\tGood,\\n"cheap"\n1\tBad'),
        (
            "a.jsonl",
            '{"review": "Good,\\n\\"cheap\\"", "stars": "5"}\n\n{"review":"Bad","stars":"1"}',
        ),
    ],
)
def test_named_columns(tmp_path, name, content, zipped):
    path = write(tmp_path / (name + zipped), content)
    table = read_table(path, columns={"text": "review", "label": "stars"})
    first = 'Good,\\n"cheap"' if name == "a.tsv" else 'Good,\n"cheap"'
    assert table.columns == {"text": [first, "Bad"], "label": ["5", "1"]}
    assert table.place(1) == f"{path}, line {({'a.csv': 4, 'a.tsv': 3, 'a.jsonl': 3})[name]}"


def test_without_columns_all_are_taken_by_their_names(tmp_path):
    path = write(tmp_path / "a.csv", "text,label,age\nHi,ham,3\n")
    assert read_table(path).columns == {"text": ["Hi"], "label": ["ham"], "age": ["3"]}
    path = write(tmp_path / "a.jsonl", '{"words": ["Hi"], "labels": ["X"], "n": 3}\n')
    assert read_table(path).columns == {"words": [["Hi"]], "labels": [["X"]], "n": [3]}


def test_without_a_header_columns_are_positions(tmp_path):
    path = write(tmp_path / "a.tsv", 'one "long\t0\nstring\t1\n')
    table = read_table(path, header=False, columns={"text": 0, "label": 1})
    assert table.columns == {"text": ['one "long', "string"], "label": ["0", "1"]}
    assert table.place(0).endswith("line 1")


def test_other_delimiters_and_quoting(tmp_path):
    path = write(tmp_path / "a.csv", 'text;label\n"a;b";x\n')
    assert read_table(path, delimiter=";")["text"] == ["a;b"]
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"a\tb"\tx\n')
    assert read_table(path, quoted=True)["text"] == ["a\tb"]
    path = write(tmp_path / "odd.dat", "text,label\na,x\n")
    assert read_table(path, format="csv")["label"] == ["x"]


def test_lines_are_texts(tmp_path):
    path = write(tmp_path / "a.txt", 'One\t"text\r\n\n third ')
    assert read_table(path)["text"] == ['One\t"text', "", " third "]


def test_numbers_and_lists_of_names_as_labels(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,4.5\nb,3\n")
    assert read_table(path, numeric_labels=True)["label"] == [4.5, 3.0]
    path = write(tmp_path / "b.csv", "text,label\na,toxic; rude\nb,\n")
    assert read_table(path, label_separator=";")["label"] == [["toxic", "rude"], []]
    path = write(
        tmp_path / "a.jsonl", '{"text": "a", "label": "4.5"}\n{"text": "b", "label": "3"}\n'
    )
    assert read_table(path, numeric_labels=True)["label"] == [4.5, 3.0]
    path = write(tmp_path / "b.jsonl", '{"text": "a", "label": "toxic; rude"}\n')
    assert read_table(path, label_separator=";")["label"] == [["toxic", "rude"]]
    path = write(tmp_path / "c.jsonl", '{"text": "a", "label": ["x;y"]}\n')
    assert read_table(path, label_separator=";")["label"] == [["x;y"]]


def test_several_files_by_pattern(tmp_path):
    for name in "ba":
        write(tmp_path / f"{name}.csv", f"text,label\n{name},x\n")
    table = read_table(tmp_path / "*.csv")
    assert table["text"] == ["a", "b"]
    assert table.place(1) == f"{tmp_path / 'b.csv'}, line 2"
    write(tmp_path / "c.csv", "text,stars\nc,x\n")
    with pytest.raises(ValueError, match=r"same columns. Received: \['text', 'label'\] in .*a.csv"):
        read_table(tmp_path / "*.csv")
    with pytest.raises(FileNotFoundError, match="No file matches"):
        read_table(tmp_path / "*.tsv")


def test_huge_fields(tmp_path):
    long = 'a "quoted", line\n' * 200_000  # beyond the csv module's limit
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["text"], [long]])
    assert read_table(write(tmp_path / "a.csv", buffer.getvalue()))["text"] == [long]


def test_a_blank_line_is_an_empty_text_where_there_is_one_column(tmp_path):
    assert read_table(write(tmp_path / "a.tsv", "text\n\nb\n"))["text"] == ["", "b"]
    assert read_table(write(tmp_path / "b.tsv", "text\tlabel\n\nb\tx\n"))["text"] == ["b"]


CASES = [
    ("a.csv", "text,label\na,x\nb\n", "line 3: the row has 1 columns, the first row has 2"),
    ("a.tsv", 'text\tlabel\n"a\tb"\tx\n', "line 2: the row has 3 columns.*quoted=True"),
    ("a.csv", 'text,label\na,x\n"b\n,y\nc,z\n', "line 3: a quote opens here and never closes"),
    ("a.csv", 'text,label\n"x\ny","b\n', "line 3: a quote opens here and never closes"),
    ("a.csv", 'text,label\n"b\nc" d,y\n', "line 2: a quote opens here and closes in line 3, where"),
    ("a.csv", "text,label\na,x\nb, \n", "line 3: the label is empty"),
    (
        "a.csv",
        b"text,label\na,x\nb\xff,y\n",
        r"invalid UTF-8 at byte \d+ \(line 3\).*Convert the f",
    ),
    ("a.csv", b"text,label\na,x\nb\0,y\n", "line 3: text must not contain a NUL byte"),
    ("a.csv", "text,label\n", "holds no rows below its header"),
    ("a.csv", "\n\n", "holds no rows"),
    ("a.csv", "", "is empty"),
    ("a.csv", "text,text\na,b\n", "line 1: exactly one column must be named 'text'"),
    ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
    ("a.jsonl", '{"text": "a"}\n["b"]\n', "line 2: a line must be one JSON object"),
    ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', r"line 2: .*Received: \['txt'\], without \['tex"),
    ("a.jsonl", '{"text": "a"}\n{"text": null}\n', "line 2: 'text' must be a string. Received: N"),
    ("a.jsonl", '{"text": "\\ud800"}\n', "line 1: 'text' contains half a surrogate pair"),
    ("a.jsonl", '{"label": "a"}\n{"label": 1}\n', r"line 1\); integers \(1 at .*line 2"),
    ("a.jsonl", "{}\n", "line 1: the first object must name the columns"),
    ("a.jsonl", "\n \n", "holds no rows"),
    ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
    ("a.jsonl", '{"n": ' + "9" * 5000 + "}", "line 1 is not JSON"),
]


@pytest.mark.parametrize(("name", "content", "match"), CASES)
def test_bad_rows_are_named_by_file_and_line(tmp_path, name, content, match):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=f"{re.escape(path)}.*{match}"):
        read_table(path)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\n" + b"a,x\n" * 1000)[:-12])
    with pytest.raises(ValueError, match=r"a.csv.gz is truncated"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("a.csv", {"columns": {"text": "body"}}, r"named 'body'. Received: \['text', 'label'\]"),
        ("a.csv", {"columns": {"text": "txt"}}, "did you mean 'text'"),
        ("a.csv", {"columns": {"text": 2}}, "has the columns 0 to 1. Received: 2"),
        ("a.csv", {"header": False}, "name its columns.*has 2 columns"),
        (
            "a.csv",
            {"format": "xml"},
            "format must be 'csv', 'tsv', 'jsonl', 'lines' or 'columnar'. Received: 'xml'",
        ),
        ("a.csv", {"numeric_labels": True}, "line 2: the label must be a number. Received: 'x'"),
        ("a.csv", {"numeric_labels": True, "label_separator": ";"}, "not both"),
        ("a.csv", {"numeric_labels": True, "columns": {"text": "text"}}, "no column 'label'"),
        ("a.csv", {"columns": {"label": "y"}, "optional": ["label"]}, r"none of the.*\['y'\]"),
        ("a.txt", {"header": False, "delimiter": "|"}, "Received: delimiter='|', header=False for"),
        ("a.orc", {}, "The suffix of the input must name its format: .txt.*Received: .*a.orc"),
    ],
)
def test_options_that_do_not_fit_raise(tmp_path, name, options, match):
    path = write(tmp_path / name, "text,label\na,x\n")
    with pytest.raises(ValueError, match=match):
        read_table(path, **options)


def test_a_number_that_is_none_is_named_by_its_line(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1\nb,nan\n")
    with pytest.raises(ValueError, match=r"a.csv, line 3: a label must be .* finite number"):
        read_table(path, numeric_labels=True)


def test_a_folder_is_no_table(tmp_path):
    with pytest.raises(ValueError, match="Received: the folder"):
        read_table(tmp_path)


CELLS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(rows=ROWS, ending=st.sampled_from(["\n", "\r\n"]), delimiter=st.sampled_from(",;\t"))
@example(rows=[("", ""), ('"', "\n\r\n"), (",", '""')], ending="\n", delimiter=",")
def test_csv_round_trip(tmp_path_factory, rows, ending, delimiter):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=ending, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "note"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", buffer.getvalue())
    table = read_table(path, delimiter=delimiter)
    assert list(zip(table["text"], table["note"], strict=True)) == rows


@settings(deadline=None, max_examples=60)
@given(rows=ROWS)
def test_csv_as_the_csv_module_reads_it(tmp_path_factory, rows):
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("text", "note"), *rows])
    path = write(tmp_path_factory.mktemp("csv") / "a.csv", buffer.getvalue())
    expected = list(csv.reader(io.StringIO(buffer.getvalue(), newline=""), strict=True))[1:]
    table = read_table(path)
    assert [*map(list, zip(table["text"], table["note"], strict=True))] == expected


PLAIN = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\t\n\r"), max_size=8
)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=5))
@example(rows=[("\u2028\x85\x0b\u00a0", '"')])
def test_tsv_round_trip(tmp_path_factory, rows):
    content = "".join(f"{first}\t{second}\n" for first, second in [("text", "note"), *rows])
    table = read_table(write(tmp_path_factory.mktemp("tsv") / "a.tsv", content))
    assert list(zip(table["text"], table["note"], strict=True)) == rows


@settings(deadline=None, max_examples=60)
@given(rows=ROWS, ascii_only=st.booleans())
def test_json_lines_round_trip(tmp_path_factory, rows, ascii_only):
    records = [json.dumps({"text": a, "note": b}, ensure_ascii=ascii_only) for a, b in rows]
    table = read_table(write(tmp_path_factory.mktemp("json") / "a.jsonl", "\n".join(records)))
    assert list(zip(table["text"], table["note"], strict=True)) == rows


@settings(deadline=None, max_examples=150)
@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='text,"\n\r\t{}[]:label0é', max_size=60).map(str.encode),
    ),
    suffix=st.sampled_from([".csv", ".tsv", ".jsonl", ".txt", ".csv.gz"]),
)
@example(content=b'text,label\n"', suffix=".csv")
def test_any_bytes_are_read_or_named(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    path.write_bytes(content)
    try:
        table = read_table(path)
    except ValueError as error:
        message = str(error)
    else:
        assert len(table) > 0
        return
    assert str(path) in message
    whole = ("is empty", "holds no rows", "is not valid gzip data", "is truncated")
    assert "line" in message or any(part in message for part in whole)


def test_a_file_of_lines_has_one_column(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    for columns in ({"first": 0}, {"first": "text"}):
        assert read_table(path, columns=columns).columns == {"first": ["one", "two"]}
    with pytest.raises(
        ValueError, match=r"a.txt has one column, a text per line.*Received: .*'label': 'star"
    ):
        read_table(path, columns={"text": "text", "label": "stars"})
    with pytest.raises(ValueError, match=r"Received: columns=\{'text': 1\}"):
        read_table(path, columns={"text": 1})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text, label \nfox,spam \ndog, ham\nfox,spam\n"),
        ("a.tsv", "text\t label\nfox\tspam \ndog\tham\nfox\tspam\r\n"),
        ("a.jsonl", '{"text": "fox", "label": "spam "}\n{"text": "dog", "label": "ham"}\n'
                    '{"text": "fox", "label": "spam"}\n'),
    ],
)  # fmt: skip
def test_white_space_around_names_of_classes_and_columns_is_no_part_of_them(
    tmp_path, name, content
):
    path = write(tmp_path / name, content)
    assert read_table(path)["label"] == ["spam", "ham", "spam"]
    columns = {"label": "label", "text": "text"}
    assert read_table(path, columns=columns)["label"] == ["spam", "ham", "spam"]


def test_columns_that_a_file_may_lack(tmp_path):
    columns = {"first": "a", "second": "b", "label": "label"}
    for name, content in (
        ("a.csv", "a,b\nx,y\n"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n'),
    ):
        path = write(tmp_path / name, content)
        table = read_table(path, columns=columns, optional=["label"])
        assert table.columns == {"first": ["x"], "second": ["y"]}
        with pytest.raises(ValueError, match="label"):
            read_table(path, columns=columns)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.json", '[{"text": "a"},\n {"text": "b"}]', r"is a JSON array, .* one object per line"),
        ("a.jsonl", '\n[\n{"text": "a"}]', r"is a JSON array, .*Received: '\['"),
        ("a.csv", "text,label\ra,b\rc,d\r", r"lines end in .*Received: one line, with \\r inside"),
        ("a.txt", "one\rtwo", r"lines end in .*Received: one line, with \\r inside"),
    ],
)
def test_files_of_another_form_are_told_which(tmp_path, name, content, match):
    with pytest.raises(ValueError, match=rf"{name}.*{match}"):
        read_table(write(tmp_path / name, content))


def test_a_pipe_is_read_once_in_the_format_that_is_said():
    reading, writing = os.pipe()
    with open(writing, "w") as file:
        file.write("\ufefftext,label\nfox,spam\n")
    with pytest.raises(ValueError, match=r"The format of a pipe cannot be inferred.*/dev/fd/"):
        read_table(f"/dev/fd/{reading}")
    table = read_table(f"/dev/fd/{reading}", format="csv")
    assert table.columns == {"text": ["fox"], "label": ["spam"]}
    with pytest.raises(
        ValueError, match="A corpus is read several times, but a pipe can be read only once"
    ):
        open_sources(f"/dev/fd/{reading}")
    os.close(reading)
