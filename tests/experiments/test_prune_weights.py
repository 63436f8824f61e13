"""Runs that prune weights while they train: `--prune_weights` of the programs."""

import pytest

import kbert
from kbert import experiments
from kbert.distillation import DistillationExperiment
from tests.edit.adapters.conftest import WORDS, make_encoder, reviews

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    make_encoder(tokenizer).save_to_preset(folder)
    tokenizer.save(folder)
    return folder


def data(count, seed=0):
    texts, labels = reviews(count, seed)
    return {"text": texts, "label": labels}


OPTIONS = {"epochs": 2, "batch_size": 16, "verbose": 0}


@pytest.mark.parametrize("kind", ["magnitude", pytest.param("movement", marks=pytest.mark.slow)])
def test_a_run_keeps_an_ordinary_model_with_zeros(preset, tmp_path, kind):
    experiment = experiments.Experiment("classify", preset=preset, train=data(64), dev=data(24, 1))
    given = f"{kind}:sparsity=0.75,end_step=0.5"
    options = {**OPTIONS, "batch_size": 32}
    result = experiments.run(experiment, tmp_path / "run", prune_weights=given, **options)
    # The first epoch of two updates is not pruned yet, and cannot be the best.
    assert (result.steps, result.best_step) == (4, 4)
    task = kbert.tasks.Task.from_preset(tmp_path / "run/preset")
    assert task.encoder.config.part is None
    assert set(kbert.edit.pruning.sparsity(task).values()) == {0.75}
    assert task.evaluate(data(24, 1), verbose=0)["accuracy"] == result.dev["accuracy"]
    with pytest.raises(ValueError, match="prune_weights"):
        experiments.run(
            experiment, tmp_path / "run", prune_weights=given.replace("75", "5"), **options
        )


@pytest.mark.slow
def test_a_student_is_pruned_in_its_last_stage(preset, tmp_path):
    experiment = experiments.Experiment("classify", preset=preset, train=data(64), dev=data(24, 1))
    experiments.run(experiment, tmp_path / "teacher", **OPTIONS)
    experiment = DistillationExperiment(
        *("classify",),
        teacher=tmp_path / "teacher/preset",
        train=data(64),
        dev=data(24, 1),
        recipe="tinybert-task",
        first_epochs=1,
    )
    given = "movement:sparsity=0.75,end_step=0.5"
    experiments.run(experiment, tmp_path / "run", prune_weights=given, **OPTIONS)
    task = kbert.tasks.Task.from_preset(tmp_path / "run/preset")
    assert task.encoder.config.part is None
    assert set(kbert.edit.pruning.sparsity(task).values()) == {0.75}


def test_what_does_not_go_together_is_told_before_the_run(preset):
    experiment = experiments.Experiment("classify", preset=preset, train=data(64), dev=data(24, 1))
    with pytest.raises(
        ValueError, match=r"cannot be combined. Received: adapter='lora' with prune_weights='ma"
    ):
        experiment.settings(adapter="lora", prune_weights="magnitude:sparsity=0.5")
    with pytest.raises(ValueError, match=r"be magnitude or movement .*Received: 'large'"):
        experiment.settings(prune_weights="large")
