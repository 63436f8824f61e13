"""Soups: the mean of weights, uniform and greedy, and what has none."""

import numpy as np
import pytest

import kbert
from kbert.models.weights import get_parts
from tests.distillation.cached import table_of
from tests.distillation.toys import TABLES, make_task
from tests.harness import assert_close


def runs(name, tokenizer, count=3):
    """From one start, a little apart."""
    tasks = [make_task(name, tokenizer) for _ in range(count)]
    rng = np.random.default_rng(0)
    for task in tasks:
        for weight in task.trainable_weights:
            weight.assign_add(rng.normal(0, 0.05, weight.shape))
    return tasks


@pytest.mark.parametrize(
    "name", ["classes", *(pytest.param(x, marks=pytest.mark.slow) for x in ("tags", "answers"))]
)
def test_the_uniform_soup_is_the_mean_of_all_weights(name, tokenizer):
    tasks = runs(name, tokenizer)
    before = [get_parts(task.parts) for task in tasks]
    mean = kbert.soup(tasks)
    assert type(mean) is type(tasks[0])
    assert mean.settings == tasks[0].settings
    for weight, array in get_parts(mean.parts).items():
        assert_close(array, np.mean([x[weight] for x in before], axis=0), 1e-6)
    for task, arrays in zip(tasks, before, strict=True):
        for weight, array in get_parts(task.parts).items():
            assert_close(array, arrays[weight], 0)
    assert len(mean.predict(table_of(name))) == len(table_of(name))


class Scores:
    """Evaluations that depend on which tasks a mean was made of, by the mean of a bias."""

    def __init__(self, monkeypatch, values):
        self.values, self.asked = values, []
        monkeypatch.setattr(kbert.TextClassifier, "evaluate", lambda task, *_, **__: self.of(task))

    def of(self, task):
        key = round(float(task.classifier.dense.bias[0]), 3)
        self.asked.append(key)
        return {"loss": 1.0, "accuracy": self.values[key], "perplexity": self.values[key]}


def marked(tokenizer, marks):
    tasks = runs("classes", tokenizer, len(marks))
    for task, mark in zip(tasks, marks, strict=True):
        task.classifier.dense.bias.assign([mark, 0.0, 0.0])
    return tasks


def test_the_greedy_soup_keeps_what_does_not_harm(tokenizer, monkeypatch):
    tasks = marked(tokenizer, [1.0, 2.0, 6.0])
    # The best is the second; with the third it falls, with the first it stays.
    scores = Scores(monkeypatch, {1.0: 0.6, 2.0: 0.8, 6.0: 0.7, 4.0: 0.75, 1.5: 0.8})
    mean = kbert.soup(tasks, validation_data=table_of("classes"))
    assert scores.asked == [1.0, 2.0, 6.0, 4.0, 1.5]
    assert float(mean.classifier.dense.bias[0]) == pytest.approx(1.5)
    losses = Scores(monkeypatch, dict.fromkeys((1.0, 2.0, 6.0, 1.5, 3.0), 0.5))
    kbert.soup(tasks, validation_data=table_of("classes"), metric="loss")
    assert losses.asked == [1.0, 2.0, 6.0, 1.5, 3.0]
    # The best is the first; with the third it stays, with the second it rises.
    falling = Scores(monkeypatch, {1.0: 0.6, 2.0: 0.8, 6.0: 0.7, 3.5: 0.6, 3.0: 0.7})
    mean = kbert.soup(tasks, validation_data=table_of("classes"), metric="perplexity")
    assert falling.asked == [1.0, 2.0, 6.0, 3.5, 3.0]
    assert float(mean.classifier.dense.bias[0]) == pytest.approx(3.5)


def test_the_greedy_soup_is_never_worse_than_the_best(tokenizer):
    tasks, table = runs("classes", tokenizer), table_of("classes")
    mean = kbert.soup(tasks, validation_data=table, metric="loss", verbose=0)
    best = min(task.evaluate(table)["loss"] for task in tasks)
    assert mean.evaluate(table)["loss"] <= best + 1e-6


def test_what_has_no_mean(tokenizer):
    first = make_task("classes", tokenizer)
    with pytest.raises(ValueError, match=r"A soup requires a list of two or more tasks. Received"):
        kbert.soup([first])
    with pytest.raises(ValueError, match="A soup requires tasks of the same labels"):
        kbert.soup([first, make_task("pairs", tokenizer)])
    with pytest.raises(TypeError, match=r"with a single model. Received: a TextClassifierEnsemble"):
        kbert.soup([first, kbert.Ensemble([first, make_task("classes", tokenizer)])])
    wide = make_task("classes", tokenizer, hidden_size=24)
    with pytest.raises(
        ValueError, match=r"same names and shapes. Received: \S+ of shape .*16.* and .*24"
    ):
        kbert.soup([first, wide])
    with pytest.raises(ValueError, match=r"must be one of loss, .*Received: metric='f2'"):
        kbert.soup(runs("classes", tokenizer, 2), validation_data=TABLES["classes"][2], metric="f2")
