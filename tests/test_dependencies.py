"""What kbert needs is what setup.py lists, and what only some need is imported where it is used."""

import ast
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kbert.serve.service.server import PACKAGES, PACKAGES_OF_GRPC
from tests.processes import ROOT
from tests.test_imports import HEAVY

# Distribution -> what it is imported as, where that is another name.
MODULES = {
    "absl-py": "absl",
    "faiss-cpu": "faiss",
    "grpcio": "grpc",
    "keras-nlp": "keras_hub",
    "scikit-learn": "sklearn",
    "tensorflow-serving-api": "tensorflow_serving",
    "umap-learn": "umap",
}
# Requirements of TensorFlow and Keras that kbert imports, too.
WITH_TENSORFLOW = {"google", "h5py", "packaging"}
# Which tensorflow-datasets imports without saying so.
WITHOUT_SAYING = {"importlib_resources"}
WITH_SKLEARN = {"threadpoolctl"}
# References that `kbert.conversion.check` runs where they are installed.
REFERENCES = {"torch", "transformers"}
IMPORT_EACH = """
import importlib, pkgutil, sys
sys.modules |= dict.fromkeys({blocked!r})  # None blocks
import kbert
for found in pkgutil.walk_packages(kbert.__path__, "kbert."):
    if found.name.split(".")[-1] not in ("jax", "__main__"):  # the JAX engine's half
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
"""
METRICS = """
from kbert import metrics
labels, predictions = ["a", "b", "b", "c"], ["a", "b", "c", "c"]
numbers = [0.0, 1.0, 2.0, 2.0], [0.5, 0.0, 1.0, 3.0]
for metric in (metrics.accuracy, metrics.matthews, metrics.macro_f1):
    metric(labels, predictions)
metrics.f1(labels, predictions, positive="a")
str(metrics.classification_report(labels, predictions, "abc"))
metrics.multi_label([[1, 0]], [[1, 1]])
metrics.pair_scores([1, 0], [0.9, 0.1])
metrics.pearson(*numbers), metrics.spearman(*numbers)
"""


@pytest.fixture(scope="module")
def setup():
    """The arguments of `setup`."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        stand_in = SimpleNamespace(setup=given.update, find_packages=lambda **_: [])
        patch.setitem(sys.modules, "setuptools", stand_in)
        runpy.run_path(str(ROOT / "setup.py"))
    return given


def modules(requirements) -> set[str]:
    names = {re.split(r"[\[<>=!~; ]", line)[0] for line in requirements}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def trees():
    for path in (x for folder in ("kbert", "pipelines") for x in (ROOT / folder).rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


def imported() -> set[str]:
    """Packages that the library and the programs import, inside functions too."""
    found = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    tops = {name.split(".")[0] for name in found}
    return tops - sys.stdlib_module_names - {"kbert"}


def asked_for() -> set[tuple[str, str]]:
    """Package and extra of each `late.optional("package.module", "extra", …)`."""
    calls = {
        tuple(x.value for x in node.args[:2] if isinstance(x, ast.Constant))
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "optional"
    }
    return {(call[0].split(".")[0], call[1]) for call in calls if len(call) == 2}


def test_what_is_imported_is_listed_and_what_is_listed_is_imported(setup):
    required = modules(setup["install_requires"])
    extras = {key: modules(lines) for key, lines in setup["extras_require"].items()}
    optional = set().union(*(extras[key] for key in extras.keys() - {"docs", "test"}))
    assert imported() <= required | optional | WITH_TENSORFLOW | REFERENCES
    assert required - WITHOUT_SAYING <= imported()
    assert not required & optional - {"tensorflow"}
    assert {*PACKAGES, *PACKAGES_OF_GRPC} == extras["serve"]
    assert len(asked_for()) > 5
    for package, extra in asked_for():
        assert package in extras[extra] | WITH_SKLEARN


def test_what_few_need_is_not_imported_before_it_is_used():
    code = IMPORT_EACH.format(blocked=sorted(HEAVY)) + METRICS
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
