"""`kbert-predict` as it is typed."""

import json
from pathlib import Path

import pandas
import pytest

import kbert
from kbert.experiments import answer_file
from kbert.tasks.fine_tuning.predictor import Predictor
from pipelines import evaluate, predict
from tests import columnar
from tests.killing import ends_killed, signalled
from tests.processes import ends_well, start_program

ROOT = Path(kbert.__path__[0]).parent
TEXTS = ["the red fox king .", "", "the tree book moon ."]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


def answers(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_in_answers_out(run_dir, call, texts, tmp_path, capsys):
    arguments = (f"--preset={run_dir / 'preset'}", f"--input={texts}")
    call(predict, *arguments, f"--output={tmp_path / 'a.jsonl'}")
    found = answers(tmp_path / "a.jsonl")
    assert [answer["text"] for answer in found] == TEXTS
    assert (found[0]["label"], found[2]["label"]) == ("spam", "ham")
    assert "3 answers in" in capsys.readouterr().err
    call(predict, *arguments, f"--output={tmp_path / 'a.jsonl'}")
    assert "a.jsonl is complete: 3 answers" in capsys.readouterr().err
    with texts.open("a") as file:
        file.write("one more\n")
    with pytest.raises(SystemExit, match=r"bytes of the input was .*, is "):
        call(predict, *arguments, f"--output={tmp_path / 'a.jsonl'}")
    texts.write_text("".join(f"{text}\n" for text in TEXTS))
    call(predict, *arguments, "--output=-")
    assert [json.loads(x)["text"] for x in capsys.readouterr().out.splitlines()] == TEXTS


def test_scores_of_tokens(run_dir, call, texts, tmp_path):
    arguments = (f"--preset={run_dir / 'preset'}", f"--input={texts}")
    output = tmp_path / "a.jsonl"
    call(predict, *arguments, f"--output={output}", "--attributions=gradient_x_input")
    task = kbert.TextClassifier.from_preset(run_dir / "preset")
    wanted = kbert.attributions(task, TEXTS, method="gradient_x_input", verbose=0)
    for answer, attribution in zip(answers(output), wanted, strict=True):
        found = answer["attributions"]
        assert (found["label"], found["tokens"]) == (answer["label"], attribution.tokens)
        assert found["scores"] == pytest.approx(attribution.scores.tolist(), abs=1e-4)
    for others in ([], ["--attributions=rollout"]):
        with pytest.raises((SystemExit, ValueError), match="attributions"):
            call(predict, *arguments, f"--output={output}", *others)


def test_columns_of_a_table(run_dir, call, mail_file, tmp_path):
    arguments = (f"--preset={run_dir / 'preset'}", f"--input={mail_file}", "--text_column=body")
    call(predict, *arguments, f"--output={tmp_path / 'a.jsonl'}")
    found = answers(tmp_path / "a.jsonl")
    assert len(found) == 64
    assert found[0]["label"] == "spam"


def test_a_parquet_file_has_the_answers_of_csv(run_dir, call, mail_file, tmp_path):
    path = columnar.write(tmp_path / "mail.parquet", pandas.read_csv(mail_file).to_dict("list"))
    for name in (mail_file, path):
        flags = ("--text_column=body", f"--output={tmp_path / 'a'}{Path(name).suffix}.jsonl")
        call(predict, f"--preset={run_dir / 'preset'}", f"--input={name}", *flags)
    assert answers(tmp_path / "a.parquet.jsonl") == answers(tmp_path / "a.csv.jsonl")
    flags = ("--text_column=body", "--label_column=kind", f"--output_dir={tmp_path / 'measured'}")
    call(evaluate, f"--preset={run_dir / 'preset'}", f"--data={path}", *flags)
    assert json.loads((tmp_path / "measured/metrics.json").read_text())["accuracy"] == 1.0


def test_an_interrupted_one_resumes(run_dir, call, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_file, "CHUNK", 1)
    asked = []
    ask = Predictor.predict_and_count

    def interrupted(self, data, **options):
        asked.append(data)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(self, data, **options)

    arguments = (f"--preset={run_dir / 'preset'}", f"--input={texts}")
    arguments += (f"--output={tmp_path / 'a.jsonl'}",)
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "predict_and_count", interrupted)
        with pytest.raises(SystemExit) as stopped:
            call(predict, *arguments)
    assert stopped.value.code == 130
    assert len(answers(tmp_path / "a.jsonl")) == 2
    call(predict, *arguments)
    assert [answer["text"] for answer in answers(tmp_path / "a.jsonl")] == TEXTS


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--input=TEXTS.pdf", "The suffix of the input must name its format"),
        ("--input=nowhere.txt", "nowhere.txt"),
        ("--output=TEXTS", "already exists without texts"),
    ],
)
def test_mistakes_are_told_in_one_line(run_dir, call, texts, tmp_path, flag, message):
    arguments = (f"--input={texts}", f"--output={tmp_path / 'a.jsonl'}")
    flag = flag.replace("TEXTS", str(texts))
    texts.with_name(f"{texts.name}.pdf").touch()
    with pytest.raises(SystemExit, match=f"^kbert-predict: .*{message}"):
        call(predict, f"--preset={run_dir / 'preset'}", *arguments, flag)
    assert texts.read_text().startswith(TEXTS[0])


@pytest.mark.slow
def test_killed_and_started_again_to_the_same_answers(run_dir, tmp_path):
    large = tmp_path / "large.txt"
    large.write_text("".join(f"the fox number {n} .\n" for n in range(8000)))

    def start(output, before=""):
        flags = (f"--preset={run_dir / 'preset'}", f"--input={large}", f"--output={output}")
        return start_program("predict", *flags, before=before)

    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    ends_well(start(whole))
    ends_killed(start(broken, before=signalled("kbert.io.outputs:GrowingOutput._append", calls=2)))
    assert 0 < len(broken.read_bytes()) < len(whole.read_bytes())
    ends_well(start(broken))
    assert broken.read_bytes() == whole.read_bytes()
