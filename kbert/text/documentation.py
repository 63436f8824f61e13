"""`docs:` – the documentation that is already on any machine with kbert installed.

The source is the docstrings of the standard library and of the installed packages, read with
`ast` (nothing is imported or run). One module is one document. Wrapped lines are joined into
paragraphs; code, tables and markup are removed. A paragraph that occurs in several modules is
kept once. That is tens of megabytes of real English prose, enough for a first pretraining without
any download.
"""

import ast
import gc
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from typing import Any

from absl import logging

from kbert.io import atomic, fingerprints
from kbert.io.paths import cache_folder
from kbert.io.progress import Progress
from kbert.text import files

# Part of the cache's name; increment it when the same packages would give a different text.
_EXTRACTION = 1
_TESTS = re.compile(r"(test|tests|testing|testdata|test_.*|.*_test|idle_test|conftest)(\.py)?\Z")
_MAX_MODULE_BYTES = 4 << 20  # larger ones are generated tables
# Lines that begin a new paragraph: list items, field markers, "name: what it is".
_ITEM = re.compile(r"([-*+•]|\d+[.)]|:\w|@\w|\.\.|[`\"'*]*[\w.,*` ()\[\]]{1,60}:(\s|\Z))")
_MARKUP = re.compile(r":[\w:]+:`~?([^`<]*?)\s*(?:<[^`>]*>)?`|`{1,2}([^`]*)`{1,2}|\*\*([^*]+)\*\*")
_PROSE = re.compile(r"[^\W\d_]{2,}")


class Documentation(files.TextFile):
    """A text file of docstrings in the cache folder, extracted on first use.

    The folder is `$KBERT_CACHE`, or `kbert` under `$XDG_CACHE_HOME` (default `~/.cache`).

    Args:
        package: importable top-level name such as "email", or "" for all packages.
    """

    def __init__(self, package: str = "") -> None:
        modules = _modules(package)
        if not modules:
            raise ValueError(
                "docs:NAME requires a package or module written in Python, from the standard "
                f"library or installed. Received: {package!r}"
            )
        sizes = (f"{name} {os.path.getsize(path)}\n" for name, path in modules)
        checksum = fingerprints.sha256("".join([repr((_EXTRACTION, package)), *sizes]))
        folder = cache_folder()
        path = os.path.join(folder, f"documentation-{checksum[:16]}.txt")
        if not os.path.exists(path):
            os.makedirs(folder, exist_ok=True)
            _extract(modules, path)
        super().__init__(path, "fail")

    def identity(self) -> dict:
        return {"name": os.path.basename(self.path), "size": self.size}


def _modules(package: str) -> list[tuple[str, str]]:
    """Returns (path relative to its root, path) of a package's modules, sorted, without tests.

    The roots are those of the standard library and of the installed packages. `package` is a
    top-level name, or "" for all packages.
    """
    paths = sysconfig.get_paths()
    modules: dict[str, str] = {}
    for root in dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"])):
        for folder, names, file_names in os.walk(root):
            top = folder == root
            names[:] = [
                name
                for name in names
                if name.isidentifier()
                and not name.startswith("__")
                and not _TESTS.match(name)
                and (not top or package in ("", name))
            ]
            for name in file_names:
                is_module = name.endswith(".py") and not _TESTS.match(name)
                if is_module and (not top or package in ("", name.removesuffix(".py"))):
                    path = os.path.join(folder, name)
                    modules.setdefault(os.path.relpath(path, root), path)
    return sorted(modules.items())


def _extract(modules: list[tuple[str, str]], path: str) -> None:
    """Writes the prose of the modules' docstrings to the file `path`, a document per module.

    Each paragraph is written once. `modules` are pairs of a name and the path of a Python file.
    """
    logging.info("Extracting the documentation of %d modules into %s", len(modules), path)
    seen_keys: set[bytes] = set()
    # The parser creates millions of objects but no cycles: garbage collection would use two
    # thirds of the time and free nothing.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with (
            atomic.writing(path) as file,
            Progress("documentation", len(modules), " modules") as bar,
        ):
            documents = 0
            for number, (_, module) in enumerate(modules, start=1):
                new_paragraphs = [p for p in _prose_of_module(module) if _is_new(p, seen_keys)]
                if new_paragraphs:
                    file.write("\n".join(new_paragraphs).encode() + b"\n\n")
                    documents += 1
                bar.show(number, documents)
    finally:
        if collecting:
            gc.enable()


def _is_new(paragraph: str, seen: set[bytes]) -> bool:
    key = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
    if key in seen:
        return False
    seen.add(key)
    return True


def _prose_of_module(path: str) -> Iterator[str]:
    """Yields the paragraphs of prose in the docstrings of a Python file.

    Files that are too large or do not parse give none.
    """
    with open(path, "rb") as file:
        code = file.read(_MAX_MODULE_BYTES + 1)
    if len(code) > _MAX_MODULE_BYTES or (b'"""' not in code and b"'''" not in code):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        # Packages also contain templates and files for other versions of Python.
        logging.debug("%s is not Python of this version", path)
        return
    for docstring in _docstrings(tree):
        yield from prose(docstring)


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yields the docstrings of a parsed module, its classes and functions, in source order."""
    body: Any = getattr(node, "body", None)
    if body and not isinstance(node, (ast.If, ast.Try, ast.With)):
        value = body[0].value if isinstance(body[0], ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
    for child in body:
        if isinstance(
            child,
            (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.If, ast.Try, ast.With),
        ):
            yield from _docstrings(child)


def prose(docstring: str) -> list[str]:
    """Returns the paragraphs of English prose in a docstring, each as one line.

    Example:
        >>> prose('''Adds two
        ... numbers.
        ...
        ...     >>> add(1, 2)
        ...     3
        ... ''')
        ['Adds two numbers.']
    """
    paragraphs: list[list[str]] = [[]]
    indent = 0
    skipping = fenced = False
    for line in inspect.cleandoc(docstring).split("\n"):
        text = line.strip()
        if text.startswith("```"):
            fenced = not fenced
            continue
        if text.startswith(">>>"):
            skipping = True
        if not text:
            skipping = False
            paragraphs.append([])
            continue
        if skipping or fenced:
            continue
        line_indent = len(line) - len(line.lstrip())
        # A heading's underline or a smaller indentation ends a paragraph.
        if _ITEM.match(text) or line_indent < indent or not _PROSE.search(text):
            paragraphs.append([])
        indent = line_indent
        paragraphs[-1].append(text)
    joined = (_MARKUP.sub(_plain, " ".join(lines)) for lines in paragraphs)
    return [paragraph for paragraph in joined if _is_prose(paragraph)]


def _plain(markup: re.Match) -> str:
    return next(group for group in markup.groups() if group is not None)


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph is mostly words: no heading, table, signature, code or ASCII art."""
    words = paragraph.split()
    if len(words) < 3:
        return False
    plain = sum(word.strip(".,;:!?()\"'").isalpha() for word in words)
    return plain >= 0.7 * len(words)
