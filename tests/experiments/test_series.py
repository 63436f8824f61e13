"""Series of runs: finished ones are not made again, the best model is kept, tables."""

import functools
import json
import shutil
import statistics

import pytest

import kbert
from kbert.experiments import Experiment, Settings, grid, seeds
from kbert.experiments.folder import RunFolder
from kbert.experiments.results import Series
from kbert.experiments.series import run_series
from tests.experiments.test_folder import result


class Runs:
    """Makes runs of given scores without training, and counts them."""

    def __init__(self, scores, fail_at=None):
        self.scores, self.fail_at, self.made = iter(scores), fail_at, []

    def __call__(self, settings, path):
        folder = RunFolder(path)
        folder.begin({"settings": settings.identity()})
        if folder.result():
            return folder.result()
        if len(self.made) == self.fail_at:
            raise KeyboardInterrupt
        self.made.append(path.name)
        (folder.preset).mkdir()
        (folder.preset / "name").write_text(path.name)
        score = next(self.scores)
        made = result(path, dev={"accuracy": score}, settings=settings.to_dict())
        folder.finish(made)
        return made


def points(count):
    return {f"seed-{n}": Settings(seed=n) for n in range(count)}


def series(folder, runs, count=3):
    return run_series(points(count), runs, folder, names=("seed",))


def test_the_best_model_is_kept_and_no_other(tmp_path):
    found = series(tmp_path, Runs([0.5, 0.9, 0.7]))
    assert found.best.folder.name == "seed-1"
    assert (found.preset / "name").read_text() == "seed-1"
    assert list(tmp_path.rglob("preset")) == [found.preset]
    content = json.loads((tmp_path / "series.json").read_text())
    assert content["best"] == "seed-1"
    assert content["summary"]["dev"]["accuracy"]["mean"] == pytest.approx(0.7)


def test_it_resumes_where_it_was_stopped(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        series(tmp_path, Runs([0.5, 0.9], fail_at=2))
    again = Runs([0.7])
    found = series(tmp_path, again)
    assert again.made == ["seed-2"]
    assert "run 1 of 3: seed-0, finished before\n" in capsys.readouterr().out
    assert [r.dev["accuracy"] for r in found.results] == [0.5, 0.9, 0.7]
    assert (found.preset / "name").read_text() == "seed-1"


def test_more_seeds_later_may_find_a_better_one(tmp_path):
    series(tmp_path, Runs([0.5, 0.9]), count=2)
    assert (series(tmp_path, Runs([0.7])).preset / "name").read_text() == "seed-1"
    assert (series(tmp_path, Runs([0.95]), count=4).preset / "name").read_text() == "seed-3"
    with pytest.raises(ValueError, match=r"runs that were not requested.*seed-3$"):
        series(tmp_path, Runs([]), count=3)


def test_seeds_are_tabled_with_mean_and_deviation(tmp_path):
    found = series(tmp_path, Runs([0.5, 0.9, 0.7]))
    lines = [line.split() for line in str(found).splitlines()]
    assert lines[0] == ["seed", "accuracy", "seconds"]
    assert lines[4] == ["mean", "0.7000", "-"]
    assert lines[5] == ["sd", f"{statistics.stdev([0.5, 0.9, 0.7]):.4f}", "-"]


def test_a_metric_that_one_run_lacks_counts_as_0(tmp_path):
    """A tagger's runs have an F1 of each type that they predict, also of one without a label."""
    for order in ((0, 1), (1, 0)):
        runs = [{"f1": 0.5, "f1_LOC": 0.4}, {"f1": 0.7}]
        results = tuple(result(tmp_path / str(n), dev=runs[n]) for n in order)
        found = Series(folder=tmp_path, names=(), results=results)
        assert found.metrics()["f1_LOC"] == [runs[n].get("f1_LOC", 0.0) for n in order]
        assert found.summary()["f1_LOC"][0] == pytest.approx(0.2)


def test_a_single_run_has_no_deviation(tmp_path):
    assert series(tmp_path, Runs([0.5]), count=1).summary() == {"accuracy": (0.5, 0.0)}


def test_a_grid_is_tabled_from_best_to_worst(tmp_path):
    wanted = {f"lr-{rate:g}": Settings(learning_rate=rate) for rate in (5e-5, 2e-5)}
    names = ("learning_rate", "batch_size")
    found = run_series(wanted, Runs([0.5, 0.9]), tmp_path, names=names)
    lines = [line.split() for line in str(found).splitlines()]
    assert lines == [
        ["learning_rate", "batch_size", "accuracy", "seconds"],
        ["2e-05", "32", "0.9000", "61"],
        ["5e-05", "32", "0.5000", "61"],
    ]


SEEDS = {"epochs": 2, "batch_size": 16, "learning_rate": 3e-2, "verbose": 0}


def test_a_series_does_not_overwrite_its_preset(preset, mail, tmp_path):
    shutil.copytree(preset, tmp_path / "preset")
    experiment = Experiment("classify", preset=tmp_path / "preset", train=mail, dev_share=0.2)
    for several in (functools.partial(seeds, count=2), grid):
        with pytest.raises(ValueError, match=r"best model is written to .*Received: the preset"):
            several(experiment, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


def test_an_ensemble_and_a_soup_of_all_seeds(preset, mail, tmp_path, capsys):
    dev = {name: column[:16] for name, column in mail.items()}
    experiment = Experiment("classify", preset=preset, train=mail, dev=dev, test=dev)
    found = seeds(experiment, tmp_path, count=2, ensemble=True, soup=True, **SEEDS)
    assert "\nensemble of 2 runs\nsoup of 2 runs\n" in capsys.readouterr().out
    ensemble, mean = (kbert.Task.from_preset(tmp_path / name) for name in ("ensemble", "soup"))
    assert len(ensemble.members) == 2
    assert type(mean) is kbert.TextClassifier
    for name, task in (("ensemble", ensemble), ("soup", mean)):
        assert found.combined[name]["runs"] == ["seed-0", "seed-1"]
        scores = task.evaluate(dev)
        for data in ("dev", "test"):
            for metric, value in found.combined[name][data].items():
                assert value == pytest.approx(scores[metric])
            assert (tmp_path / name / f"{data}_answers.jsonl").exists()
    assert found.combined["soup"]["dev"]["accuracy"] >= found.best.dev["accuracy"]
    lines = [line.split()[0] for line in str(found).splitlines()]
    assert lines == ["seed", "0", "1", "mean", "sd", "best", "ensemble", "soup"]
    assert json.loads((tmp_path / "series.json").read_text())["combined"] == found.combined
    assert [path.parent.name for path in tmp_path.glob("seed-*/preset")] == []
    again = seeds(experiment, tmp_path, count=2, **SEEDS)  # they are not made again
    assert again.combined == found.combined
    with pytest.raises(ValueError, match="ensemble requires the models of all runs, of which"):
        seeds(experiment, tmp_path, count=3, ensemble=True, **SEEDS)
    shutil.rmtree(tmp_path / "soup")
    assert list(seeds(experiment, tmp_path, count=2, **SEEDS).combined) == ["ensemble"]
    with pytest.raises(ValueError, match="soup requires the models of all runs, of which"):
        seeds(experiment, tmp_path, count=2, soup=True, **SEEDS)


def test_a_kill_while_models_are_removed_leaves_what_is_combined(tmp_path, monkeypatch):
    def call(runs):
        def combine(presets, folder):
            folder.mkdir()
            return {
                "dev": {},
                "test": None,
                "of": [(path / "name").read_text() for path in presets],
            }

        return run_series(points(2), runs, tmp_path, names=("seed",), combine={"soup": combine})

    def kill(result):
        raise KeyboardInterrupt

    for name in ("_remove_presets", "_publish_best"):
        with monkeypatch.context() as patch:
            patch.setattr(f"kbert.experiments.series.{name}", kill)
            with pytest.raises(KeyboardInterrupt):
                call(Runs([0.5, 0.9]))
    found = call(Runs([]))
    assert found.combined["soup"]["of"] == ["seed-0", "seed-1"]
    assert (found.preset / "name").read_text() == "seed-1"
    assert list(tmp_path.rglob("preset")) == [found.preset]


def test_an_ensemble_needs_several_runs_whose_answers_have_a_mean(preset, mail, tmp_path):
    experiment = Experiment("classify", preset=preset, train=mail, dev_share=0.25)
    with pytest.raises(ValueError, match=r"at least 2 for an .*Received: count=1, ensemble=True"):
        seeds(experiment, tmp_path, count=1, ensemble=True)
    pairs = {"text": ["the red fox", "a dog"] * 4, "target": ["a fox", "dogs"] * 4}
    generator = Experiment("text2text", preset=preset, train=pairs, dev=pairs)
    with pytest.raises(ValueError, match=r"answers have a mean.*Received: a TextToText$"):
        seeds(generator, tmp_path, count=2, ensemble=True)
