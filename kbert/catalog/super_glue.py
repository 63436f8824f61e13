"""The SuperGLUE tasks as a table: kinds, labels, metrics, files.

Sources: Wang et al. 2019, "SuperGLUE: A Stickier Benchmark for General-Purpose Language
Understanding Systems" (https://arxiv.org/abs/1905.00537), and the published files.
"""

import dataclasses

_TRUTH = ("False", "True")
_TWO_WAY_NLI = ("entailment", "not_entailment")
_FILES = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuperGlueTask:
    """A SuperGLUE task.

    Attributes:
        name: name of the task's folder in the published archive, and of its submission.
        kind: kind of the task: "classify", "choose" or "answer".
        labels: label names; empty for tasks without classes.
        metrics: official metrics, as the task's `score` names them; the first one selects the best
            model.
        test_rows: number of test predictions that the server accepts.
        written: the labels as the server takes them; empty = `labels`.
        files: split -> file name in the folder.
    """

    name: str
    kind: str = "classify"
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    test_rows: int
    written: tuple[str | int, ...] = ()
    files: dict[str, str] = dataclasses.field(default_factory=lambda: _FILES)

    @property
    def submission(self) -> str:
        """File name of the test predictions."""
        return f"{self.name}.jsonl"


# The names of the tasks. RTE has the name of the archive too: "rte" is GLUE's, in another format.
SUPER_GLUE = {
    "boolq": SuperGlueTask(name="BoolQ", labels=_TRUTH, test_rows=3245, written=("false", "true")),
    "cb": SuperGlueTask(
        name="CB",
        labels=("entailment", "contradiction", "neutral"),
        metrics=("accuracy", "macro_f1"),
        test_rows=250,
    ),
    "copa": SuperGlueTask(name="COPA", kind="choose", test_rows=500),
    "multirc": SuperGlueTask(
        name="MultiRC",
        labels=_TRUTH,
        metrics=("f1", "exact_match"),
        test_rows=9693,
        written=(0, 1),
    ),
    "record": SuperGlueTask(
        name="ReCoRD", kind="answer", metrics=("f1", "exact"), test_rows=10_000
    ),
    "superglue_rte": SuperGlueTask(name="RTE", labels=_TWO_WAY_NLI, test_rows=3000),
    "wic": SuperGlueTask(name="WiC", labels=_TRUTH, test_rows=1400, written=("false", "true")),
    "wsc": SuperGlueTask(name="WSC", labels=_TRUTH, test_rows=146),
    "axb": SuperGlueTask(
        name="AX-b",
        labels=_TWO_WAY_NLI,
        metrics=("matthews",),
        test_rows=1104,
        files={"test": "AX-b.jsonl"},
    ),
    "axg": SuperGlueTask(
        name="AX-g", labels=_TWO_WAY_NLI, test_rows=356, files={"test": "AX-g.jsonl"}
    ),
}
