"""The table of tasks: names in any spelling, and each task's official metrics."""

import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from kbert.data.readers import GLUE, glue_scores, glue_task


@pytest.mark.parametrize("name", ["SST-2", "sst2", "sst_2", "Sst-2"])
def test_names_in_any_spelling(name):
    assert glue_task(name) is GLUE["sst2"]


def test_pairs_and_regressions():
    assert [key for key, task in GLUE.items() if not task.is_pair] == ["cola", "sst2"]
    assert [key for key, task in GLUE.items() if task.is_regression] == ["stsb"]
    assert glue_task("WNLI").values == {"not_entailment": "0", "entailment": "1"}
    assert glue_task("RTE").values == {n: n for n in ("entailment", "not_entailment")}


@pytest.mark.parametrize("name", ["MRPC", "QQP"])
def test_f1_is_of_the_second_label(name):
    task = glue_task(name)
    labels, answers = [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]
    names, said = ([task.labels[i] for i in given] for given in (labels, answers))
    scores = glue_scores(task, names, said)
    assert scores == pytest.approx(
        {"f1": sklearn_metrics.f1_score(labels, answers), "accuracy": 3 / 5}
    )


def test_the_other_metrics():
    labels, answers = [0.0, 2.0, 2.0, 5.0], [1.0, 1.5, 4.0, 4.5]
    assert glue_scores(glue_task("STS-B"), labels, answers) == pytest.approx(
        {
            "spearman": stats.spearmanr(labels, answers)[0],
            "pearson": stats.pearsonr(labels, answers)[0],
        }
    )
    for name, metric in {"CoLA": "matthews", "AX": "matthews", "MNLI": "accuracy"}.items():
        task = glue_task(name)
        assert glue_scores(task, task.labels, task.labels) == {metric: 1.0}
