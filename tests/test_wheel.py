"""The wheel: the library with its programs inside, and no top-level name that a user may have."""

import configparser
import importlib.util
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.processes import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        importlib.util.find_spec("setuptools") is None, reason="needs setuptools, to build with"
    ),
]
SOURCES = ("kbert", "pipelines", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def has_run(path):
    return "\ndef run(" in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built file. A build leaves files among its sources, so it is of a copy."""
    sources = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, sources / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, sources)
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    command = (sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, sources)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_library_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    (about,) = tops - {"kbert"}
    assert about.endswith(".dist-info")
    for folder, place in (("kbert", ""), ("pipelines", "kbert/")):
        files = {f"{place}{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}
        assert files <= set(names)
    pages = {
        str(path.relative_to(ROOT))
        for folder in ("kbert/visualization", "kbert/demo/page")
        for path in (ROOT / folder).iterdir()
        if path.suffix in (".css", ".html", ".js")
    }
    assert {"kbert/py.typed", *pages} <= set(names)


def test_every_console_script_starts(wheel, tmp_path):
    """From the files of the wheel alone, where the user has a `pipelines` too."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text("raise ImportError('the user has one too')")
    (listed,) = tmp_path.glob("*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read(listed)
    scripts = dict(parser["console_scripts"])
    programs = {path.stem for path in (ROOT / "pipelines").glob("*.py") if has_run(path)}
    targets = [f"kbert.pipelines.{name}:run" for name in programs - {"command"}]
    assert sorted(scripts.values()) == sorted(targets)
    code = f"""
import importlib, kbert
assert kbert.__file__.startswith({str(tmp_path)!r}), kbert.__file__
for target in {sorted(scripts.values())!r}:
    module, name = target.split(":")
    print(target, callable(getattr(importlib.import_module(module), name)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"{target} True" for target in sorted(scripts.values())]
