"""The files in which a tokenizer's folder tells what its tokenizer is."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

# What Hugging Face's files call "…_token".
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a JSON object; the message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"No such JSON file. Received: {path}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Not a JSON file. Received: {path}: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"Not a JSON object. Received: {path}")
    return content


@dataclass(frozen=True)
class TokenizerFolder:
    """A folder, and the contents of its JSON files; empty where there is no such file.

    Attributes:
        path: the folder.
        config: tokenizer_config.json, settings and names of special tokens.
        special: special_tokens_map.json, the names in older folders.
        full: tokenizer.json, all that Hugging Face's `tokenizers` runs.
    """

    path: Path
    config: dict[str, Any]
    special: dict[str, Any]
    full: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what is there."""

        def content(name: str) -> dict[str, Any]:
            return read_json(path / name) if (path / name).is_file() else {}

        names = ("tokenizer_config.json", "special_tokens_map.json", "tokenizer.json")
        return cls(path, *map(content, names))

    def has(self, *names: str) -> bool:
        """Whether all these files are there."""
        return all((self.path / name).is_file() for name in names)

    def special_tokens(self) -> dict[str, str]:
        """What a special token is for -> the token, as far as the files say it."""
        found = {}
        for role in _ROLES:
            entry = self.config.get(f"{role}_token") or self.special.get(f"{role}_token")
            if entry:
                found[role] = text_of(entry)
        return found


def text_of(token: str | dict[str, Any]) -> str:
    """The text of a special token, which stands there bare or with options beside it."""
    return token["content"] if isinstance(token, dict) else token
