"""The documents: names, flags, paths and links in them are those of the code."""

import ast
import importlib
import inspect
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert import distillation, experiments
from kbert.catalog.recipe import OBJECTIVES
from kbert.catalog.recipes import RECIPES
from kbert.core import late, registry
from kbert.data.masking.schemes import MASKING_SCHEMES
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES
from tests.processes import run_code

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
}
# What it says of earlier versions need not be there any more.
CURRENT = [name for name in PAGES if name != "CHANGELOG.md"]
# Flags of TensorFlow Serving and of absl itself.
FLAGS_OF_OTHERS = {
    *("help", "verbosity"),
    "logdir",  # TensorBoard's
    "tf_xla_persistent_cache_directory",  # TensorFlow's
    # The model server's.
    *("model_config_file", "enable_batching", "batching_parameters_file"),
    "tensorflow_intra_op_parallelism",
}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in a language, "" for those that name none."""
    return [code for found, code in _BLOCK.findall(PAGES[page]) if found == language]


def spans(page: str) -> list[str]:
    """What stands in backticks in the prose and the tables of a page."""
    return re.findall(r"`([^`\n]+)`", _BLOCK.sub("", PAGES[page]))


def resolve(name: str):
    """The object of a dotted name that begins with kbert."""
    value, (_, *parts) = kbert, name.split(".")
    for index, part in enumerate(parts):
        if inspect.ismodule(value) and not hasattr(value, part):
            value = importlib.import_module(".".join(("kbert", *parts[: index + 1])))
        else:
            value = getattr(value, part)
    return value


class Names:
    """What the names of a block of code stand for, as far as kbert defines them."""

    def __init__(self, tree: ast.Module) -> None:
        self.known = {"kbert": kbert}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "kbert":
                for alias in node.names:
                    self.known[alias.asname or alias.name] = resolve(f"{node.module}.{alias.name}")
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                made = self.made_by(node.value)
                if made is not None:
                    self.known[node.targets[0].id] = made

    def made_by(self, node: ast.AST) -> type | None:
        """The class of which a call makes an instance, by its constructor or `from_preset`."""
        if not isinstance(node, ast.Call):
            return None
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "from_preset":
            called = called.value
        found = self.of(called)
        return found if inspect.isclass(found) else None

    def of(self, node: ast.AST):
        """The object of an expression `name.attribute.attribute`; None where it is not known."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        owner = self.of(node.value)
        if owner is None:
            return None
        found = hasattr(owner, node.attr) or sets_attribute(owner, node.attr)
        assert found, f"{ast.unparse(node)} does not exist"
        return getattr(owner, node.attr, None)


def sets_attribute(kind: object, name: str) -> bool:
    """Whether a class of kbert's, or one that it inherits from, says `self.name = …`."""
    bases = [base for base in getattr(kind, "__mro__", ()) if base.__module__.startswith("kbert")]
    return any(re.search(rf"self\.{name}\b.* = ", inspect.getsource(base)) for base in bases)


def check_code(code: str) -> None:
    """Fails where the code does not parse, or names what kbert does not have."""
    tree = ast.parse(code)
    names = Names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.of(node)
        called = names.of(node.func) if isinstance(node, ast.Call) else None
        if called is None:
            continue
        taken = inspect.signature(called).parameters
        if any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            continue
        unknown = {k.arg for k in node.keywords if k.arg} - set(taken)
        assert not unknown, f"{ast.unparse(node.func)} takes no {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("page", [page for page in CURRENT if blocks(page, "python")])
def test_examples_in_python(page):
    for code in blocks(page, "python"):
        check_code(code)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("kbert.Encoders", "kbert.Encoders does not exist"),
        ("kbert.features(encoder, tokenizer, texts, layer=3)", "takes no layer"),
        ("t = kbert.Translator.from_preset('x')\nt.translate('y')", "t.translate does not exist"),
        ("t = kbert.tasks.TextClassifier(e, v, x)\nt.fit(x, epoch=3)", "t.fit takes no epoch"),
    ],
)
def test_a_wrong_name_would_be_caught(code, message):
    with pytest.raises(AssertionError, match=message):
        check_code(code)


def test_what_follows_kbert_in_an_example_is_public():
    """`import kbert` is enough for it: a subpackage that nothing has imported yet is loaded."""
    code = "\n".join(block for page in CURRENT for block in blocks(page, "python"))
    names = set(re.findall(r"(?<![\w.])kbert\.(\w+)", code))
    assert {"decoding", "tasks", "Encoder"} <= names <= set(kbert.__all__)
    beam = "import kbert; print(kbert.decoding.Beam(width=8, num_results=3).width)"
    assert run_code(beam) == "8\n"


@pytest.mark.parametrize("page", CURRENT)
def test_names_in_the_text(page):
    for span in spans(page):
        for name in re.findall(r"(?<![\w./-])kbert(?:\.[A-Za-z_]\w*)+(?!\w)", span):
            if not name.endswith(".json"):
                resolve(name)


def module(program: str):
    """The module of a program such as kbert-convert."""
    return importlib.import_module(f"pipelines.{program.removeprefix('kbert-').replace('-', '_')}")


def flags_of(program: str) -> set[str]:
    """The names of its flags."""
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        module(program).define_flags()
        return set(flags.FLAGS) - before


def programs() -> list[str]:
    """The console scripts."""
    return re.findall(r'"(kbert-[a-z-]+)=', (ROOT / "setup.py").read_text(encoding="utf-8"))


def commands(page: str) -> list[list[str]]:
    """Commands of kbert's programs in the blocks of a page, as words."""
    lines = [line for code in blocks(page, "") for line in code.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("kbert-")]


@pytest.fixture
def beside_ordinal(monkeypatch):
    """The folder of ordinal.py; what --task_module has registered is forgotten behind the test."""
    monkeypatch.chdir(ROOT / "tests" / "tasks")
    known = {sort: dict(classes) for sort, classes in registry._CLASSES.items()}
    was_loaded = "ordinal" in sys.modules
    yield
    registry._CLASSES.clear()
    registry._CLASSES.update(known)
    if not was_loaded:
        sys.modules.pop("ordinal", None)


@pytest.mark.usefixtures("beside_ordinal")
@pytest.mark.parametrize("page", [page for page in CURRENT if commands(page)])
def test_commands(page):
    for program, *words in commands(page):
        with flagsaver.flagsaver():
            module(program).define_flags()
            # Refuses unknown flags, values out of range, and the lack of what must be given.
            assert flags.FLAGS([program, *words]) == [program]


# Of benchmarks.md and BUILD.md they are those of the benchmarks.
ABOUT_PROGRAMS = [p for p in CURRENT if p.startswith(("README", "docs/")) and "bench" not in p]


@pytest.mark.usefixtures("beside_ordinal")
@pytest.mark.parametrize("page", ABOUT_PROGRAMS)
def test_flags_in_the_text(page):
    late.user_module("ordinal.py")  # whose settings are flags too
    known = {name for program in programs() for name in flags_of(program)} | FLAGS_OF_OTHERS
    told = {name for span in spans(page) for name in re.findall(r"--([a-z]\w*)", span)}
    assert told <= known


@pytest.mark.parametrize("page", CURRENT)
def test_make_targets(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = [*spans(page), *(line for block in blocks(page, "") for line in block.splitlines())]
    for line in code:
        if line.startswith("make "):
            words = line.partition("#")[0].split()[1:]
            wanted = {word for word in words if "=" not in word and word != "target"}
            assert wanted <= targets, line


def alternatives(path: str) -> list[str]:
    """ "a{b,c}" -> ["ab", "ac"]."""
    found = re.search(r"\{([^}]*)\}", path)
    return [path.replace(found[0], part) for part in found[1].split(",")] if found else [path]


@pytest.mark.parametrize("page", CURRENT)
def test_paths_of_files_and_names_of_tests(page):
    # BUILD.md's table of slow tests has paths under tests/.
    anywhere = r"(?:tests|kbert|pipelines|benchmarks|notebooks|docs)/[\w./*{},-]*"
    of_a_test = r"[\w./*{},-]*\btest_[\w*{},]+\.py"
    for span in spans(page):
        path, _, test = span.partition("::")
        if not re.fullmatch(f"{anywhere}|{of_a_test}", path):
            continue
        for each in alternatives(path):
            found = [*ROOT.glob(each), *ROOT.glob(f"tests/{each}")]
            assert found, f"{page} names {each}, which does not exist"
            if test:
                name = f"def {test.removesuffix('…')}" + ("" if test.endswith("…") else "(")
                assert name in found[0].read_text(encoding="utf-8"), span


def test_every_file_with_slow_tests_is_listed():
    marked = [p for p in ROOT.glob("tests/**/test_*.py") if "pytest.mark.slow" in p.read_text()]
    listed = {x for span in spans("BUILD.md") for x in alternatives(span.partition("::")[0])}
    assert {str(p.relative_to(ROOT / "tests")) for p in marked if p != Path(__file__)} <= listed


def slugs(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", PAGES[page]), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", PAGES[page])):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in slugs(str(target.resolve().relative_to(ROOT))), f"{page}: {link}"


def first_column(page: str, heading: str) -> set[str]:
    """Names in backticks in the first column of the table with that heading."""
    table = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGES[page], re.M)
    assert table, f"{page} has no table with the first column {heading}"
    cells = [line.split("|")[1] for line in table[1].splitlines()]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", PAGES)
def test_no_heading_skips_a_level(page):
    """A warning of the site's build, which is an error there."""
    levels = [len(mark) for mark in re.findall("^(#+) ", _BLOCK.sub("", PAGES[page]), re.MULTILINE)]
    assert levels[0] == 1
    assert all(deeper <= level + 1 for level, deeper in pairwise(levels))


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("docs/fine_tuning.md", "`--task`", experiments.TASKS),
        ("docs/pretraining.md", "`--segments`", SEGMENT_SCHEMES),
        ("docs/pretraining.md", "`--masking`", MASKING_SCHEMES),
        ("docs/pretraining.md", "`--objective`", OBJECTIVES),
        ("docs/distillation.md", "recipe", distillation.RECIPES),
        ("docs/programs.md", "program", programs()),
    ],
)
def test_tables_are_whole(page, heading, names):
    assert first_column(page, heading) == set(names)


def test_every_recipe_is_named():
    assert set(RECIPES) <= set(spans("docs/pretraining.md"))


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) <= 250


def test_every_page_is_in_the_index():
    pages = {Path(page).name for page in PAGES if page.startswith("docs/")} - {"README.md"}
    assert pages == set(re.findall(r"^\|.*\]\((\w+\.md)\) \|$", PAGES["docs/README.md"], re.M))


def frame(name: str) -> str:
    """A page that only the site has."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_site_has_every_page_program_and_package():
    """A warning of the build is an error, but `make docs` is run less often."""
    entries = re.findall(r"^   (?:[^:<\n]+<)?([\w./*]+)>?$", frame("index.rst"), re.MULTILINE)
    pages = {f"{ROOT / 'docs' / entry}.md" for entry in entries}
    there = {str(ROOT / "docs" / Path(page).name) for page in PAGES if page.startswith("docs/")}
    assert there - {str(ROOT / "docs" / "README.md")} <= pages
    for entry in entries:
        assert list((ROOT / "docs").glob(f"{entry}.*")) or "*" in entry, entry
    assert re.findall(r"^\.\. flags:: (\S+)$", frame("reference/flags.rst"), re.M) == programs()
    modules = re.findall(r"^   kbert\.([\w.]+)$", frame("reference/api.rst"), re.MULTILINE)
    packages = list(dict.fromkeys(module.split(".")[0] for module in modules))
    public = [name for name in kbert.__all__ if isinstance(getattr(kbert, name), ModuleType)]
    assert packages == ["doctor", *public]


def test_the_citation_is_of_the_last_release():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    releases = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert citation["version"] == releases[0]
    assert kbert.__version__ == releases[0] or ".dev" in kbert.__version__
