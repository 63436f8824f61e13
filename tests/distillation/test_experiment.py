"""A student on the data of a task, as `kbert.experiments` runs it."""

import json
import signal

import keras
import pytest
import tensorflow as tf

import kbert
from kbert import experiments
from kbert.distillation import Comparison, DistillationExperiment, Distiller, compare
from kbert.distillation.comparison import Measured
from tests.experiments.conftest import mail  # noqa: F401

SETTINGS = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-3}
STUDENT = {"num_layers": 1}
SIZES = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 32,
    "initializer_range": 0.3,
    "dropout": 0.1,
}


class Stop(keras.callbacks.Callback):
    """SIGTERM after so many steps."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)


def make_preset(folder, kind, tokenizer, *arguments):
    keras.utils.set_random_seed(3)
    encoder = kbert.Encoder(kbert.EncoderConfig(vocabulary_size=tokenizer.vocabulary_size, **SIZES))
    kind(encoder, tokenizer, *arguments).save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tokenizer):
    """Its classes are in another order than the alphabet's, which is that of the data."""
    folder = tmp_path_factory.mktemp("teacher")
    return make_preset(folder, kbert.tasks.TextClassifier, tokenizer, ["spam", "ham"])


@pytest.fixture(scope="module")
def dev(mail):  # noqa: F811
    """A few rows are enough to be measured."""
    return {name: column[:16] for name, column in mail.items()}


@pytest.fixture
def experiment(teacher, mail, dev):  # noqa: F811
    def experiment(recipe="tinybert-task", **options):
        if "preset" not in options:
            options = {"student": STUDENT, **options}
        data = {"train": mail, "dev": dev, **options}
        return DistillationExperiment("classify", teacher=teacher, recipe=recipe, **data)

    return experiment


@pytest.fixture(scope="module")
def whole(teacher, mail, dev, tmp_path_factory):  # noqa: F811
    """Folder of a run of two stages that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    made = DistillationExperiment(
        *("classify",), teacher=teacher, recipe="tinybert-task", student=STUDENT, train=mail,
        dev=dev, first_epochs=1,
    )  # fmt: skip
    tf.config.run_functions_eagerly(True)  # as the runs that are compared with it
    try:
        experiments.run(made, folder, verbose=0, checkpoint_every=1, **SETTINGS)
    finally:
        tf.config.run_functions_eagerly(False)
    return folder


def test_the_teacher_says_the_order_of_the_classes(experiment, whole):
    made = experiment()
    task = made.make_task(made.settings())
    assert made.labels == ["ham", "spam"]
    assert task.labels == ["spam", "ham"]
    assert kbert.tasks.TextClassifier.from_preset(whole / "preset").labels == ["spam", "ham"]
    # The head is the teacher's.
    teacher = made.make_teacher(made.settings())
    assert (task.classifier.dense.kernel.numpy() == teacher.classifier.dense.kernel.numpy()).all()
    assert made.make_teacher(made.settings()) is teacher


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    ("stage", "steps"),
    [
        ("intermediate", 2),
        pytest.param("intermediate", 4, marks=pytest.mark.slow),
        pytest.param("last", 2, marks=pytest.mark.slow),
    ],
)
def test_stopped_in_and_between_stages_it_resumes(
    experiment, whole, tmp_path, monkeypatch, stage, steps
):
    """Four steps a stage; after the fourth of the first the second has not begun."""
    fit = Distiller.fit

    def fit_and_stop(self, *data, **options):
        is_first = options["model_dir"].name == "intermediate"
        more = [Stop(steps)] if is_first == (stage == "intermediate") else []
        options["callbacks"] = [*options["callbacks"], *more]
        return fit(self, *data, **options)

    made = experiment(first_epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(Distiller, "fit", fit_and_stop)
        with pytest.raises(experiments.Stopped, match="SIGTERM after step"):
            experiments.run(made, tmp_path, verbose=0, checkpoint_every=1, **SETTINGS)
    with pytest.raises(ValueError, match=r"holds another run.*settings.seed was 0, is 1"):
        experiments.run(made, tmp_path, verbose=0, **SETTINGS, seed=1)
    experiments.run(made, tmp_path, verbose=0, checkpoint_every=1, **SETTINGS)
    for name in ("intermediate", "prediction"):
        logs = [folder / "training" / name / "steps.jsonl" for folder in (whole, tmp_path)]
        assert logs[0].read_bytes() == logs[1].read_bytes()
    weights = [folder / "preset" / "model.safetensors" for folder in (whole, tmp_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_finished_run_is_read_and_leaves_no_checkpoints(experiment, whole, monkeypatch):
    assert not list((whole / "training").rglob("checkpoints"))
    monkeypatch.setattr(Distiller, "fit", None)
    result = experiments.run(experiment(first_epochs=1), whole, verbose=0, **SETTINGS)
    assert result.metric == "accuracy"
    assert result.steps == 4
    with pytest.raises(ValueError, match=r"another run.*stages.intermediate.epochs was 1, is 2"):
        experiments.run(experiment(first_epochs=2), whole, verbose=0, **SETTINGS)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
def test_an_adapter_has_its_own_rate(experiment):
    made = experiment("distilbert")
    assert made.settings().learning_rate == made.last_stage.learning_rate
    assert made.settings(adapter="lora").learning_rate == 5e-4
    assert made.settings(adapter="lora", learning_rate=0.1).learning_rate == 0.1


def test_seeds_differ_in_their_runs(experiment, tmp_path):
    made = experiment("distilbert", student={"num_layers": 1, "init": "random"})
    series = experiments.seeds(made, tmp_path, count=2, verbose=0, **SETTINGS)
    assert len(series.results) == 2
    assert series.preset.exists()
    first = [
        json.loads((r.folder / "training/distilled/steps.jsonl").read_text().splitlines()[0])
        for r in series.results
    ]
    assert first[0]["soft_targets"] != first[1]["soft_targets"]
    found = made.compare(series.preset, made.settings(**SETTINGS))
    assert (found.metric, found.student.layers, found.teacher.layers) == ("accuracy", 1, 2)
    assert "teacher       2 " in str(found)
    assert "100.0%" in str(found)


def test_numbers_and_a_pretrained_student(tokenizer, tmp_path):
    teacher = make_preset(tmp_path / "teacher", kbert.tasks.TextRegressor, tokenizer)
    make_preset(tmp_path / "small", kbert.tasks.Pretraining, tokenizer)
    data = {"first": ["red fox"] * 8, "second": ["the sun", "a cat"] * 4, "label": [1.0, 2.5] * 4}
    made = DistillationExperiment(
        "stsb", teacher=teacher, preset=tmp_path / "small", train=data, dev=data
    )
    result = experiments.run(made, tmp_path / "out", verbose=0, epochs=1, batch_size=8)
    assert result.metric == "pearson" or "pearson" in result.dev
    (step,) = (tmp_path / "out/training/distilled/steps.jsonl").read_text().splitlines()
    assert {"soft_targets", "hidden_cosine"} <= set(json.loads(step))
    assert json.loads((tmp_path / "out/run.json").read_text())["student"] == str(tmp_path / "small")


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
def test_preview_shows_what_every_stage_and_the_teacher_take(experiment):
    shown = experiments.preview(experiment(), examples=1, **SETTINGS)
    assert "[CLS] the " in shown
    assert "4 per epoch, 84 in total" in shown
    assert " s per step intermediate, " in shown
    assert " s per step prediction" in shown
    assert "s per step without a teacher" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "minilm"}, "recipe distils on text, not on the data of a task.*'minilm'"),
        ({"recipe": "distilbert", "first_epochs": 2}, "has only one stage, .*'epochs': 2"),
        ({"preset": "p", "student": STUDENT}, "either a preset of the student, or.*preset='p'"),
    ],
)
def test_what_does_not_fit_together(experiment, options, message):
    with pytest.raises(ValueError, match=message):
        experiment(**options)


def test_other_classes_than_the_teacher_s(experiment, mail):  # noqa: F811
    made = experiment(train={**mail, "label": ["ham", "eggs"] * 32}, dev_share=0.5, dev=None)
    with pytest.raises(ValueError, match=r"classes of the teacher.*'eggs', 'ham' in the data"):
        made.make_task(made.settings())


def test_a_model_retains_all_of_itself(teacher, dev):
    task = kbert.tasks.TextClassifier.from_preset(teacher)
    found = compare(task, task, dev, rounds=1)
    assert found.retention == 1.0
    assert found.student.parameters == task.count_params()
    assert found.to_dict()["speed"] == pytest.approx(found.speed)
    with pytest.raises(ValueError, match=r"one of .*accuracy.*Received: 'bleu'"):
        compare(task, task, dev, rounds=1, metric="bleu")


@pytest.mark.parametrize(
    ("metric", "student", "teacher", "retained"),
    [
        ("accuracy", 0.6, 0.8, "75.0%"),
        ("loss", 0.8, 0.6, "75.0%"),  # the lower, the better
        ("perplexity", 8.0, 6.0, "75.0%"),
        ("matthews", 0.1, 0.0, "-"),
        ("matthews", -0.2, -0.1, "-"),
    ],
)
def test_what_is_retained_of_a_metric(metric, student, teacher, retained):
    found = Comparison(
        metric=metric,
        **{
            name: Measured(values={metric: value}, layers=1, parameters=1, seconds=1.0)
            for name, value in {"student": student, "teacher": teacher}.items()
        },
    )
    assert str(found).splitlines()[-1].split()[3] == retained
    assert (found.to_dict()["retention"] is None) == (retained == "-")
