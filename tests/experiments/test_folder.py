"""The folder of a run: the same run or none, results last, checkpoints gone after them."""

from pathlib import Path

import pytest

from kbert.experiments import Result, RunFolder
from kbert.experiments.series import run_series


def result(folder: Path, **changes) -> Result:
    fields = {
        "folder": folder,
        "metric": "accuracy",
        "dev": {"accuracy": 0.75, "f1_spam": 0.5},
        "test": None,
        "best_value": 0.75,
        "best_step": 3,
        "steps": 9,
        "seconds": 61.0,
        "confusion": None,
        "threshold": None,
        "peak_memory": 10**9,
        "settings": {"seed": 0},
    }
    return Result(**{**fields, **changes})


def test_a_run_with_nan_is_never_the_best(tmp_path):
    nan = result(tmp_path, dev={"accuracy": float("nan")}, best_loss=float("nan"))
    runs = [nan, result(tmp_path, dev={"accuracy": 0.1}, best_loss=2.0)]
    assert max(runs, key=lambda run: run.score) is runs[1]
    assert max(runs[::-1], key=lambda run: run.score) is runs[1]


def test_a_run_that_was_never_evaluated_has_a_summary(tmp_path):
    summary = result(tmp_path, best_value=None, best_step=None).summary()
    assert summary.startswith("no best accuracy in 9 steps · ")


def test_one_folder_is_one_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin({"task": "cola"})  # ended by a bad setting before its first checkpoint
    folder.begin({"task": "sst2", "settings": {"seed": 0, "freeze": ("a",)}})
    folder.finish(result(folder.path))
    folder.begin({"task": "sst2", "settings": {"seed": 0, "freeze": ("a",)}})
    with pytest.raises(ValueError, match=r"holds another run.*settings.seed was 0, is 1$"):
        folder.begin({"task": "sst2", "settings": {"seed": 1, "freeze": ("a",)}})
    with pytest.raises(
        ValueError, match=r"is finished.*another folder. Received: settings.seed was 0, is 1$"
    ):
        folder.begin({"task": "sst2", "settings": {"seed": 1, "freeze": ("a",)}}, ["seed"])
    folder.begin({"task": "sst2", "settings": {"seed": 0, "freeze": ("a",)}}, ["seed"])


@pytest.mark.parametrize("name", ["preset", "teacher", "student"])
def test_a_model_that_is_read_is_not_written(tmp_path, name):
    folder = RunFolder(tmp_path / "run")
    for model in (folder.preset, folder.preset / "colours", f"bert, {folder.path}/../run/preset"):
        with pytest.raises(ValueError, match=rf"written to .*run/preset: .*the {name} .*preset"):
            folder.begin({name: str(model)})
    assert not folder.path.exists()
    folder.begin({name: str(tmp_path / "preset")})


def test_models_in_buckets_are_not_overwritten_either(tmp_path):
    folder = RunFolder("gs://bucket/run")
    for model in ("gs://bucket/run/preset", "gs://bucket/run/preset/members/0"):
        with pytest.raises(
            ValueError, match=r"written to gs://bucket/run/preset: .*the teacher gs"
        ):
            folder.check_sources({"preset": "gs://bucket/preset", "teacher": model})
    folder.check_sources({"preset": "gs://bucket/preset", "teacher": "bert-tiny"})
    RunFolder(tmp_path).check_sources({"preset": "gs://bucket/run/preset"})


def test_settings_by_the_names_of_the_version_before(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({"task": "squad", "settings": {"stride": 64, "pooling": None}})
    folder.finish(result(tmp_path))
    folder.begin({"task": "squad", "settings": {"doc_stride": 64, "n_best": None}})
    with pytest.raises(ValueError, match=r"settings.doc_stride was 64, is 32$"):
        folder.begin({"task": "squad", "settings": {"doc_stride": 32}})


def test_a_series_and_a_run_do_not_share_a_folder(tmp_path):
    RunFolder(tmp_path / "seed-0").begin({})
    with pytest.raises(ValueError, match=r"holds a series of runs; .*Received: seed-0$"):
        RunFolder(tmp_path).begin({})
    with pytest.raises(
        ValueError, match=r"a separate folder. Received: .*seed-0, the folder of a run"
    ):
        run_series({}, None, tmp_path / "seed-0", names=("seed",))


def test_results_come_back_and_checkpoints_go(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin({})
    for name in ("checkpoints", "best"):
        (folder.training / name).mkdir(parents=True)
        (folder.training / name / "weights").write_text("many")
    assert folder.result() is None
    folder.finish(result(tmp_path))
    assert folder.result() == result(tmp_path)
    assert list(folder.training.iterdir()) == []


def test_the_table_leaves_single_classes_to_the_report(tmp_path):
    made = result(tmp_path, test={"accuracy": 0.5})
    assert str(made).splitlines() == [
        "data  accuracy",
        "dev     0.7500",
        "test    0.5000",
    ]
    assert made.summary() == "best accuracy after step 3 of 9 · 1 min 1 s · peak memory 1GB"


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_of_these_the_smallest_is_best(tmp_path, metric):
    small, large = (
        result(tmp_path, metric=metric, best_value=x, dev={metric: x}) for x in (0.1, 0.2)
    )
    assert small.score > large.score
