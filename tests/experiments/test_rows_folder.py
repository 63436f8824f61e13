"""Training data larger than memory: read in parts, tokenised once, trained on from disk."""

import json
import os

import pytest

import kbert
from kbert.data.readers import tables
from kbert.experiments import Experiment, preview, previews, run, seeds

SETTINGS = {"epochs": 3, "batch_size": 16, "learning_rate": 3e-2, "verbose": 0}
SHORT = {**SETTINGS, "epochs": 1, "batch_size": 32}


@pytest.fixture
def files(mail, tmp_path, monkeypatch):
    """The mail in a file that is read ten rows at a time, and the same as development data."""
    monkeypatch.setattr(tables.table_parts, "__defaults__", (10,))
    path = tmp_path / "mail.jsonl"
    rows = zip(mail["text"], mail["label"], strict=True)
    path.write_text("".join(json.dumps({"message": t, "kind": x}) + "\n" for t, x in rows))
    return {
        "train": path,
        "dev": path,
        "columns": {"text": "message", "label": "kind"},
        "rows_folder": tmp_path / "rows",
    }


def written(folder):
    return {path.name: os.stat(path).st_mtime_ns for path in folder.glob("rows*")}


def test_it_learns_as_in_memory_and_every_run_reads_one_folder(preset, mail, files, tmp_path):
    in_memory = {name: x for name, x in files.items() if name != "rows_folder"}
    whole = Experiment("classify", preset=preset, **in_memory)
    experiment = Experiment("classify", preset=preset, **files)
    assert experiment.labels == whole.labels == ["ham", "spam"]
    assert experiment.summary() == whole.summary()
    assert len(experiment.head) == 10 < len(experiment.train) == len(mail["text"])

    result = run(experiment, tmp_path / "run", **SETTINGS)
    assert result.dev["accuracy"] == 1.0
    other = run(whole, tmp_path / "whole", **SETTINGS)
    assert (result.dev, result.best_loss) == (other.dev, other.best_loss)
    rows = kbert.data.read_rows(files["rows_folder"])
    assert len(rows) == rows.num_examples == len(experiment.train)

    before = written(files["rows_folder"])
    assert len(seeds(experiment, tmp_path / "seeds", count=2, **SHORT).results) == 2
    assert written(files["rows_folder"]) == before
    assert run(experiment, tmp_path / "run", **SETTINGS) == result


def test_other_data_or_weights_are_refused(preset, files, tmp_path):
    run(Experiment("classify", preset=preset, **files), tmp_path / "run", **SHORT)
    with pytest.raises(ValueError, match="class_weights"):
        run(
            Experiment("classify", preset=preset, **files),
            tmp_path / "weighted",
            **SHORT,
            class_weights={"spam": 2.0},
        )
    with files["train"].open("a") as file:
        file.write('{"message": "the red fox .", "kind": "spam"}\n')
    longer = Experiment("classify", preset=preset, **files)
    with pytest.raises(ValueError, match=r"another run.*data.train was '\d+ rows"):
        run(longer, tmp_path / "run", **SHORT)
    with pytest.raises(ValueError, match="were made from other data"):
        run(longer, tmp_path / "other", **SHORT)


def test_a_preview_shows_the_first_rows_and_counts_all(preset, files, monkeypatch):
    monkeypatch.setattr(previews, "_WARM", 1)
    monkeypatch.setattr(previews, "_TIMED", 2)
    experiment = Experiment("classify", preset=preset, **files)
    text = preview(experiment, examples=1, epochs=3, batch_size=8)
    total = len(experiment.train)
    assert text.startswith(f"{files['train']}, line 1: ")
    assert f"{total}, {total} sequences" in text
    assert f"{total // 8} per epoch, {3 * total // 8} in total" in text
    assert not files["rows_folder"].exists()


def test_what_cannot_be_read_in_parts_is_refused(preset, files, mail, tmp_path):
    def make(name="classify", **changes):
        return Experiment(name, preset=preset, **{**files, **changes})

    with pytest.raises(ValueError, match=r"development data in `dev`. Received: .*dev_share=0.1"):
        make(dev=None, dev_share=0.1)
    with pytest.raises(ValueError, match=r"can be read in parts.* for answer"):
        make("answer", columns={})
    with pytest.raises(ValueError, match=r"can be read in parts.* for sst2"):
        make("sst2", columns={}, train=tmp_path)
    with pytest.raises(ValueError, match="can be read in parts"):
        make(train=mail)
    with files["train"].open("a") as file:
        file.write('{"message": "a pen", "kind": "new"}\n')
    lines = len(mail["text"]) + 1
    with pytest.raises(ValueError, match=rf"line {lines}: the label 'new' must be one of"):
        make(labels=["ham", "spam"])
    with files["train"].open("a") as file:
        file.write('{"message": "a pen"}\n')
    with pytest.raises(ValueError, match=rf"line {lines + 1}"):
        make()
    empty = tmp_path / "empty.csv"
    empty.write_text("message,kind\n")
    with pytest.raises(ValueError, match=r"empty.csv holds no rows"):
        make(train=empty)
