"""`kbert-evaluate` as it is typed."""

import json

import pytest

import kbert
from kbert.tasks.fine_tuning.predictor import Predictor
from pipelines import evaluate
from tests.pipelines.conftest import COLUMNS


def test_metrics_report_answers_and_picture(run_dir, call, mail_file, tmp_path, capsys):
    arguments = (f"--preset={run_dir / 'preset'}", f"--data={mail_file}", *COLUMNS)
    call(evaluate, *arguments, f"--output_dir={tmp_path}")
    out = capsys.readouterr().out
    assert "class      precision  recall      f1  support" in out
    assert "accuracy  1.0000" in out
    assert json.loads((tmp_path / "metrics.json").read_text())["accuracy"] == 1.0
    assert (tmp_path / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "test_answers.jsonl").read_text().splitlines()) == 64


def test_a_submission_for_glue(preset, call, tmp_path, capsys):
    labels = ["not_entailment", "entailment"]
    task = kbert.tasks.TextClassifier.from_preset(preset, labels=labels, new_head=True)
    task.save_to_preset(tmp_path / "model")
    data = tmp_path / "test.tsv"
    rows = "".join(f"{n}\tthe fox\tthe dog\n" for n in range(146))
    data.write_text(f"index\tsentence1\tsentence2\n{rows}")
    arguments = (f"--preset={tmp_path / 'model'}", f"--data={data}", "--task=wnli", "--submission")
    call(evaluate, *arguments, f"--output_dir={tmp_path / 'out'}")
    assert "146 answers written to" in capsys.readouterr().out
    assert len((tmp_path / "out" / "WNLI.tsv").read_text().splitlines()) == 147
    with pytest.raises(SystemExit, match="--submission requires --output_dir"):
        call(evaluate, *arguments)
    tuned = (f"--output_dir={tmp_path / 'out'}", "--tune_threshold", "--preset_dir=x")
    with pytest.raises(SystemExit, match=r"with --submission,.*: --tune_threshold=True, --preset_"):
        call(evaluate, *arguments, *tuned)


def test_a_threshold_found_on_the_data_is_kept(preset, call, tmp_path, capsys):
    task = kbert.tasks.TextClassifier.from_preset(
        preset, labels=["x", "y"], multi_label=True, new_head=True
    )
    task.save_to_preset(tmp_path / "model")
    data = tmp_path / "d.jsonl"
    records = [{"text": "red fox", "label": ["x"]}, {"text": "tree", "label": []}]
    data.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    arguments = (f"--preset={tmp_path / 'model'}", f"--data={data}", "--tune_threshold")
    call(evaluate, *arguments, f"--preset_dir={tmp_path / 'tuned'}")
    tuned = kbert.tasks.Task.from_preset(tmp_path / "tuned")
    assert f"threshold={tuned.threshold:.4g}" in capsys.readouterr().out
    assert tuned.threshold != task.threshold
    kbert.tasks.TextEmbedder(task.encoder, task.tokenizer).save_to_preset(tmp_path / "vectors")
    for folder, message in (
        ("model", "--preset_dir must not be the folder of --preset"),
        ("vectors", "contains another model.*'embed', for one of the task 'classify'"),
    ):
        content = (tmp_path / folder / "kbert.json").read_bytes()
        with pytest.raises(SystemExit, match=message):
            call(evaluate, *arguments, f"--preset_dir={tmp_path / folder}")
        assert (tmp_path / folder / "kbert.json").read_bytes() == content


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--task=squad",),
            "The task squad requires a QuestionAnswerer. Received: a TextClassifier",
        ),
        (("--tune_threshold",), "Received: a TextClassifier"),
        (("--preset_dir=x",), "--preset_dir requires --tune_threshold"),
        (("--submission", "--output_dir=TMP"), "requires a task of GLUE or SuperGLUE"),
        (("--label_column=body",), "a label must be one of|never"),
    ],
)
def test_mistakes_are_told_before_the_work(
    run_dir, call, mail_file, tmp_path, flags, message, monkeypatch
):
    monkeypatch.setattr(Predictor, "_answer", None)
    flags = [flag.replace("TMP", str(tmp_path)) for flag in flags]
    arguments = (f"--preset={run_dir / 'preset'}", f"--data={mail_file}", *COLUMNS)
    with pytest.raises(SystemExit, match=f"^kbert-evaluate: .*({message})"):
        call(evaluate, *arguments, *flags)


def test_data_without_labels_are_told_before_the_work(run_dir, call, tmp_path, monkeypatch):
    monkeypatch.setattr(Predictor, "_answer", None)
    path = tmp_path / "mail.csv"
    path.write_text("text,kind\nthe red fox,spam\n")
    with pytest.raises(SystemExit, match=r"^kbert-evaluate: There is no column 'label' in .*mail"):
        call(evaluate, f"--preset={run_dir / 'preset'}", f"--data={path}")


def test_a_pretrained_model_is_no_fine_tuned_one(preset, call, mail_file):
    with pytest.raises(SystemExit, match=r"^kbert-evaluate: "):
        call(evaluate, f"--preset={preset}", f"--data={mail_file}")
