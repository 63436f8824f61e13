import pytest

from tests import parts


def test_every_part_runs_and_what_failed_is_said_at_the_end(tmp_path, monkeypatch, capfd):
    files = {"broken": "def test_a(): assert 1 == 2", "whole": "def test_b(): pass"}
    files["named"] = "import os\ndef test_c(): assert os.environ['NAME'] == 'value'"
    found = {}
    for name, code in files.items():
        path = tmp_path / name / f"test_{name}.py"
        path.parent.mkdir()
        path.write_text(code)
        found[name] = ([str(path)], {"NAME": "value"} if name == "named" else {})
    monkeypatch.setattr(parts, "find_parts", lambda: found)
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    assert parts.main(["-p", "no:cacheprovider"]) == 1
    said = capfd.readouterr().out.split("== all parts\n")[1].splitlines()
    assert said[0].startswith("broken: FAILED with exit status 1 in ")
    assert said[0].endswith(" · 1 failed in " + said[0].rpartition(" ")[2])
    assert said[1].startswith("    FAILED broken/test_broken.py::test_a - assert 1 == 2")
    assert [line.split(" in ")[0] for line in said[2:]] == ["whole: passed", "named: passed"]
    assert parts.main(["--parts=named"]) == 0


def test_a_part_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        parts.main(["--parts=gpu"])
    assert "Received: gpu" in capsys.readouterr().err


def test_every_folder_is_in_a_part():
    *three, jax = (arguments for arguments, _ in parts.find_parts().values())
    together = [folder for part in three for folder in part]
    assert {"tests/layers", "tests/training", "tests/test_parts.py", "kbert"} <= {*together}
    assert len({*together}) == len(together)
    assert "tests/models" in jax


def test_a_deprecation_out_of_kbert_fails_a_test():
    """The setting in pyproject.toml: of kbert's modules, and of no other's."""
    code = compile(
        "import warnings; warnings.warn('old', DeprecationWarning)", "made_up.py", "exec"
    )
    with pytest.raises(DeprecationWarning, match="old"):
        exec(code, {"__name__": "kbert.made_up"})
    exec(code, {"__name__": "made_up"})
    exec(code, {"__name__": "tests.made_up"})
