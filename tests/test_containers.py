"""The Dockerfile, the devcontainer and constraints.txt name what there is. No Docker runs here."""

import json
import re
import shlex

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from kbert.doctor import EXTRAS
from tests.installed import PYTHONS
from tests.processes import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGES = [DOCKERFILE, *(path.read_text(encoding="utf-8") for path in ROOT.glob("*.md"))]
# What setup.py opens, and the programs beside it.
NEEDED = {"LICENSE", "MANIFEST.in", "README.md", "kbert", "pipelines", "pyproject.toml", "setup.py"}


def test_the_base_image():
    (version,) = re.findall(r"^FROM python:(3\.\d+)-slim$", DOCKERFILE, re.MULTILINE)
    assert f"python{version}" in PYTHONS


def test_extras_are_those_of_setup():
    chosen = {x for page in PAGES for x in re.findall(r"--build-arg EXTRAS=([\w,]+)", page)}
    assert chosen
    assert {extra for x in chosen for extra in x.split(",")} <= set(EXTRAS)


def test_the_context_is_what_a_wheel_is_built_from():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert allowed == {*NEEDED, "constraints.txt"}
    assert all((ROOT / name).exists() for name in allowed)
    assert set(re.findall(r"/source/([\w.]+)", DOCKERFILE)) <= allowed


def test_the_command():
    (command,) = re.findall(r"^CMD (.+)$", DOCKERFILE, re.MULTILINE)
    python, flag, module = json.loads(command)
    assert (python, flag) == ("python", "-m")
    assert (ROOT / f"{module.replace('.', '/')}.py").exists()


def test_the_devcontainer():
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert f"python{content['image'].rpartition(':')[2]}" in PYTHONS
    make, *targets = shlex.split(content["postCreateCommand"])
    assert make == "make"
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(targets) <= known
    settings = content["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"] == ".venv/bin/python"  # Makefile's VENV


def requirements() -> list[Requirement]:
    """What setup.py lists, for kbert and for its tests."""
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    lists = re.findall(r"^(?!DOCS)[A-Z]+ = \[(.*?)\]$", setup, re.M | re.S)
    lists += re.findall(r"install_requires=\[(.*?)\],", setup, re.DOTALL)
    assert len(lists) == 8
    return [Requirement(x) for each in lists for x in re.findall(r'"([^"]+)"', each)]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_all_of_setup():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonical(name): Version(version) for name, version in pins.items()}
    for wanted in requirements():
        assert pins[canonical(wanted.name)] in wanted.specifier, wanted
    assert not any(version.local for version in pins.values())


@pytest.mark.parametrize("name", ["constraints.txt", "Dockerfile", ".dockerignore"])
def test_no_path_of_a_machine(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
