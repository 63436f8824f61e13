"""Several tasks of a file on one encoder: read, shown, trained, measured, resumed."""

import dataclasses
import json

import numpy as np
import pytest

import kbert
from kbert.distillation import DistillationExperiment
from kbert.experiments import (
    Experiment,
    MultiTaskExperiment,
    Result,
    Series,
    Settings,
    multi_task,
    preview,
    previews,
    read_task_file,
    run,
    seeds,
)
from tests.harness import to_numpy

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
QUICK = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-2, "verbose": 0}
TASKS = """
sampling = "sqrt"
defaults = {max_length = 24}

[tasks.rte]
train = "RTE"
dev = "RTE/dev.tsv"

[tasks.mail]
task = "classify"
train = "mail.csv"
dev_share = 0.25
test = "mail.csv"
columns = {text = "body", label = "kind"}
max_length = 16

[tasks.score]
task = "regress"
train = "score.csv"
dev_share = 0.25
metric = "spearman"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, mail):
    """A folder with `tasks.toml` and its data."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = list(zip(mail["label"], mail["text"], strict=True))
    (folder / "RTE").mkdir()
    for split, classes in (("train", rows), ("dev", rows[:16])):
        labels = [("entailment", "not_entailment")[label == "spam"] for label, _ in classes]
        lines = [f"{i}\t{classes[i][1]}\tfox\t{label}" for i, label in enumerate(labels)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *lines])
        (folder / "RTE" / f"{split}.tsv").write_text(f"{text}\n")
    (folder / "mail.csv").write_text("kind,body\n" + "".join(f"{x},{t}\n" for x, t in rows))
    scores = [f"{text},{float(label == 'spam')}\n" for label, text in rows]
    (folder / "score.csv").write_text("text,label\n" + "".join(scores))
    (folder / "tasks.toml").write_text(TASKS)
    return folder


@pytest.fixture(scope="module")
def experiment(folder, preset):
    return read_task_file(folder / "tasks.toml", preset=preset)


@pytest.fixture(scope="module")
def finished(experiment, tmp_path_factory):
    return run(experiment, tmp_path_factory.mktemp("run") / "out", **QUICK)


def test_a_file_says_what_arguments_would(experiment, folder, preset):
    assert list(experiment.experiments) == ["rte", "mail", "score"]
    assert experiment.fit_options == {"sampling": "sqrt", "steps_per_epoch": None}
    lengths = [own.max_length for own in experiment.own_settings.values()]
    assert lengths == [24, 16, 24]
    assert [own.metric for own in experiment.own_settings.values()] == [
        "accuracy",
        None,
        "spearman",
    ]
    assert experiment.summary().splitlines() == [
        "rte: TextClassifier of entailment, not_entailment; examples: train 64, dev 16",
        "mail: classify: TextClassifier of ham, spam; examples: train 48, dev 16, test 64",
        "score: regress: TextRegressor; examples: train 48, dev 16",
    ]
    content = {"tasks": {"mail": {"task": "classify", "train": "mail.csv", "dev_share": 0.25}}}
    content["tasks"]["mail"]["columns"] = {"text": "body", "label": "kind"}
    (folder / "tasks.json").write_text(json.dumps(content))
    again = read_task_file(folder / "tasks.json", preset=preset)
    mail = experiment.experiments["mail"]
    assert again.experiments["mail"].train.checksum == mail.train.checksum


WRONG = {
    "not TOML": ("[tasks.rte", r"tasks.* must be TOML, or JSON named \.json"),
    "no task": ("sampling = 'sqrt'", "Names of tasks must .* Received: no task"),
    "no table": ("[tasks]\nrte = 3", r"a table for each task, \[tasks\.NAME\]"),
    "name": ("[tasks.'a-b']\ntrain = 'x'", "Names of tasks must .* Received: 'a-b'"),
    "key": (
        "[tasks.rte]\ntrain = 'RTE'\nmax_lenght = 3",
        r"\[tasks\.rte\]: .*Did you mean: max_length.* Received: 'max_lenght'",
    ),
    "key of the file": ("samplin = 'sqrt'\n[tasks.rte]", "Did you mean: sampling"),
    "kind": ("[tasks.praise]\ntrain = 'x'", r"\[tasks\.praise\]: A task must be one of"),
    "a run's setting": ("epochs = 2\n[tasks.rte]", r"apply to all tasks.* Received: epochs"),
    "a run's setting of a task": (
        "[tasks.rte]\ntrain = 'RTE'\nlearning_rate = 1e-3",
        r"\[tasks\.rte\]: .*apply to all tasks.* Received: learning_rate",
    ),
    "task": ("[tasks.rte]\ntask = 3", "`task` must be a string"),
    "sampling": ("sampling = 'often'\n[tasks.rte]", "`sampling` must be one of annealed"),
    "train": ("[tasks.rte]\ndev = 'RTE'", "`train` must be given"),
    "type": ("[tasks.rte]\ntrain = 'RTE'\nmax_length = 'x'", "`max_length` must be a whole"),
    "no dev": ("[tasks.rte]\ntrain = 'RTE'", r"\[tasks\.rte\]: Exactly one of `dev`"),
    "decoder": (
        "[tasks.summarize]\ntrain = 'mail.csv'\ndev_share = 0.5\n"
        "columns = {text = 'body', target = 'kind'}",
        "Only tasks on an encoder .* Received: a TextToText as summarize",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_file_may_not_say(what, folder, preset):
    content, message = WRONG[what]
    path = folder / "wrong.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        read_task_file(path, preset=preset)


def test_settings_of_single_tasks_are_refused(experiment, preset, mail):
    given = {"max_length": 8, "dropout": 0, "tune_threshold": False}
    with pytest.raises(ValueError, match=r"\[tasks\.NAME\].* Received: dropout, max_len.*, tune"):
        experiment.settings(**given)
    with pytest.raises(ValueError, match=r"single tasks only\. Received: freeze, prune_w"):
        experiment.settings(prune_weights="magnitude", freeze=("encoder/*",))
    assert experiment.settings(freeze=(), quantization_aware=False) == experiment.settings()
    for metric in ("accuracy", "rte_acuracy"):
        with pytest.raises(ValueError, match=rf"mean, loss, .*rte_accuracy.*Received: '{metric}'"):
            experiment.make_task(experiment.settings(metric=metric))
    experiment.make_task(experiment.settings(metric="rte_accuracy"))
    with pytest.raises(ValueError, match=r"single task\. Received: soup for a MultiTask"):
        seeds(experiment, "nowhere", count=2, soup=True)
    mail = Experiment("classify", preset=preset, train=mail, dev_share=0.25)
    with pytest.raises(ValueError, match=r"others are the run's\. Received: epochs of mail"):
        MultiTaskExperiment({"mail": mail}, {"mail": {"epochs": 2}})
    with pytest.raises(ValueError, match=r"those of the tasks, mail\. Received: male"):
        MultiTaskExperiment({"mail": mail}, {"male": {}})
    with pytest.raises(ValueError, match="requires an `adapter`"):
        MultiTaskExperiment({"mail": mail}, train_encoder=False).settings()


def test_a_distillation_is_no_task_of_several(preset, mail):
    single = DistillationExperiment("classify", teacher=preset, train=mail, dev_share=0.25)
    with pytest.raises(TypeError, match="Received: a DistillationExperiment as mail"):
        MultiTaskExperiment({"mail": single})


def test_recommended_settings_are_the_run_s_if_all_tasks_agree(preset, monkeypatch):
    warnings = []
    monkeypatch.setattr(multi_task.logging, "warning", lambda text, *x: warnings.append(text % x))
    choices = {"context": ["red"] * 4, "choices": [["fox", "dog"]] * 4, "label": [0, 1] * 2}
    data = {"preset": preset, "train": choices, "dev": choices}
    swag, race, choose = (Experiment(name, **data) for name in ("swag", "race", "choose"))
    agreeing = MultiTaskExperiment({"swag": swag, "race": race})
    assert agreeing.settings() == Settings(learning_rate=2e-5, batch_size=16)
    assert agreeing.settings(batch_size=8).batch_size == 8
    assert not warnings
    differing = MultiTaskExperiment({"swag": swag, "own": choose})
    assert differing.settings(learning_rate=1e-4) == Settings(learning_rate=1e-4)
    assert warnings == ["batch_size is 32 for all tasks; recommended for a single task: swag 16"]


def test_a_task_named_like_a_metric_is_in_the_tables(finished):
    dev = {"f1_accuracy": 1.0, "f1_f1": 1.0, "mean_f1": 1.0, "mean": 1.0}
    tasks = {"f1": finished.tasks["rte"], "mean": finished.tasks["mail"]}
    result = dataclasses.replace(finished, dev=dev, tasks=tasks)
    series = Series(folder=finished.folder, names=("seed",), results=(result,))
    assert set(dev) <= set(str(series).splitlines()[0].split())
    lines = [line.split()[0] for line in str(result).splitlines()]
    assert lines == ["task", "f1", "mean", "all"]


def test_a_row_of_each_task_is_shown(experiment, monkeypatch):
    monkeypatch.setattr(previews, "_WARM", 1)
    monkeypatch.setattr(previews, "_TIMED", 2)
    text = preview(experiment, batch_size=8, epochs=2)
    assert text.count("[CLS]") == 3
    for expected in (
        "mail\n",
        "score examples  48, 48 sequences",
        "mail cut        0 examples longer than 16 tokens",
        "steps           20 per epoch, 40 in total",
    ):
        assert expected in text


def test_a_run_measures_and_saves_every_task(finished, experiment):
    assert set(finished.tasks) == {"rte", "mail", "score"}
    main = ("rte_accuracy", "mail_accuracy", "score_spearman")
    assert finished.dev["mean"] == pytest.approx(sum(finished.dev[name] for name in main) / 3)
    assert finished.dev["mean"] == pytest.approx(finished.best_value, abs=1e-5)
    assert finished.test["mail_accuracy"] == finished.tasks["mail"]["test"]["accuracy"]
    lines = [line.split() for line in str(finished).splitlines()]
    assert [line[0] for line in lines] == ["task", "rte", "mail", "score", "all"]
    mail = finished.folder / "tasks" / "mail"
    assert {path.name for path in mail.iterdir()} == {
        *("dev_answers.jsonl", "dev_report.txt", "test_answers.jsonl", "test_report.txt")
    }
    for name, part in finished.tasks.items():
        task = kbert.tasks.Task.from_preset(finished.preset / name)
        dev = experiment.experiments[name].dev
        scores = task.evaluate(dev, verbose=0)
        assert part["dev"] == pytest.approx({key: scores[key] for key in part["dev"]}, abs=1e-5)


def test_a_finished_run_is_read(finished, experiment):
    again = run(experiment, finished.folder, **QUICK)
    assert again.to_dict() == finished.to_dict()
    assert isinstance(again, Result)
    with pytest.raises(ValueError, match="holds another run"):
        run(experiment, finished.folder, **{**QUICK, "epochs": 3})


def test_a_single_task_starts_from_all_of_them(finished, folder, tmp_path):
    """The second stage of MT-DNN."""
    path = folder / "RTE"
    second = Experiment("rte", preset=finished.preset, train=path, dev=path)
    task = second.make_task(second.settings())
    first = kbert.tasks.Task.from_preset(finished.preset / "mail")
    for got, want in zip(task.encoder.weights, first.encoder.weights, strict=True):
        assert np.array_equal(to_numpy(got.value), to_numpy(want.value))
    assert second.identity()["preset_checksum"] is not None


def test_one_task_is_a_run_of_its_own(preset, mail, tmp_path):
    alone = Experiment("classify", preset=preset, train=mail, dev_share=0.25)
    together = MultiTaskExperiment({"mail": alone})
    expected = run(alone, tmp_path / "alone", **QUICK)
    found = run(together, tmp_path / "together", **QUICK)
    assert found.tasks["mail"]["dev"] == pytest.approx(expected.dev)
    assert found.best_loss == pytest.approx(expected.best_loss, rel=1e-5)


@pytest.mark.slow
def test_a_run_resumes_after_a_kill(experiment, finished, tmp_path, monkeypatch):
    evaluate, calls = kbert.tasks.MultiTask.evaluate, []

    def killed_at_the_second(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise OSError("killed")
        return evaluate(*args, **options)

    with monkeypatch.context() as killed:
        killed.setattr(kbert.tasks.MultiTask, "evaluate", killed_at_the_second)
        with pytest.raises(OSError, match="killed"):
            run(experiment, tmp_path / "out", **QUICK)
    again = run(experiment, tmp_path / "out", **QUICK)
    assert again.dev == finished.dev
    for name in finished.tasks:
        files = [x.preset / name / "model.safetensors" for x in (again, finished)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("train_encoder", [True, False])
def test_adapters_are_each_task_s_own(folder, preset, tmp_path, train_encoder):
    text = f"train_encoder = {str(train_encoder).lower()}\n{TASKS}"
    (folder / "adapters.toml").write_text(text)
    experiment = read_task_file(folder / "adapters.toml", preset=preset)
    found = run(experiment, tmp_path / "out", adapter="pal:size=8", **QUICK)
    # An adapter fits the pretrained encoder only if that was not trained.
    adapter = found.folder / "tasks" / "mail" / "adapter" / "adapter.json"
    assert adapter.exists() != train_encoder
    with pytest.raises(
        ValueError, match=r"Tasks with named edits .* start from one of them, .*mail"
    ):
        kbert.TextClassifier.from_preset(found.preset, new_head=True, labels=["no", "yes"])
    task = kbert.tasks.Task.from_preset(found.preset / "mail")
    lines = (found.folder / "tasks" / "mail" / "dev_answers.jsonl").read_text().splitlines()
    answers = task.predict(experiment.experiments["mail"].dev, verbose=0)
    for line, answer in zip(map(json.loads, lines), answers, strict=True):
        assert answer["probabilities"] == pytest.approx(line["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_seeds_keep_the_best(experiment, tmp_path):
    series = seeds(experiment, tmp_path, count=2, **QUICK)
    assert series.best.dev["mean"] == max(result.dev["mean"] for result in series.results)
    assert (series.preset / "rte" / "kbert.json").exists()
    assert "mean" in str(series).splitlines()[0]
