"""Reads JSON files from any source: returns an object, or raises with a one-line reason."""

import json
import os
from typing import Any

from kbert.io.paths import Path, read_settings


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text.

    Args:
        text: a string, or UTF-8 with or without a byte order mark.

    Returns:
        The value.

    Raises:
        ValueError: the text is not UTF-8 or not JSON, or has deeper brackets or a longer number
            than Python can parse. The message is only the reason; the caller adds the file's name.

    Example:
        >>> parse_json(b'\\xef\\xbb\\xbf{"layers": 2}')
        {'layers': 2}
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: brackets nested too deeply
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:  # the limit of int(): time grows with the square of the digits
        raise ValueError("a number with thousands of digits") from None


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Args:
        path: the file, in UTF-8.

    Returns:
        The object.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else, or is too large; the message names the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "config.json")
        >>> _ = path.write_text('{"layers": 2}')
        >>> read_json(path)
        {'layers': 2}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such JSON file. Received: {path}")
    raw = read_settings(path)
    try:
        content = parse_json(raw)
    except ValueError as error:
        raise ValueError(f"The file is not JSON ({error}). Received: {path}") from error
    if not isinstance(content, dict):
        raise ValueError(f"The file must contain a JSON object. Received: {path}")
    return content
