"""The wheel and the sdist: the library with its programs inside, and nothing else."""

import configparser
import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests import installed
from tests.processes import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        importlib.util.find_spec("setuptools") is None, reason="needs setuptools, to build with"
    ),
]
# What a wheel is built from, and the description of the package.
TOP_LEVEL = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md"}
TOP_LEVEL |= {"pyproject.toml", "setup.cfg", "setup.py"}


def has_run(path) -> bool:
    """Whether a module is a program."""
    return "\nPROGRAM = " in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return installed.build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return installed.build("sdist", tmp_path_factory.mktemp("sdist"))


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
        for folder in ("kbert/visualization", "kbert/serve/demo/page")
        for path in (ROOT / folder).iterdir()
        if path.suffix in (".css", ".html", ".js")
    }
    assert {"kbert/py.typed", *pages} <= set(names)
    assert f"{about}/licenses/LICENSE" in names


def test_the_sdist_holds_what_a_wheel_is_built_from(sdist, wheel):
    with tarfile.open(sdist) as archive:
        names = {x.name.partition("/")[2] for x in archive.getmembers() if x.isfile()}
    rest = {x for x in names if not x.startswith("kbert.egg-info/")}
    built = {x for x in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in x}
    assert {x for x in rest if "/" not in x} == TOP_LEVEL
    sources = {re.sub("^kbert/pipelines/", "pipelines/", x) for x in built}
    assert rest - TOP_LEVEL == sources


def test_pythons_are_those_of_setup():
    found = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "setup.py").read_text()
    )
    assert [f"python{version}" for version in found] == list(installed.PYTHONS)


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
    targets = [f"kbert.pipelines.{name}:run" for name in programs]
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
