"""Data sets of TensorFlow Datasets by name in the programs: one for each kind of task."""

import json

import pytest

import kbert
from pipelines import evaluate, finetune, predict
from tests.data_sets import data_dir, store

CONTEXT = "the red fox and the tree ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with data_dir(tmp_path_factory.mktemp("tfds")) as folder:
        yield folder


@pytest.fixture
def tuned(call, preset, tmp_path):
    """(task, name of the data set, *flags): the results of a run, whose folder is tmp_path/out."""

    def tuned(task, name, *more):
        data = (f"--train=tfds:{name}", f"--dev=tfds:{name}", f"--preset={preset}")
        quick = ("--epochs=1", "--batch_size=4", f"--output_dir={tmp_path / 'out'}")
        call(finetune, f"--task={task}", *data, *quick, *more)
        return json.loads((tmp_path / "out" / "results.json").read_text())

    return tuned


def test_a_run_an_evaluation_and_predictions(mail, folder, tuned, call, tmp_path, capsys):
    names = {"ham": "negative", "spam": "positive"}
    rows = [
        {"sentence": text, "label": names[label], "idx": i}
        for i, (text, label) in enumerate(zip(mail["text"], mail["label"], strict=True))
    ]
    test = [{**row, "label": -1, "sentence": f"{row['sentence']} {row['idx']}"} for row in rows]
    store(folder, "glue/sst2", train=rows, validation=rows[:8], test=test)
    results = tuned("sst2", "glue/sst2", "--learning_rate=0.02", "--epochs=4")
    assert results["dev"]["accuracy"] == 1.0
    out = tmp_path / "out"
    assert len((out / "dev_answers.jsonl").read_text().splitlines()) == 8
    with pytest.raises(SystemExit, match=r"test set of SST-2 has 1821 rows. Received: 64 answers"):
        tuned("sst2", "glue/sst2", "--test=tfds:glue/sst2", f"--output_dir={tmp_path / 'other'}")
    call(evaluate, f"--preset={out / 'preset'}", "--task=sst2", "--data=tfds:glue/sst2")
    assert "accuracy  1.0000" in capsys.readouterr().out
    answers = tmp_path / "answers.jsonl"
    call(predict, f"--preset={out / 'preset'}", "--input=tfds:glue/sst2", f"--output={answers}")
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [answer["text"] for answer in found] == [row["sentence"] for row in test]
    assert [answer["id"] for answer in found[:3]] == ["0", "1", "2"]
    arguments = (f"--preset={out / 'preset'}", "--input=tfds:glue/sst2:train[:2]")
    call(predict, *arguments, "--text_column=sentence", "--output=-")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_data_set_for_another_task_is_refused(folder, tuned):
    store(folder, "imdb_reviews", train=[{"text": "the fox", "label": "pos"}])
    with pytest.raises(SystemExit, match="tfds:imdb_reviews is a data set for --task=classify"):
        tuned("tag", "imdb_reviews")
    with pytest.raises(SystemExit, match=r"no such data set; the nearest names are .*hellaswag"):
        tuned("swag", "swag")
    store(folder, "lambada", train=[{"passage": "the fox"}])
    with pytest.raises(SystemExit, match=r"has no known layout: name the features with the text"):
        tuned("classify", "lambada")


WORDS = {
    "tokens": ["the", "red", "fox"],
    "pos": ["DT", "JJ", "NN"],
    "chunks": ["B-NP", "I-NP", "I-NP"],
    "ner": ["O", "O", "B-PER"],
}
QUESTION = {"title": "", "context": CONTEXT, "question": "the tree ?"}
COPA = {"premise": "the fox", "choice1": "red", "choice2": "tree", "question": "cause"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["ner", "pos", "tag"])
def test_tags(task, folder, tuned):
    store(folder, "conll2003", train=[WORDS] * 8, dev=[WORDS])
    assert "accuracy" in tuned(task, "conll2003")["dev"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["squad", "answer"])
def test_answers(task, folder, tuned):
    rows = [
        {**QUESTION, "id": f"q{i}", "answers": [{"text": "red fox", "answer_start": 4}]}
        for i in range(8)
    ]
    store(folder, "squad", train=rows, validation=rows[:2])
    assert {"exact", "f1"} <= set(tuned(task, "squad")["dev"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["swag", "choose"])
def test_choices(task, folder, tuned):
    row = {
        "context": "the fox",
        "endings": ["red .", "tree .", "book ."],
        "activity_label": "",
        "label": 1,
        "split_type": "indomain",
        "source_id": "",
    }
    store(folder, "hellaswag", train=[row] * 8, validation=[row])
    assert "accuracy" in tuned(task, "hellaswag")["dev"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["stsb", "regress", "embed"])
def test_numbers(task, folder, tuned):
    rows = [
        {"sentence1": "the fox", "sentence2": text, "label": number, "idx": i}
        for i, (text, number) in enumerate([("the tree", 0.5), ("red fox", 4.5)] * 4)
    ]
    store(folder, "glue/stsb", train=rows, validation=rows)
    assert any("spearman" in name for name in tuned(task, "glue/stsb")["dev"])


@pytest.mark.slow
def test_several_labels(folder, tuned):
    features = kbert.data.readers.tfds.tfds.make_builder("goemotions").info.features
    row = {name: name == "joy" for name in features} | {"comment_text": "the red fox"}
    store(folder, "goemotions", train=[row] * 8, validation=[row])
    assert tuned("multilabel", "goemotions")["dev"]["micro_f1"] >= 0


@pytest.mark.slow
def test_multirc_from_files_has_an_exact_match_of_questions(preset, call, tmp_path):
    answers = [{"text": text, "idx": i, "label": i % 2} for i, text in enumerate(["red", "fox"])]
    questions = [{"question": "the tree ?", "idx": i, "answers": answers} for i in range(3)]
    records = [{"idx": i, "passage": {"text": CONTEXT, "questions": questions}} for i in range(2)]
    (tmp_path / "MultiRC").mkdir()
    for split in ("train", "val"):
        path = tmp_path / "MultiRC" / f"{split}.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    data = (f"--train={tmp_path}", f"--dev={tmp_path}", f"--preset={preset}")
    call(finetune, "--task=multirc", *data, "--epochs=1", f"--output_dir={tmp_path / 'out'}")
    dev = json.loads((tmp_path / "out" / "results.json").read_text())["dev"]
    assert {"f1", "exact_match"} <= set(dev)


@pytest.mark.slow
def test_a_run_on_copa_ends_with_a_submission(folder, tuned, tmp_path):
    rows = [{**COPA, "label": i % 2, "idx": i} for i in range(8)]
    test = [{**COPA, "label": -1, "idx": i} for i in range(500)]
    store(folder, "super_glue/copa", train=rows, validation=rows, test=test)
    tuned("copa", "super_glue/copa", "--test=tfds:super_glue/copa")
    lines = (tmp_path / "out" / "COPA.jsonl").read_text().splitlines()
    assert [json.loads(line)["idx"] for line in lines] == list(range(500))


@pytest.mark.slow
def test_record_answers_by_spans_of_the_passage(folder, tuned):
    rows = [
        {
            "passage": CONTEXT,
            "query": "the @placeholder",
            "entities": ["fox", "tree"],
            "answers": ["tree"],
            "idx": {"passage": i, "query": i},
        }
        for i in range(8)
    ]
    store(folder, "super_glue/record", train=rows, validation=rows)
    assert {"exact", "f1"} <= set(tuned("record", "super_glue/record")["dev"])
