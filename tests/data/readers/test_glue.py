"""GLUE's published layouts, each with its header, labels by name, and what is malformed named."""

import gzip
import logging

import pytest

from kbert.data import read_glue
from kbert.data.readers import GLUE, glue_task

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse"
MNLI = f"{MNLI} sentence2_parse sentence1 sentence2".split()
SNLI = "index captionID pairID sentence1_binary_parse sentence2_binary_parse sentence1_parse"
SNLI = f"{SNLI} sentence2_parse sentence1 sentence2 label1 gold_label".split()
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()


def write(path, *rows, start="") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = start + "".join("\t".join(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(path)


# (task, rows of the file, the columns it gives)
LAYOUTS = [
    (
        "CoLA",
        [["gj04", "1", "", 'He "said so.'], ["cj99", "0", "*", "Him said."]],
        {"text": ['He "said so.', "Him said."], "label": ["acceptable", "unacceptable"]},
    ),
    ("CoLA", [["index", "sentence"], ["0", "Go."]], {"id": ["0"], "text": ["Go."]}),
    (
        "SST-2",
        [["sentence", "label"], ["a gem ", "1"], ["dull ", "0"]],
        {"text": ["a gem ", "dull "], "label": ["positive", "negative"]},
    ),
    (
        "SST-2",
        [["a gem", "1"], ['"dull', "0"]],
        {"text": ["a gem", '"dull'], "label": ["positive", "negative"]},
    ),
    ("SST-2", [["index", "sentence"], ["0", "so"]], {"id": ["0"], "text": ["so"]}),
    (
        "MRPC",
        [["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], ["1", "70", "71", "A .", "B ."]],
        {"first": ["A ."], "second": ["B ."], "label": ["equivalent"]},
    ),
    (
        "MRPC",
        [["index", "#1 ID", "#2 ID", "#1 String", "#2 String"], ["0", "70", "71", "A .", "B ."]],
        {"id": ["0"], "first": ["A ."], "second": ["B ."]},
    ),
    (
        "STS-B",
        [STSB, ["7", "main", "MSRvid", "2012", "1", "none", "none", 'A "x', "B", "3.800"]],
        {"id": ["7"], "first": ['A "x'], "second": ["B"], "label": [3.8]},
    ),
    (
        "sts_b",
        [["sentence1", "sentence2", "score"], ["A", "B", "5"], ["C", "D", "0.25"]],
        {"first": ["A", "C"], "second": ["B", "D"], "label": [5.0, 0.25]},
    ),
    (
        "STS-B",
        [STSB[:-1], ["0", "g", "f", "2016", "1", "s", "s", "A", "B"]],
        {"id": ["0"], "first": ["A"], "second": ["B"]},
    ),
    (
        "QQP",
        [
            ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            ["9", "1", "2", "Why?", "How?", "0"],
        ],
        {"id": ["9"], "first": ["Why?"], "second": ["How?"], "label": ["not_duplicate"]},
    ),
    (
        "QQP",
        [["id", "question1", "question2"], ["0", "Why?", "How?"]],
        {"id": ["0"], "first": ["Why?"], "second": ["How?"]},
    ),
    (
        "MNLI",
        [[*MNLI, "label1", "gold_label"], ["3", *["-"] * 7, "P.", "H.", "neutral", "entailment"]],
        {"id": ["3"], "first": ["P."], "second": ["H."], "label": ["entailment"]},
    ),
    (
        "MNLI-mm",
        [
            [*MNLI, "label1", "label2", "label3", "label4", "label5", "gold_label"],
            ["3", *["-"] * 7, "P.", "H.", *["entailment"] * 5, "neutral"],
        ],
        {"id": ["3"], "first": ["P."], "second": ["H."], "label": ["neutral"]},
    ),
    (
        "MNLI",
        [MNLI, ["0", *["-"] * 7, "P.", "H."]],
        {"id": ["0"], "first": ["P."], "second": ["H."]},
    ),
    (
        "QNLI",
        [["index", "question", "sentence", "label"], ["5", "Who?", "He did.", "not_entailment"]],
        {"id": ["5"], "first": ["Who?"], "second": ["He did."], "label": ["not_entailment"]},
    ),
    (
        "RTE",
        [["index", "sentence1", "sentence2", "label"], ["5", "A.", "B.", "entailment"]],
        {"id": ["5"], "first": ["A."], "second": ["B."], "label": ["entailment"]},
    ),
    (
        "WNLI",
        [["index", "sentence1", "sentence2", "label"], ["5", "A.", "B.", "1"]],
        {"id": ["5"], "first": ["A."], "second": ["B."], "label": ["entailment"]},
    ),
    (
        "AX",
        [["index", "sentence1", "sentence2"], ["0", "A.", "B."]],
        {"id": ["0"], "first": ["A."], "second": ["B."]},
    ),
    (
        "SNLI",  # rows of one annotator and of five in one file
        [
            SNLI,
            ["0", *["-"] * 6, "P.", "H.", "neutral", "neutral"],
            ["1", *["-"] * 6, "Q.", "J.", *["entailment"] * 5, "contradiction"],
        ],
        {
            "id": ["0", "1"],
            "first": ["P.", "Q."],
            "second": ["H.", "J."],
            "label": ["neutral", "contradiction"],
        },
    ),
    (
        "SNLI",
        [["premise", "hypothesis", "label"], ["P .", "H .", "entailment"]],
        {"first": ["P ."], "second": ["H ."], "label": ["entailment"]},
    ),
]


@pytest.mark.parametrize(("task", "rows", "columns"), LAYOUTS)
def test_published_layouts(tmp_path, task, rows, columns):
    path = write(tmp_path / "file.tsv", *rows, start="\ufeff")
    table = read_glue(task, path)
    assert table.columns == columns
    header = rows[0][0] not in ("gj04", "a gem")
    assert table.place(0) == f"{path}, line {2 if header else 1}"


def test_every_task_is_tested():
    assert {id(glue_task(task)) for task, _, _ in LAYOUTS} == {id(t) for t in GLUE.values()}


def test_splits_of_a_folder(tmp_path):
    header = [*MNLI, "gold_label"]
    for name in ("train", "dev_matched", "dev_mismatched"):
        row = [name, *["-"] * 7, "P.", "H.", "neutral"]
        write(tmp_path / "MNLI" / f"{name}.tsv", header, row)
    assert read_glue("MNLI", tmp_path, split="train")["id"] == ["train"]
    assert read_glue("MNLI", tmp_path, split="dev")["id"] == ["dev_matched"]
    assert read_glue("MNLI-mm", tmp_path / "MNLI", split="dev")["id"] == ["dev_mismatched"]
    write(tmp_path / "RTE" / "dev.tsv.gz", ["sentence1", "sentence2"], ["A", "B"])
    assert read_glue("RTE", tmp_path, split="dev")["first"] == ["A"]
    write(tmp_path / "diagnostic" / "diagnostic.tsv", ["sentence1", "sentence2"], ["A", "B"])
    assert read_glue("AX", tmp_path, split="test")["second"] == ["B"]


def test_splits_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"MNLI in a folder has the splits .*Received: split=None"):
        read_glue("MNLI", tmp_path)
    with pytest.raises(ValueError, match=r"AX in a folder has the splits .'test'."):
        read_glue("AX", tmp_path, split="dev")
    with pytest.raises(FileNotFoundError, match=r"None of these files exists.*RTE/dev.tsv"):
        read_glue("RTE", tmp_path, split="dev")
    path = write(tmp_path / "dev.tsv", ["a", "1"])
    with pytest.raises(ValueError, match="split requires a folder"):
        read_glue("SST-2", path, split="dev")


QQP = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
# A line break in a question cuts the row in two, as in the published train.tsv.
BROKEN = [
    QQP,
    ["1", "2", "3", "A", "B", "1"],
    ["2", "3", "4", "C"],
    ["", "D", "0"],
    [*"34567", "0"],
]


def test_broken_rows_raise_or_are_counted(tmp_path, caplog):
    path = write(tmp_path / "train.tsv", *BROKEN)
    with pytest.raises(ValueError, match=r"train.tsv, line 3: the row has 4 columns, .* has 6"):
        read_glue("QQP", path)
    with caplog.at_level(logging.WARNING):
        table = read_glue("QQP", path, on_error="count")
    assert table["id"] == ["1", "3"]
    assert table.place(1).endswith("line 5")
    assert "2 malformed rows are skipped, at the lines 3, 4" in caplog.text


def test_pairs_without_a_gold_label_are_counted(tmp_path, caplog):
    header = ["premise", "hypothesis", "label"]
    path = write(tmp_path / "dev.tsv", header, ["P", "H", "-"], ["Q", "J", "neutral"])
    with caplog.at_level(logging.WARNING):
        assert read_glue("SNLI", path)["first"] == ["Q"]
    assert "1 rows have no gold label and are skipped" in caplog.text


@pytest.mark.parametrize(
    ("task", "rows", "match"),
    [
        ("SST-2", [["sentence", "label"], ["a", "2"]], r"line 2: the label must be one of \['0', "),
        ("SST-2", [["sentence", "label"], ["a", ""]], "line 2: the label must be one of"),
        ("RTE", [["sentence1", "sentence2", "label"], ["a", "b", "no"]], "line 2: .*'entailment'"),
        ("STS-B", [["sentence1", "sentence2", "score"], ["a", "b", "x"]], "line 2: the score must"),
        (
            "STS-B",
            [["sentence1", "sentence2", "score"], ["a", "b", "nan"]],
            "line 2: a label must be",
        ),
        ("CoLA", [["gj04", "1", "", "a"], ["gj04", "1", "a"]], "line 2: the row has 3 columns"),
        ("RTE", [["0", "A", "B", "entailment"]], "line 1: the header of a file of RTE must have"),
        ("CoLA", [["a", "b"]], r"line 1: the header of a file of CoLA.*Received: \['a', 'b'\]"),
        ("RTE", [["sentence1", "sentence2"]], "holds no rows below its header"),
        ("RTE", [[""]], "holds no rows"),
        ("SNLI", [SNLI, [*"0123456", "P", "H", "neutral"]], "line 2: the row has 10 columns"),
    ],
)
def test_malformed_files_are_named(tmp_path, task, rows, match):
    path = write(tmp_path / "file.tsv", *rows)
    with pytest.raises(ValueError, match=f"file.tsv.*{match}"):
        read_glue(task, path)


def test_unknown_tasks_and_policies_raise(tmp_path):
    with pytest.raises(ValueError, match=r"one of GLUE, such as \['sst2'.*Received: 'SST-3'"):
        read_glue("SST-3", tmp_path)
    with pytest.raises(ValueError, match=r"on_error must be 'raise' or 'count'. Received: 'skip'"):
        read_glue("RTE", tmp_path, on_error="skip")
