"""`kbert-finetune` as it is typed: a run, series, what is wrong with flags, a kill."""

import json
import re
import signal

import pytest
from absl import flags

import kbert
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from pipelines import evaluate, export, finetune, predict
from tests import columnar
from tests.killing import signalled
from tests.models.generators.tiny import tiny_decoder
from tests.pipelines.conftest import COLUMNS, QUICK
from tests.processes import ends_well, start_program


@pytest.fixture
def program(call, mail_file, preset, tmp_path):
    """Calls it on the mail with more flags; the folder is tmp_path/out."""

    def program(*more):
        data = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}", *COLUMNS)
        call(finetune, "--task=classify", *data, f"--output_dir={tmp_path / 'out'}", *more)

    return program


def test_a_run_leaves_model_numbers_report_and_picture(run_dir):
    results = json.loads((run_dir / "results.json").read_text())
    assert results["dev"]["accuracy"] == 1.0
    settings = json.loads((run_dir / "run.json").read_text())["settings"]
    assert (settings["epochs"], settings["batch_size"], settings["learning_rate"]) == (4, 8, 0.02)
    assert (run_dir / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")
    assert (run_dir / "dev_report.txt").read_text().startswith("class")
    answers = (run_dir / "dev_answers.jsonl").read_text().splitlines()
    assert len(answers) == 16
    assert {"text", "expected", "label"} <= set(json.loads(answers[0]))
    task = kbert.tasks.Task.from_preset(run_dir / "preset")
    assert type(task).__name__ == "TextClassifier"
    assert task.labels == ["ham", "spam"]


def test_a_column_of_weights_is_read_of_the_training_data_alone(call, mail_file, preset, tmp_path):
    header, *lines = mail_file.read_text().splitlines()
    path = tmp_path / "weighted.csv"
    path.write_text("\n".join([f"{header},w", *(f"{x},{i % 2}" for i, x in enumerate(lines))]))
    data = (f"--train={path}", f"--dev={mail_file}", f"--preset={preset}", *COLUMNS)
    more = ("--sample_weight=w", "--epochs=1", f"--output_dir={tmp_path / 'out'}")
    call(finetune, "--task=classify", *data, *more)
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert settings["sample_weight"] == "w"


def test_a_parquet_file_of_classes(call, mail_file, preset, tmp_path, caplog):
    _, *lines = mail_file.read_text().splitlines()
    kinds, bodies = zip(*(line.split(",") for line in lines), strict=True)
    numbers = [-1, *(["ham", "spam"].index(kind) for kind in kinds[1:])]
    columns = {"body": list(bodies), "kind": numbers}
    kind = columnar.classes("ham", "spam")
    path = columnar.write(tmp_path / "mail.parquet", columns, kind=kind)
    data = (f"--train={path}", f"--dev={mail_file}", f"--preset={preset}", *COLUMNS)
    call(finetune, "--task=classify", *data, "--epochs=1", f"--output_dir={tmp_path / 'out'}")
    assert f"{path}: 1 rows are left out: they have no label" in caplog.text
    task = kbert.tasks.TextClassifier.from_preset(tmp_path / "out" / "preset")
    assert task.labels == ["ham", "spam"]


@pytest.mark.slow
def test_elmo_is_a_preset_too(call, mail_file, tmp_path):
    config = kbert.ElmoConfig(
        character_size=4, filters=((1, 4), (2, 8)), num_highway=1, lstm_size=8, projection_size=6
    )
    kbert.Elmo(config).save_to_preset(tmp_path / "elmo", format="bilm")
    data = (f"--train={mail_file}", f"--dev={mail_file}", *COLUMNS, f"--preset={tmp_path / 'elmo'}")
    call(finetune, "--task=classify", *data, "--epochs=1", f"--output_dir={tmp_path / 'out'}")
    task = kbert.tasks.TextClassifier.from_preset(tmp_path / "out" / "preset")
    assert isinstance(task.encoder, kbert.models.ElmoEncoder)


@pytest.mark.slow
def test_a_decoder_is_a_preset_too(call, mail_file, tmp_path):
    tokenizer = kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    folder = tmp_path / "gpt2"
    decoder = tiny_decoder(vocabulary_size=tokenizer.vocabulary_size, max_positions=64)
    decoder.save_to_preset(folder, "huggingface")
    tokenizer.save(folder)
    data = (f"--train={mail_file}", f"--dev={mail_file}", *COLUMNS, f"--preset={folder}")
    more = ("--epochs=1", "--auxiliary_lm_weight=0.25", f"--output_dir={tmp_path / 'out'}")
    call(finetune, "--task=classify", *data, *more)
    steps = (tmp_path / "out" / "training" / "steps.jsonl").read_text().splitlines()
    assert {"lm_loss", "auxiliary", "cross_entropy"} <= set(json.loads(steps[-1]))
    task = kbert.tasks.Task.from_preset(tmp_path / "out" / "preset")
    assert task.reads_by_decoder
    assert task.auxiliary_lm_weight == 0.25
    assert task.predict(["red fox"])[0]["label"] in ("ham", "spam")


@pytest.mark.parametrize("flag", ["output_dir", "preset_dir", "export_dir"])
def test_the_model_that_is_read_is_not_written_over(call, mail_file, tmp_path, flag):
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    flags = (f"--train={mail_file}", f"--preset={base}", f"--output_dir={out}", f"--{flag}={base}")
    with pytest.raises(SystemExit, match=rf"must not be the folder of --preset.*--{flag}=.*base"):
        call(finetune, "--task=classify", *flags)
    assert not out.exists()


def test_what_cannot_be_written_is_told_before(call, mail_file, preset, tmp_path):
    flags = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}", *COLUMNS)
    more = (f"--output_dir={tmp_path / 'out'}", f"--preset_dir={mail_file}")
    with pytest.raises(SystemExit, match="must be a folder, or a path"):
        call(finetune, "--task=classify", *flags, *more)
    assert not (tmp_path / "out").exists()


def test_a_finished_run_is_shown(run_dir, call, mail_file, preset, tmp_path, capsys):
    data = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}", *COLUMNS)
    more = (f"--output_dir={run_dir}", f"--preset_dir={tmp_path / 'preset'}")
    call(finetune, "--task=classify", *data, *QUICK, *more)
    out = capsys.readouterr().out
    assert "classify: TextClassifier of ham, spam; examples: train 48, dev 16" in out
    assert f"{run_dir} already holds finished results:" in out
    # It needs its preset no more.
    gone = (f"--preset={tmp_path / 'gone'}", *(flag for flag in data if "--preset" not in flag))
    call(finetune, "--task=classify", *gone, *QUICK, *more)
    assert f"{run_dir} already holds finished results:" in capsys.readouterr().out
    assert "data  accuracy  macro_f1" in out
    assert "best accuracy after step" in out
    assert (tmp_path / "preset" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("flag", "function", "wanted"),
    [
        ("--seeds=3", "seeds", {"count": 3, "ensemble": False, "soup": False}),
        (
            "--grid",
            "grid",
            {
                "learning_rates": (5e-5, 4e-5, 3e-5, 2e-5),
                "batch_sizes": (16, 32),
                "epochs": (2, 3, 4),
            },
        ),
    ],
)
def test_series_and_settings_reach_the_library(program, monkeypatch, flag, function, wanted):
    class Asked(Exception):
        pass

    def series(experiment, folder, **settings):
        raise Asked(settings)

    monkeypatch.setattr(kbert.experiments, function, series)
    with pytest.raises(Asked) as asked:
        program(flag, "--layer_decay=0.8", "--class_weights=spam=3,ham=1", "--freeze=a/*,b/*")
    given = {"layer_decay": 0.8, "class_weights": {"spam": 3.0, "ham": 1.0}}
    assert asked.value.args[0] == {**wanted, **given, "freeze": ["a/*", "b/*"], "resume": ()}


def test_dry_run_writes_nothing(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        kbert.experiments, "preview", lambda experiment, **settings: "[CLS] looks good"
    )
    program("--dry_run")
    assert "[CLS] looks good" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (("--text_column=txt",), "mail.csv, line 1: exactly one column must be named 'txt'"),
        (("--pair_columns=a",), "--pair_columns must be two columns.*--pair_columns=a$"),
        (("--columns=context",), "--columns must be name=column: .*Received: --columns=context"),
        (("--class_weights=spam",), "must be label=weight, .*or balanced. Received: .*=spam$"),
        (("--seeds=2", "--grid"), "--seeds and --grid cannot be combined"),
        (
            ("--ensemble",),
            "several runs, --seeds=2 or more. Received: --ensemble with --seeds=None",
        ),
        (("--seeds=1", "--soup"), "Received: --soup with --seeds=1$"),
        (("--grid", "--learning_rate=0.1"), "with --grid: use .*Received: --learning_rate=0.1$"),
        (("--grid_epochs=7",), "without --grid. Received: --grid_epochs=7$"),
        (("--grid", "--grid_epochs=two"), "--grid_epochs must be numbers, .*: --grid_epochs=two"),
        (("--dev=tfds:sst2",), "Exactly one of `dev` and `dev_share`"),
        (("--train=nowhere.csv",), "nowhere.csv"),
        (("--preset=nowhere",), "nowhere"),
        (("--max_length=9999",), "max_length must be between 4 and 32"),
        (("--metric=acuracy",), "loss, accuracy, .*Received: metric='acuracy'"),
    ],
)
def test_mistakes_are_told_in_one_line(program, flag, message):
    with pytest.raises(SystemExit, match=f"^kbert-finetune: .*{message}") as exit:
        program(*flag)
    assert "\n" not in str(exit.value)


def test_a_finished_run_is_published_again(
    run_dir, call, mail_file, preset, tmp_path, capsys, monkeypatch
):
    """Over a model with another tokenizer, whose files go, and into a folder that exists."""
    older, exported = tmp_path / "older", tmp_path / "export"
    task = kbert.tasks.TextClassifier.from_preset(run_dir / "preset")
    tokenizer = kbert.BytePairTokenizer([*CHARACTERS, "<s>", "</s>", "<pad>", "<mask>"], [])
    config = task.encoder.config.replace(vocabulary_size=tokenizer.vocabulary_size)
    kbert.TextClassifier(kbert.Encoder(config), tokenizer, ["a", "b"]).save_to_preset(older)
    exported.mkdir()
    monkeypatch.setattr(kbert.TextClassifier, "export", lambda self, folder: f"{folder}/1")
    data = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}", *COLUMNS)
    more = (f"--output_dir={run_dir}", f"--preset_dir={older}", f"--export_dir={exported}")
    call(finetune, "--task=classify", *data, *QUICK, *more)
    out = capsys.readouterr().out
    assert f"model written to {older}\nSavedModel written to {exported}/1\n" in out
    written = {path.name: path.read_bytes() for path in (run_dir / "preset").iterdir()}
    assert {path.name: path.read_bytes() for path in older.iterdir()} == written


def test_flags_that_must_be_there(call):
    with pytest.raises(flags.IllegalFlagValueError, match="--preset must have a value"):
        call(finetune, "--task=sst2", "--train=a", "--output_dir=b")
    with pytest.raises(flags.IllegalFlagValueError, match="A task must be one of sst2, "):
        call(finetune, "--task=sst", "--train=a", "--output_dir=b", "--preset=c")


@pytest.mark.slow
def test_help_teaches_by_example():
    out, _ = start_program("finetune", "--help").communicate()
    assert "kbert-finetune --task=sst2 --train=SST-2/train.tsv" in out
    assert re.search("squad2 +QuestionAnswerer +SQuAD's JSON", out)
    for flag in ("seeds", "layer_decay", "class_weights", "dry_run", "grid_epochs"):
        assert f"-{flag}" in out or f"]{flag}" in out


@pytest.mark.slow
def test_killed_and_started_again_to_the_same_model(mail_file, preset, tmp_path):
    def start(folder, *more, before=""):
        data = (f"--train={mail_file}", "--dev_share=0.25", f"--preset={preset}", *COLUMNS)
        own = ("--batch_size=2", "--epochs=2", "--checkpoint_every=1", f"--output_dir={folder}")
        own = ("--task=classify", *data, *own, *more)
        return start_program("finetune", *own, light=False, before=before)

    ends_well(start(tmp_path / "whole"))
    for number in (signal.SIGKILL, signal.SIGTERM):
        folder = tmp_path / number.name
        broken = start(folder, before=signalled(number=number))
        broken.communicate()
        assert broken.returncode == (143 if number == signal.SIGTERM else -9)
        assert not (folder / "results.json").exists()
        export = tmp_path / f"export-{number.name}"
        out = ends_well(start(folder, f"--export_dir={export}"))
        assert f"SavedModel written to {export}/1" in out
        for name in ("preset/model.safetensors", "training/steps.jsonl", "dev_answers.jsonl"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_an_ensemble_and_a_soup_of_seeds(program, call, mail_file, tmp_path, capsys):
    program("--seeds=2", "--epochs=1", "--ensemble", "--soup")
    out = capsys.readouterr().out
    for name in ("ensemble", "soup"):
        assert f"\n{name}: {tmp_path / 'out' / name}\n" in out
        folder = tmp_path / "out" / name
        call(evaluate, f"--preset={folder}", f"--data={mail_file}", *COLUMNS)
        assert "accuracy" in capsys.readouterr().out
        answers = tmp_path / f"{name}.jsonl"
        texts = (f"--input={mail_file}", f"--output={answers}", COLUMNS[0])
        call(predict, f"--preset={folder}", *texts)
        assert len(answers.read_text().splitlines()) == 64
        call(export, f"--preset={folder}", f"--output_dir={tmp_path / name}", "--format=onnx")


@pytest.mark.slow
def test_seeds_and_grid_as_tables(program, tmp_path, capsys):
    program("--seeds=2", "--epochs=1")
    out = capsys.readouterr().out
    assert "\nmean " in out
    assert "\nsd " in out
    assert f"model: {tmp_path / 'out' / 'preset'}" in out
    program("--seeds=2", "--epochs=1")
    assert len(re.findall("finished before$", capsys.readouterr().out, re.MULTILINE)) == 2
    with pytest.raises(SystemExit, match="runs that were not requested"):
        program("--grid", "--grid_learning_rates=1e-3", "--grid_batch_sizes=8", "--grid_epochs=1")


@pytest.fixture
def tasks_file(mail_file, tmp_path):
    """A file of two tasks on the mail."""
    columns = 'columns = {text = "body", label = "kind"}'
    text = f'task = "classify"\ntrain = "{mail_file}"\ndev_share = 0.25\n{columns}\n'
    path = tmp_path / "tasks.toml"
    path.write_text(f"[tasks.first]\n{text}\n[tasks.second]\n{text}")
    return path


def test_several_tasks_of_a_file(call, tasks_file, preset, tmp_path, capsys):
    run = (f"--tasks={tasks_file}", f"--preset={preset}", f"--output_dir={tmp_path / 'out'}")
    call(finetune, *run, *QUICK, f"--preset_dir={tmp_path / 'copy'}")
    out = capsys.readouterr().out
    assert "second: classify: TextClassifier of ham, spam; examples: train 48, dev 16" in out
    assert re.search(r"^all tasks +.* 1\.0000$", out, re.MULTILINE)
    assert (tmp_path / "out" / "tasks" / "second" / "confusion_matrix.png").exists()
    (tmp_path / "texts.txt").write_text("the red fox king .\n")
    model, answers = tmp_path / "copy" / "second", tmp_path / "answers.jsonl"
    files = (f"--input={tmp_path / 'texts.txt'}", f"--output={answers}")
    call(predict, f"--preset={model}", *files)
    assert json.loads(answers.read_text())["label"] == "spam"
    with pytest.raises(SystemExit, match=r"load one of them, .*copy.first, .*copy.second"):
        call(predict, f"--preset={tmp_path / 'copy'}", *files)


WRONG_TASKS = {
    "both": (["--task=sst2"], "Exactly one of --task and --tasks"),
    "data": (["--train=x.csv", "--label_column=kind"], "in the file. Received: --"),
    "setting": (["--max_length=8"], "Received: max_length"),
    "combined": (["--seeds=2", "--ensemble"], "Received: ensemble for a MultiTaskExperiment"),
}


@pytest.mark.parametrize("what", WRONG_TASKS)
def test_flags_that_do_not_fit_a_file_of_tasks(call, tasks_file, preset, tmp_path, what):
    given, message = WRONG_TASKS[what]
    run = (f"--tasks={tasks_file}", f"--preset={preset}", f"--output_dir={tmp_path / 'out'}")
    with pytest.raises(SystemExit, match=re.escape(message)):
        call(finetune, *run, *given)
    assert not (tmp_path / "out").exists()


def test_a_task_or_a_file_of_tasks_must_be_given(call, preset, tmp_path):
    run = (f"--preset={preset}", f"--output_dir={tmp_path / 'out'}")
    with pytest.raises(SystemExit, match="Exactly one of --task and --tasks"):
        call(finetune, *run)
    with pytest.raises(SystemExit, match="--train must be given"):
        call(finetune, *run, "--task=sst2")
