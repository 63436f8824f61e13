"""kbert as a user gets it: built, installed into empty environments, run outside of the checkout.

    python -m tests.installed                               # both files, every Python that is here
    python -m tests.installed --kinds=wheel --pythons=python3.11
    python -m tests.installed --kinds=wheel --environment=.venv  # in the place of the checkout

Needs setuptools in the Python that runs it, to build with, and nothing else. An environment gets
what setup.py says, from pip's index or its cache; then the quickstart runs at its smallest, and
`python -m kbert.doctor` must find nothing broken. What was left out is named at the end.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")  # for which TensorFlow has wheels
KINDS = ("wheel", "sdist")
# The quickstart at its smallest: every stage runs.
SMALL = (
    "--sources=docs:email,docs:unittest,docs:asyncio",
    "--vocabulary_size=1000",
    "--sequence_length=32",
    "--batch_size=16",
    "--held_out_share=0.3",
    "--steps=40",
)
IGNORED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "bench-*")


def build(kind: str, folder: Path) -> Path:
    """The wheel or the sdist, in `folder`; of a copy, since a build leaves files there."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = Path(shutil.copytree(ROOT, Path(scratch, "sources"), ignore=IGNORED))
        folder.mkdir(parents=True, exist_ok=True)
        code = (
            "import sys; from setuptools import build_meta; "
            "print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
        )
        said = run(sys.executable, "-c", code, kind, folder.resolve(), cwd=sources)
        return folder.resolve() / said.splitlines()[-1]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; it sees nothing of the environment that says where modules lie."""
    environment = {k: x for k, x in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(map(str, command))
        sys.exit(f"{shown} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def find(name: str) -> Path | None:
    """The interpreter of a name or path, if it runs; pyenv's are found though none is chosen."""
    version = name.removeprefix("python")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in (shutil.which(name), *sorted(pyenv.glob(f"{version}.*/bin/{name}"))):
        if path is not None:
            code = "import sys; print(sys.executable)"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True)
            if done.returncode == 0:
                return Path(done.stdout.strip())
    return None


def try_out(file: Path, python: Path) -> str:
    """Installs a file into an empty environment and uses it there; how long that took."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch, "venv")
        run(python, "-m", "venv", environment, cwd=Path(scratch))
        return install_and_use(file, environment)


def install_and_use(file: Path, environment: Path, *options: str) -> str:
    """Installs a file and uses it, away from the checkout; how long that took."""
    python = environment / "bin" / "python"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        install = (python, "-m", "pip", "install", "--quiet", "--no-compile", *options)
        run(*install, file, cwd=folder)
        installed = time.monotonic()
        where = "import kbert; print(kbert.__file__)"
        place = Path(run(python, "-c", where, cwd=folder).strip()).resolve()
        if not place.is_relative_to(environment.resolve()):
            sys.exit(f"kbert was imported from outside of the environment. Received: {place}")
        run(environment / "bin" / "kbert-quickstart", *SMALL, cwd=folder)
        if not (folder / "quickstart" / "serving" / "1" / "saved_model.pb").exists():
            sys.exit(f"The quickstart of {file.name} has exported no model.")
        run(python, "-m", "kbert.doctor", cwd=folder)
        ran = time.monotonic()
    return f"installed in {installed - started:.0f} s, ran in {ran - installed:.0f} s"


def main() -> None:
    """Builds and tries what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="wheel, sdist, or both")
    parser.add_argument("--pythons", default=",".join(PYTHONS), help="names or paths")
    parser.add_argument(
        "--environment",
        type=Path,
        help="One that holds the dependencies: a file replaces the kbert there, and nothing else.",
    )
    chosen = parser.parse_args()
    left_out = []
    with tempfile.TemporaryDirectory() as scratch:
        files = [build(kind, Path(scratch)) for kind in chosen.kinds.split(",")]
        if chosen.environment is not None:
            for file in files:
                options = ("--no-deps", "--force-reinstall")
                print(
                    f"{file.name} {install_and_use(file, chosen.environment.absolute(), *options)}"
                )
            return
        for name in chosen.pythons.split(","):
            python = find(name)
            if python is None:
                left_out.append(name)
                continue
            for file in files:
                print(f"{name}: {file.name} {try_out(file, python)}", flush=True)
    if left_out:
        print(f"left out, not installed here: {', '.join(left_out)}")
    if len(left_out) == len(chosen.pythons.split(",")):
        sys.exit("No Python to try it on.")


if __name__ == "__main__":
    main()
