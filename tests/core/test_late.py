"""The table of late bindings: every entry is there, and nothing else in kbert imports by a name."""

import ast

import pytest

from kbert.core import late
from tests.processes import ROOT

# The table itself, and the public names of `import kbert`.
IMPORTERS = {"kbert/core/late.py", "kbert/__init__.py"}


@pytest.mark.parametrize(
    ("sort", "name"), [(sort, name) for sort, names in late.TABLE.items() for name in names]
)
def test_every_entry_is_there(sort, name):
    assert late.load(sort, name) is dict(late.load_each(sort))[name]


@pytest.mark.parametrize("name", late.TABLE["checkpoint format"])
def test_a_format_keeps_its_contract(name, tmp_path):
    found = late.load("checkpoint format", name)
    assert not found.is_folder(tmp_path)
    assert callable(found.read_folder)


def by_name(source: str) -> bool:
    """Whether a module imports another by a name that it computes."""
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
