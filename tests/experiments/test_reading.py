"""Files of named tasks, and files in which the user says which column is which."""

import json

import pytest

from kbert.experiments import named_task, read
from kbert.experiments.reading import TableParts, labels_of
from tests import columnar, libraries


def table(task, path, **options):
    return read(named_task(task), path, **options)


@pytest.fixture
def write(tmp_path):
    def write(name, *lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    return write


def test_columns_by_name(write):
    path = write("r.csv", "stars,review,label", "5,Good,x", "10,Better,y", "1,Broke,z")
    found = table("classify", path, columns={"text": "review", "label": "stars"})
    assert found.columns == {
        "text": ["Good", "Better", "Broke"],
        "label": ["5", "10", "1"],
    }
    assert labels_of(found, named_task("classify")) == ["1", "5", "10"]
    assert found.place(2).endswith("r.csv, line 4")


@pytest.mark.parametrize("data", [{"body": ["Good"], "label": ["5"]}, "r.csv", "tfds:imdb_reviews"])
def test_a_column_that_the_task_does_not_have_is_refused(data):
    rule = r"must map text, first, second, label, .* in the data of classify. Received: 'txet'"
    with pytest.raises(ValueError, match=rule):
        read(named_task("classify"), data, columns={"txet": "body"})


def test_the_label_keeps_its_usual_name_where_only_the_text_has_another(write):
    path = write("r.tsv", "question\tanswer\tlabel", "a?\tb\tyes", "c?\td\tno")
    columns = {"first": "question", "second": "answer"}
    found = table("classify", path, columns=columns)
    assert list(found.columns) == ["label", "first", "second"]


@pytest.mark.parametrize(
    ("task", "columns"),
    [("classify", {"text": "review", "label": "stars"}), ("classify", {}), ("multilabel", {})],
)
def test_a_column_of_weights_is_read_beside_the_tasks(write, task, columns):
    names = [columns.get(name, name) for name in ("label", "text")]
    path = write("r.csv", f"{','.join(names)},w,more", "5,Good,1,x", "10,Better,0.5,y")
    assert table(task, path, columns=columns, others=["w"])["w"] == ["1", "0.5"]
    if columns:
        assert "w" not in table(task, path, columns=columns)
    with pytest.raises(ValueError, match="'heavy'"):
        table("classify", path, columns={"label": names[0], "text": names[1]}, others=["heavy"])


def test_classes_of_datasets_where_a_task_wants_numbers():
    label = libraries.ClassLabel(["no", "yes"])
    pairs = {"first": ["a", "b"], "second": ["c", "d"], "label": [1, 0]}
    assert table("embed", libraries.Dataset(pairs, label=label))["label"] == [1.0, 0.0]
    choices = {"context": ["a", "b"], "choices": [["c", "d"]] * 2, "label": [1, 0]}
    assert table("choose", libraries.Dataset(choices, label=label))["label"] == [1, 0]


def test_classes_that_are_integers_become_names(write):
    path = write("r.jsonl", *(json.dumps({"text": t, "label": n}) for t, n in (("a", 0), ("b", 3))))
    assert table("classify", path)["label"] == ["0", "3"]
    assert table("classify", {"text": ["a"], "label": [2]})["label"] == ["2"]
    with pytest.raises(ValueError, match="row 0 of the data: a class must be a name or an integer"):
        table("classify", {"text": ["a"], "label": [0.5]})


def test_numbers_of_a_regression(write):
    path = write("r.csv", "text,label", "a,4.5", "b,-1")
    assert table("regress", path)["label"] == [4.5, -1.0]
    bad = write("bad.csv", "text,label", "a,4.5", "b,high")
    with pytest.raises(ValueError, match=r"bad.csv, line 3: the label must be a number"):
        table("regress", bad)


def test_any_number_of_labels(write):
    path = write("m.csv", "text,label", "a,x|y", "b,", "c,y")
    found = table("multilabel", path, label_separator="|")
    assert found["label"] == [["x", "y"], [], ["y"]]
    assert labels_of(found, named_task("multilabel")) == ["x", "y"]


def test_one_label_has_no_separator(write):
    path = write("m.csv", "text,label", "a,x|y")
    with pytest.raises(ValueError, match=r"any number of labels .*='\|' and classify"):
        table("classify", path, label_separator="|")


def test_a_column_for_each_label(write):
    path = write("m.csv", "text,toxic,threat", "a,1,1", "b,0,0", "c,0,1")
    found = table("multilabel", path, columns={"label": ["toxic", "threat"]})
    assert found["label"] == [["toxic", "threat"], [], ["threat"]]
    bad = write("bad.csv", "text,toxic,threat", "a,1,yes")
    with pytest.raises(ValueError, match=r"bad.csv, line 2: .*must be 0 or 1.*'threat': 'yes'"):
        table("multilabel", bad, columns={"label": ["toxic", "threat"]})


def test_a_column_for_each_choice(write):
    path = write("c.csv", "context,a,b,gold", "It rains. I,swim.,stay.,1")
    columns = {"choices": ["a", "b"], "label": "gold"}
    found = table("choose", path, columns=columns)
    assert (found["choices"], found["label"]) == ([["swim.", "stay."]], [1])
    bad = write("bad.csv", "context,a,b,gold", "It rains. I,swim.,stay.,b")
    with pytest.raises(ValueError, match=r"bad.csv, line 2: the label must be the index"):
        table("choose", bad, columns=columns)


def test_tags_of_columns_and_of_json_lines(write):
    three = write("t.conll", "Ann NNP B-per", "sings VBZ O", "", "Yes UH O")
    assert table("ner", three)["labels"] == [["B-per", "O"], ["O"]]
    assert table("pos", three)["labels"] == [["NNP", "VBZ"], ["UH"]]
    assert table("tag", three, columns={"labels": "1"})["labels"][1] == ["UH"]
    assert table("pos", three, columns={"label": "2"})["labels"][1] == ["O"]
    with pytest.raises(ValueError, match=r"must be a number from 0.*Received: 'upos'"):
        table("pos", three, columns={"label": "upos"})
    with pytest.raises(
        ValueError, match=r"that can be named .* \['labels'\].*Received: {'text': 'word'}"
    ):
        table("pos", three, columns={"text": "word"})
    lines = write("t.jsonl", json.dumps({"words": ["Ann"], "tags": ["B-per"]}))
    found = table("tag", lines, columns={"labels": "tags"})
    assert labels_of(table("ner", three), named_task("ner")) == ["O", "B-per"]
    assert found.columns == {"words": [["Ann"]], "labels": [["B-per"]]}


def test_questions_of_json_lines(write):
    record = {"question": "Who?", "passage": "Ann.", "answers": ["Ann"], "answer_starts": [0]}
    path = write("q.jsonl", json.dumps(record))
    found = table("answer", path, columns={"context": "passage"})
    assert found["context"] == ["Ann."]
    assert "passage" not in found
    with pytest.raises(ValueError, match="that can be named for SQuAD's JSON"):
        table("answer", write("squad.json", "{}"), columns={"context": "passage"})


def test_columnar_files_of_every_task(tmp_path):
    columns = {"review": ["a", "b"], "stars": [1, 0], "scores": [0.5, 2.0], "w": [1.0, 3.0]}
    columns |= {"kinds": [["x", "y"], []], "tokens": [["Ann"], ["b", "c"]], "ner": [[1], [0, 0]]}
    columns |= {"question": ["Who?", "Why?"], "context": ["Ann.", "b"], "end": ["d", "e"]}
    columns["answers"] = [{"text": ["Ann"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    features = {
        "stars": columnar.classes("bad", "good"),
        "ner": {"feature": columnar.classes("O", "B-PER"), "_type": "Sequence"},
    }
    path = columnar.write(tmp_path / "a.parquet", columns, **features)
    names = {"text": "review", "label": "stars"}
    found = table("classify", path, columns=names, others=["w"])
    assert found.columns == {"w": [1.0, 3.0], "text": ["a", "b"], "label": ["good", "bad"]}
    assert labels_of(found, named_task("classify")) == ["bad", "good"]
    assert table("regress", path, columns={**names, "label": "scores"})["label"] == [0.5, 2.0]
    found = table("multilabel", path, columns={**names, "label": "kinds"})
    assert found["label"] == [["x", "y"], []]
    found = table("tag", path, columns={"words": "tokens", "labels": "ner"})
    assert found.columns == {"words": columns["tokens"], "labels": [["B-PER"], ["O", "O"]]}
    found = table("answer", path, columns={"context": "review"})
    assert (found["context"], found["answers"]) == (["a", "b"], [["Ann"], []])
    assert table("answer", path)["answer_starts"] == [[0], []]
    found = table("choose", path, columns={"choices": ["end", "review"], "label": "stars"})
    assert found["choices"] == [["d", "a"], ["e", "b"]]
    parts = TableParts(named_task("classify"), path, names)
    assert (len(parts), parts.places["bad"]) == (2, f"{path}, row 1")


def test_benchmarks_have_their_own_columns(write):
    path = write("dev.tsv", "sentence\tlabel", "fine\t1", "dull\t0")
    assert table("sst2", path)["label"] == ["positive", "negative"]
    with pytest.raises(ValueError, match="The columns of sst2's files are fixed"):
        table("sst2", path, columns={"text": "sentence"})


def test_data_in_memory_with_other_names():
    found = table("classify", {"body": ["a"], "label": ["x"]}, columns={"text": "body"})
    assert found.columns == {"text": ["a"], "label": ["x"]}
    assert table("classify", found, columns={"text": "body"}).columns == found.columns
    with pytest.raises(ValueError, match="no column 'body'"):
        table("classify", {"words": [["a"]]}, columns={"text": "body"})
    many = {"text": ["a", "b"], "toxic": [1, 0]}
    assert table("multilabel", many, columns={"label": ["toxic"]})["label"] == [["toxic"], []]


def test_a_folder_of_glue_has_its_splits(tmp_path):
    for split, label in (("train", 0), ("dev", 1)):
        (tmp_path / f"{split}.tsv").write_text(f"sentence\tlabel\nfine\t{label}\n")
    assert table("sst2", str(tmp_path), split="dev")["label"] == ["positive"]
    assert table("sst2", str(tmp_path / "dev.tsv"), split="train")["label"] == ["positive"]


def test_malformed_rows_are_skipped_where_a_published_file_has_some(tmp_path, caplog):
    path = tmp_path / "train.tsv"
    row = "1\t2\t3\twho?\twhy?\t1\n"
    path.write_text(f"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n{row}2\t5\n{row}")
    assert table("qqp", path)["label"] == ["duplicate"] * 2
    assert "1 malformed rows are skipped, at the lines 3" in caplog.text
    path.write_text("sentence\tlabel\nfine\t1\nfine\n")
    with pytest.raises(ValueError, match=r"train.tsv, line 3: the row has 1 columns"):
        table("sst2", path)


def test_pairs_to_embed_need_no_scores(tmp_path):
    columns = {"first": "question", "second": "context"}
    path = tmp_path / "pairs.csv"
    path.write_text("question,context\nwho?,the fox\n")
    table = read(named_task("embed"), path, columns=columns)
    assert table.columns == {"first": ["who?"], "second": ["the fox"]}
    path.write_text("question,context,label\nwho?,the fox,0.5\n")
    assert read(named_task("embed"), path, columns=columns)["label"] == [0.5]
    with pytest.raises(ValueError, match="'score'"):
        read(named_task("embed"), path, columns={**columns, "label": "score"})
    path.write_text("sentence\nthe fox\n")
    assert read(named_task("denoise"), path, columns={"text": "sentence"}).columns == {
        "text": ["the fox"]
    }
