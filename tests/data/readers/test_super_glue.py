"""SuperGLUE: its published files, the same examples in TensorFlow Datasets, and submissions."""

import json

import pytest

from kbert.catalog.super_glue import SUPER_GLUE
from kbert.data import read_super_glue, read_tfds, write_super_glue_submission
from kbert.data.readers.super_glue import super_glue_task
from tests.data.super_glue import FILES
from tests.data_sets import data_dir, store_file


def write(path, records):
    path.write_text("".join(f"{json.dumps(x)}\n" for x in records), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_table_of_its_task(name, tmp_path):
    records, expected = FILES[name]
    path = write(tmp_path / "val.jsonl", records)
    table = read_super_glue(name, path)
    assert table.columns == expected
    assert table.place(0) == f"{path}, line 1"


@pytest.mark.parametrize("name", FILES)
def test_tensorflow_datasets_has_the_same_table(name, tmp_path):
    """Its own generator reads the file."""
    path = write(tmp_path / "val.jsonl", FILES[name][0])
    config = name.removeprefix("superglue_")
    with data_dir(tmp_path / "tfds"):
        store_file(tmp_path / "tfds", f"super_glue/{config}", path, "validation")
        assert read_tfds(f"super_glue/{config}", task=name).columns == FILES[name][1]


def test_the_corrected_spans_of_wsc_are_read_too(tmp_path):
    path = write(tmp_path / "val.jsonl", FILES["wsc"][0][:1])
    with data_dir(tmp_path / "tfds"):
        store_file(tmp_path / "tfds", "super_glue/wsc.fixed", path, "validation")
        table = read_tfds("super_glue/wsc.fixed", task="wsc")
        assert table["text"] == FILES["wsc"][1]["text"][:1]


def test_a_folder_and_a_test_set_without_labels(tmp_path):
    (tmp_path / "ReCoRD").mkdir()
    record = json.loads(json.dumps(FILES["record"][0][0]))
    for question in record["qas"]:
        del question["answers"]
    write(tmp_path / "ReCoRD" / "test.jsonl", [record])
    for folder in (tmp_path, tmp_path / "ReCoRD"):
        table = read_super_glue("ReCoRD", folder, split="test")
        assert set(table.columns) == {"id", "question", "context"}
    with pytest.raises(FileNotFoundError, match=r"train\.jsonl"):
        read_super_glue("ReCoRD", tmp_path, split="train")


@pytest.mark.parametrize(
    ("name", "record", "match"),
    [
        (
            "boolq",
            {"question": "q", "idx": 0},
            r"line 1 is not a record of BoolQ: KeyError 'passage",
        ),
        ("cb", {**FILES["cb"][0][0], "label": "no"}, "the label must be one of .*Received: 'no'"),
        ("wsc", {"text": "a", "target": 3, "idx": 0}, "is not a record of WSC"),
        (
            "wsc",
            {**FILES["wsc"][0][0], "text": "Mark"},
            "is not a record of WSC: IndexError",
        ),
        ("multirc", {"idx": 0, "passage": "text"}, "is not a record of MultiRC"),
        (
            "record",
            {
                "idx": 0,
                "passage": {"text": "x"},
                "qas": [{"query": "q", "idx": 0, "answers": [{"text": "y"}]}],
            },
            "holds no rows that a task can read.*no answer occurs in the passage",
        ),
    ],
)
def test_malformed_records_raise(name, record, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        read_super_glue(name, write(tmp_path / "val.jsonl", [record]))


def test_unknown_tasks_raise():
    with pytest.raises(ValueError, match=r"such as \['boolq'.*Received: 'bolq'"):
        super_glue_task("bolq")


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize(
    ("name", "answer", "label"),
    [
        ("boolq", "True", "true"),
        ("cb", "neutral", "neutral"),
        ("copa", 1, 1),
        ("record", "Bolt", "Bolt"),
        ("superglue_rte", "entailment", "entailment"),
        ("wic", "False", "false"),
        ("wsc", "True", "True"),
        ("axb", "not_entailment", "not_entailment"),
        ("axg", "entailment", "entailment"),
    ],
)
def test_a_submission_has_a_line_for_each_example(name, answer, label, tmp_path):
    task = SUPER_GLUE[name]
    ids = [str(index) for index in reversed(range(task.test_rows))]
    path = write_super_glue_submission(name, ids, [answer] * task.test_rows, tmp_path)
    assert path == str(tmp_path / f"{task.name}.jsonl")
    assert lines(path) == [{"idx": index, "label": label} for index in range(task.test_rows)]


def test_a_submission_of_multirc_has_a_line_for_each_passage(tmp_path):
    ids = [f"{i // 100}-{i // 4}-{i}" for i in range(SUPER_GLUE["multirc"].test_rows)]
    answers = ["True" if i % 3 else "False" for i in range(len(ids))]
    written = lines(write_super_glue_submission("MultiRC", ids, answers, tmp_path / "m.jsonl"))
    assert [line["idx"] for line in written] == list(range(97))
    first, second = written[0]["passage"]["questions"][:2]
    assert first == {"idx": 0, "answers": [{"idx": i, "label": int(i % 3 > 0)} for i in range(4)]}
    assert second["idx"] == 1
    count = sum(len(q["answers"]) for line in written for q in line["passage"]["questions"])
    assert count == len(ids)


@pytest.mark.parametrize(
    ("ids", "answers", "match"),
    [
        (["0"], ["True"], "The test set of WSC has 146 rows. Received: 1 answers"),
        (["0"] * 146, ["True"] * 146, "an id of its own. Received: 1 ids"),
        ([str(i) for i in range(146)], ["yes"] * 146, r"among \['False', 'True'\]. Received"),
    ],
)
def test_answers_that_the_server_refuses_raise(ids, answers, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        write_super_glue_submission("wsc", ids, answers, tmp_path)
