"""The site: the Markdown files of the repository, the notebooks as they are, and a reference.

`make docs` builds it. The sources are the repository itself, so that what links to README.md or to
a notebook on a forge links to it here; pages that only the site needs are `.rst`.
"""

import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import chart  # noqa: E402

import kbert  # noqa: E402
from kbert.catalog.recipes import RECIPES  # noqa: E402

project, author, copyright = "kbert", "The kbert authors", "The kbert authors"
version = release = kbert.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "notebooks/*.ipynb"]
exclude_patterns = ["docs/_build", "docs/_templates", "docs/README.md"]  # the forge's index
templates_path = ["_templates"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
smartquotes = False  # "--flag" stays one
html_title = f"kbert {release}"
html_additional_pages = {
    "index": "redirect.html"
}  # `_build/html/index.html` leads to the root page
html_copy_source = False
highlight_language = "none"

nb_execution_mode = "off"  # what is shown is what `make notebooks` has stored
myst_heading_anchors = 4  # links to headings as a forge makes them

autodoc_inherit_docstrings = False
autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autosummary_generate = True
autosummary_ignore_module_all = False
default_role = "literal"
napoleon_use_rtype = False
napoleon_use_ivar = True
suppress_warnings = [
    "misc.highlighting_failure",  # "…" in an example stands for what is left out
]


class ProgramFlags(SphinxDirective):
    """The flags of a program, from the program: `.. flags:: kbert-pretrain`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from absl import flags
        from absl.testing import flagsaver

        program = self.arguments[0]
        name = program.removeprefix("kbert-").replace("-", "_")
        module = importlib.import_module(f"pipelines.{name}")
        with flagsaver.flagsaver():
            before = set(flags.FLAGS)
            module.define_flags()
            found = [flags.FLAGS[x] for x in sorted(set(flags.FLAGS) - before)]
            for x in set(flags.FLAGS) - before:
                delattr(flags.FLAGS, x)
        summary, _, _ = inspect.getdoc(module).partition("\n\n")
        rows = [
            (f"--{flag.name}", _shown(flag.default), " ".join(flag.help.split())) for flag in found
        ]
        return [nodes.paragraph("", summary), _table(("flag", "default", "meaning"), rows)]


class Recipes(SphinxDirective):
    """The recipes of pretraining, with their sources: `.. recipes::`."""

    def run(self) -> list[nodes.Node]:
        rows = [
            (recipe.name, recipe.model, recipe.objective, recipe.source)
            for recipe in RECIPES.values()
        ]
        return [_table(("recipe", "model", "objective", "source"), rows)]


class Numbers(SphinxDirective):
    """Speeds beside peers' as bars, from BUILD.md: `.. numbers::`."""

    def run(self) -> list[nodes.Node]:
        source = ROOT / "BUILD.md"
        self.env.note_dependency(str(source))
        picture = chart.draw(chart.speeds_in(source.read_text(encoding="utf-8")))
        return [nodes.raw("", picture, format="html")]


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    """A table of plain text, the first column as code."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row(head, is_head=True))
    group += nodes.tbody("", *(_row(row) for row in rows))
    return nodes.table("", group)


def _row(cells: tuple[str, ...], is_head: bool = False) -> nodes.row:
    first, *others = cells
    opening = nodes.paragraph("", first) if is_head else nodes.literal("", first)
    if not is_head:
        opening = nodes.paragraph("", "", opening)
    entries = [nodes.entry("", opening)]
    entries += [nodes.entry("", nodes.paragraph("", text)) for text in others]
    return nodes.row("", *entries)


def plain_text(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are text, with code in backticks: signs of reStructuredText mean themselves.

    Settings that `kbert.core.options` has put below an argument become a list.
    """
    in_example = in_settings = False
    for number, line in enumerate(lines):
        in_example = bool(line.strip()) and (in_example or line.lstrip().startswith(">>>"))
        if in_example:
            continue
        parts = re.split(r"(``[^`]+``|`[^`]+`)", line)
        for i in range(0, len(parts), 2):
            parts[i] = re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", parts[i])
            if i and parts[i][:1].isalnum():  # as in "`option`s"
                parts[i] = f"\\ {parts[i]}"
        line = "".join(parts)
        if line.strip():
            follows = number > 1 and not lines[number - 1] and lines[number - 2].endswith(":")
            in_settings = line.startswith(" " * 8) and (in_settings or follows)
        if in_settings:
            line = re.sub(r"^ {8}(\w+): ", r"        * `\1`: ", line)
            line = re.sub(r"^ {12}", " " * 10, line)
        lines[number] = line


def constructor(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: Any
) -> tuple[str, Any] | None:
    """Arguments of a class whose `__new__`, such as Keras', hides them."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    _, *parameters = inspect.signature(obj.__init__).parameters.values()
    bare = [x.replace(annotation=inspect.Parameter.empty) for x in parameters]
    return str(inspect.Signature(bare)), result


def setup(app: Sphinx) -> None:
    """Registers the directives, and what happens to docstrings before napoleon sees them."""
    app.add_directive("flags", ProgramFlags)
    app.add_directive("recipes", Recipes)
    app.add_directive("numbers", Numbers)
    app.connect("autodoc-process-docstring", plain_text, priority=400)
    app.connect("autodoc-process-signature", constructor)
