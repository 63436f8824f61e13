"""Names of the version before: they work, and say what they are called now to whoever uses them."""

import importlib
import subprocess
import sys

import pytest

import kbert
from tests.processes import ROOT

MODULES = {"finetuning": "experiments", "config": "configs"}


@pytest.fixture
def afresh():
    """As in a process that has not used the old names yet."""

    def forget():
        for name in MODULES:
            sys.modules.pop(f"kbert.{name}", None)
            # An import binds the name, past which no access would warn.
            vars(kbert).pop(name, None)

    forget()
    yield
    forget()


def test_attributes_are_the_modules_of_today(afresh):
    for old, new in MODULES.items():
        with pytest.warns(DeprecationWarning, match=f"kbert.{old} is now kbert.{new}") as told:
            found = getattr(kbert, old)
        assert found is importlib.import_module(f"kbert.{new}")
        # Python shows it where the line that asks is one of the user's own.
        assert {warning.filename for warning in told} == {__file__}


def test_imports_find_what_was_there(afresh):
    with pytest.warns(DeprecationWarning, match="kbert.finetuning is now kbert.experiments"):
        from kbert.finetuning import Experiment, run
    with pytest.warns(DeprecationWarning, match="kbert.config is now kbert.configs"):
        from kbert.config import Config, EncoderConfig
    assert (Experiment, run) == (kbert.experiments.Experiment, kbert.experiments.run)
    assert EncoderConfig is kbert.EncoderConfig
    assert issubclass(EncoderConfig, Config)


def test_the_loss_of_embeddings():
    with pytest.warns(
        DeprecationWarning, match=r"Embeddings is called kbert.distillation.EmbeddingLoss now"
    ) as told:
        from kbert.distillation import Embeddings
    assert Embeddings is kbert.distillation.EmbeddingLoss
    assert {warning.filename for warning in told} == {__file__}
    # Runs that the version before began compare their terms by this record.
    assert Embeddings(weight=0.5).record == "Embeddings(weight=0.5)"


def test_vectors_of_augmentation(tmp_path):
    (tmp_path / "glove.txt").write_text("film 1 0\nmovie 0 1\n")
    with pytest.warns(DeprecationWarning, match=r"is called kbert.word_vectors.WordVectors.load"):
        found = kbert.distillation.read_vectors(tmp_path / "glove.txt", limit=1)
    with pytest.warns(DeprecationWarning, match=r"is called kbert.word_vectors.WordVectors now"):
        assert isinstance(found, kbert.distillation.WordVectors)
    assert found.words == ["film"]


def test_a_deprecation_out_of_kbert_fails_a_test():
    """The setting in pyproject.toml: of kbert's modules, and of no other's."""
    code = compile(
        "import warnings; warnings.warn('old', DeprecationWarning)", "made_up.py", "exec"
    )
    with pytest.raises(DeprecationWarning, match="old"):
        exec(code, {"__name__": "kbert.made_up"})
    exec(code, {"__name__": "made_up"})
    exec(code, {"__name__": "tests.made_up"})


def test_a_script_is_told():
    """By Python's own settings, which hide what other modules than the script cause."""
    code = "import kbert; kbert.config.EncoderConfig"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert "DeprecationWarning: kbert.config is now kbert.configs" in done.stderr
