"""`docs:` on one package of the standard library, and on docstrings written here."""

import os

import pytest

from kbert.text import documentation, documents, open_sources
from kbert.text.documentation import prose


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_one_module_one_document(cache):
    (source,) = open_sources("docs:email")
    found = list(source.documents())
    assert 10 < len(found) < 60
    assert any(b"Parse a string into a Message object model." in text for text in found)
    lines = [line for text in found for line in text.split(b"\n")]
    assert len(set(lines)) == len(lines)
    assert len(os.listdir(cache)) == 1


def test_extraction_is_kept_and_found_again(cache, monkeypatch):
    first = list(documents("docs:json"))
    monkeypatch.setattr(documentation, "_extract", lambda *_: pytest.fail("extracted again"))
    assert list(documents("docs:json")) == first
    assert open_sources("docs:json")[0].identity() == open_sources("docs:json")[0].identity()


def test_an_interrupted_extraction_leaves_nothing(cache, monkeypatch):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(documentation, "_prose_of_module", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_sources("docs:json")
    assert os.listdir(cache) == []


def test_a_package_that_is_not_there():
    with pytest.raises(ValueError, match=r"standard library or installed. Received: 'no_such'"):
        open_sources("docs:no_such")


def test_prose_leaves_code_tables_and_markup_out():
    docstring = """Splits `text` into **words**, see :func:`split <other.split>`.

    Wrapped lines of a paragraph
    become one.

    Args:
        text: what is to be split, as a string of any
            length.
        limit: stop after this many.

    ============ ======
    =====  =====  =====

    >>> split("a b")
    ['a', 'b'] and some more words of output

    ```python
    these are words in a block of code
    ```
    x = y[0] + z(3) * 2 / (a - b) ** 2 % c
    Two words.
    """
    assert prose(docstring) == [
        "Splits text into words, see split.",
        "Wrapped lines of a paragraph become one.",
        "text: what is to be split, as a string of any length.",
        "limit: stop after this many.",
    ]


def test_docstrings_are_read_not_run(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""A module that must not be imported."""\nraise SystemExit\n'
        "if True:\n    class A:\n        '''The first class of the module.'''\n"
        "        async def f(self):\n            '''The method of the first class.'''\n"
        "        def g(self):\n            return '''no docstring at all here'''\n"
    )
    assert list(documentation._prose_of_module(str(module))) == [
        "A module that must not be imported.",
        "The first class of the module.",
        "The method of the first class.",
    ]
    module.write_text('"""A template."""\nclass {name}:\n    pass\n')
    assert list(documentation._prose_of_module(str(module))) == []
