"""The GLUE tasks as a table: texts, labels, metrics, files.

Sources: Wang et al. 2019, "GLUE: A Multi-Task Benchmark", and the published files.
"""

import dataclasses
import functools

_NLI = ("entailment", "neutral", "contradiction")
_TWO_WAY_NLI = ("entailment", "not_entailment")
_FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}


# People's scores on the test sets, by metric: Nangia and Bowman 2019, "Human vs. Muppet: A
# Conservative Estimate of Human Performance on the GLUE Benchmark",
# https://arxiv.org/abs/1905.10425, as on the leaderboard, where their average is 87.1.
HUMAN = {
    "cola": {"matthews": 0.664},
    "sst2": {"accuracy": 0.978},
    "mrpc": {"f1": 0.863, "accuracy": 0.808},
    "stsb": {"pearson": 0.927, "spearman": 0.926},
    "qqp": {"f1": 0.595, "accuracy": 0.804},
    "mnli": {"accuracy": 0.920},
    "mnlimm": {"accuracy": 0.928},
    "qnli": {"accuracy": 0.912},
    "rte": {"accuracy": 0.936},
    "wnli": {"accuracy": 0.959},
}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A GLUE task.

    Attributes:
        name: name of the task's folder in the published archive.
        labels: label names in GLUE's order; empty for regression.
        numbered: whether the files hold 0 and 1 instead of label names.
        texts: headers of the one or two text columns.
        label_header: header of the label column.
        metrics: official metrics, named as in `kbert.metrics`; the first one selects the best
            model.
        files: split -> file name in the folder.
        server_name: name of the task on GLUE's server; None = `name`.
        test_rows: number of test predictions that the server accepts; 0 = it accepts none.
        has_malformed_rows: whether a published file has malformed rows, which are to be skipped.
    """

    name: str
    labels: tuple[str, ...]
    numbered: bool = False
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    label_header: str = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    files: dict[str, str] = dataclasses.field(default_factory=lambda: _FILES)
    server_name: str | None = None
    test_rows: int = 0
    has_malformed_rows: bool = False

    @property
    def is_pair(self) -> bool:
        return len(self.texts) == 2

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def kind(self) -> str:
        return "regress" if self.is_regression else "classify"

    @property
    def submission(self) -> str:
        """File name of the test predictions."""
        return f"{self.server_name or self.name}.tsv"

    @functools.cached_property
    def values(self) -> dict[str, str]:
        """Label -> its value in the files."""
        return {name: str(i) if self.numbered else name for i, name in enumerate(self.labels)}


_MNLI = GlueTask("MNLI", _NLI, label_header="gold_label")

# Keys are lower case without hyphens and underscores; look-ups normalise names to that form.
GLUE = {
    "cola": GlueTask(
        "CoLA",
        ("unacceptable", "acceptable"),
        numbered=True,
        texts=("sentence",),
        metrics=("matthews",),
        test_rows=1063,
    ),
    "sst2": GlueTask(
        "SST-2",
        ("negative", "positive"),
        numbered=True,
        texts=("sentence",),
        test_rows=1821,
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("not_equivalent", "equivalent"),
        numbered=True,
        texts=("#1 String", "#2 String"),
        label_header="Quality",
        metrics=("f1", "accuracy"),
        test_rows=1725,
    ),
    "stsb": GlueTask(
        "STS-B",
        (),
        label_header="score",
        metrics=("spearman", "pearson"),
        test_rows=1379,
    ),
    "qqp": GlueTask(
        "QQP",
        ("not_duplicate", "duplicate"),
        numbered=True,
        texts=("question1", "question2"),
        label_header="is_duplicate",
        metrics=("f1", "accuracy"),
        test_rows=390965,
        has_malformed_rows=True,
    ),
    "mnli": dataclasses.replace(
        _MNLI,
        files={"train": "train.tsv", "dev": "dev_matched.tsv", "test": "test_matched.tsv"},
        server_name="MNLI-m",
        test_rows=9796,
    ),
    "mnlimm": dataclasses.replace(
        _MNLI,
        files={"train": "train.tsv", "dev": "dev_mismatched.tsv", "test": "test_mismatched.tsv"},
        server_name="MNLI-mm",
        test_rows=9847,
    ),
    "qnli": GlueTask(
        "QNLI",
        _TWO_WAY_NLI,
        texts=("question", "sentence"),
        test_rows=5463,
    ),
    "rte": GlueTask("RTE", _TWO_WAY_NLI, test_rows=3000),
    "wnli": GlueTask(
        "WNLI",
        ("not_entailment", "entailment"),
        numbered=True,
        test_rows=146,
    ),
    "ax": GlueTask(
        "AX",
        _NLI,
        metrics=("matthews",),
        files={"test": "diagnostic.tsv"},
        test_rows=1104,
    ),
    "snli": GlueTask("SNLI", _NLI, label_header="gold_label"),
}


def human_score(name: str) -> float:
    """Returns people's score on a task by its first metric, the one that selects models.

    >>> human_score("mrpc")
    0.863
    """
    return HUMAN[name][GLUE[name].metrics[0]]
