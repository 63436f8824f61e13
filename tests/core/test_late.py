"""The table of late bindings: every entry is there, and nothing else in kbert imports by a name."""

import ast
import compileall
import importlib
import json
import subprocess
import sys

import pytest

from kbert.checkpoints import folder
from kbert.core import late, registry
from tests.processes import ROOT

IMPORTERS = {"kbert/core/late.py"}
PACKAGES = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in sorted((ROOT / "kbert").rglob("__init__.py"))
    if "late.public_names" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize(
    ("sort", "name"), [(sort, name) for sort, names in late.TABLE.items() for name in names]
)
def test_every_entry_is_there(sort, name):
    assert late.load(sort, name) is dict(late.load_each(sort))[name]


def test_the_table_names_every_class_that_kbert_registers():
    """And no other. In a process of its own: the classes of other tests are registered here."""
    code = (
        "import importlib, json, pkgutil, kbert\n"
        "from kbert.core import registry\n"
        "rooms = ('configs', 'models', 'tasks', 'edit', 'tokenizers', 'distillation')\n"
        "for found in pkgutil.walk_packages(kbert.__path__, 'kbert.'):\n"
        "    if found.name.split('.')[1] in rooms: importlib.import_module(found.name)\n"
        "classes = registry._CLASSES.items()\n"
        "place = lambda x: f'{x.__module__}:{x.__qualname__}'\n"
        "print(json.dumps({k: {n: place(x) for n, x in xs.items()} for k, xs in classes}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    sorts = json.loads(done.stdout.splitlines()[-1])
    assert sorts == {sort: late.TABLE[sort] for sort in sorts}
    assert {"config", "encoder", "part", "adapter", "task"} <= set(sorts)


def test_a_name_of_the_table_is_taken_before_its_class_is_loaded():
    code = (
        "from kbert.core import registry\n"
        "class Mine: ...\n"
        "try: registry.register('task', 'classify', Mine)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (
        "'classify' is already registered for kbert.tasks.fine_tuning.text_classifier"
        in done.stdout
    )
    assert registry.names("task")[: len(late.TABLE["task"])] == list(late.TABLE["task"])


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_what_they_are_called(package):
    """A name that is also a module's would be one or the other, by what was imported before."""
    found = importlib.import_module(package)
    assert found.__all__
    assert set(found.__all__) <= set(dir(found))
    for name in found.__all__:
        value = getattr(found, name)
        if (own := sys.modules.get(f"{package}.{name}")) is not None and value is not own:
            text = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
            assert f"\nfrom {package}.{name} import {name} as {name}" in text  # at once
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        found.nothing  # noqa: B018


def test_a_package_without_its_source_says_so(tmp_path):
    """As where only the compiled files of a package are shipped."""
    package = tmp_path / "without_source"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from kbert.core import late\n__getattr__, __dir__, __all__ = late.public_names(__name__)\n"
    )
    compileall.compile_dir(package, legacy=True, quiet=1)
    (package / "__init__.py").unlink()
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import without_source"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "readable from its source. Received: without_source without it" in done.stderr


@pytest.mark.parametrize("name", late.TABLE["checkpoint format"])
def test_a_format_keeps_its_contract(name, tmp_path):
    found = late.load("checkpoint format", name)
    assert not found.is_folder(tmp_path)
    assert callable(found.read_folder)
    assert found.READS
    if name in {x for config in late.TABLE["config"] for x in late.load("config", config).FORMATS}:
        assert callable(found.write_folder)
        assert {*found.TAKES} <= {*folder._OPTIONS}


def by_name(source: str) -> bool:
    """Whether a module imports another by a name that it computes."""
    if "import_module" not in source and "__import__" not in source:
        return False
    names = {ast.unparse(node) for node in ast.walk(ast.parse(source))}
    return bool(names & {"importlib.import_module", "import_module", "__import__"})


def test_nothing_else_imports_by_a_name():
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "kbert").rglob("*.py")
        if by_name(path.read_text(encoding="utf-8"))
    }
    assert found == IMPORTERS
    assert by_name("import importlib\nimportlib.import_module('kbert.' + name)")


@pytest.mark.parametrize(
    ("before", "frozen"),
    [
        ("gc.enable()", True),
        ("gc.disable()", False),
        ("others = [[] for _ in range(60_000)]", False),  # which may become garbage
    ],
)
def test_collection_rests_while_keras_is_imported(before, frozen):
    """What was imported is left out of later collections, unless the program's own rule is off."""
    code = (
        f"import gc; {before}; was = gc.isenabled()\n"
        "from kbert import Encoder\n"
        "assert gc.isenabled() == was\n"
        "count = gc.get_freeze_count()\n"
        "import kbert.search; kbert.TextClassifier\n"  # a later import changes nothing
        "assert gc.get_freeze_count() <= count\n"
        "print(count > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == str(frozen), done.stderr
