"""Files of the page, read by fixed names; no name comes from a request."""

from pathlib import Path

from kbert.visualization.attention_page import page_file

# Files that the page has with every engine.
_PAGE = {"index.html": "index.html", "style.css": "style.css", "page.js": "page.js"}
# The page imports ./engine.js: one that calls a server, or one that computes in the browser.
ENGINES = {
    "server": {"engine.js": "server_engine.js"},
    "browser": {"engine.js": "browser_engine.js", "wordpiece.js": "wordpiece.js"},
}


def page_files(engine: str) -> dict[str, str]:
    """Returns name -> content of all files of the page.

    Args:
        engine: a key of `ENGINES`.

    Example:
        >>> sorted(page_files("server"))
        ['attention_page.css', 'attention_page.js', 'engine.js', 'index.html', 'page.js', 'style.css']
    """  # noqa: E501
    folder = Path(__file__).parent / "page"
    names = {**_PAGE, **ENGINES[engine]}
    contents = {name: (folder / file).read_text(encoding="utf-8") for name, file in names.items()}
    return {**contents, **{f"attention_page.{kind}": page_file(kind) for kind in ("css", "js")}}
