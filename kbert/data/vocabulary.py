"""A vocabulary trained once: kept with what it was trained on, taken again for that alone."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from absl import logging

from kbert import atomic, tokenizers
from kbert.data import manifest
from kbert.text.sources import open_sources
from kbert.version import __version__


def train_or_reuse_vocabulary(
    path: str | os.PathLike,
    sources: str | os.PathLike | Iterable[str | os.PathLike],
    vocabulary_size: int,
    *,
    lowercase: bool = True,
    field: str = "text",
    on_bad_utf8: str = "fail",
    progress: bool = False,
) -> list[str]:
    """Trains a vocabulary on the sources, or takes the one that an equal call has trained.

    Beside `vocab.txt` lies `vocab.origin.json`: the sources (name, size and time of a file), the
    settings and the vocabulary's checksum. Where any of them differs the vocabulary is trained
    anew, unless finished shards in the same folder depend on the one that is there.

    Args:
        path: the vocab.txt to read or write; its folder is made where it does not exist.
        sources: text, as `kbert.text.open_sources` takes it.
        vocabulary_size: how many pieces at most.
        lowercase: as the tokenizer will be made.
        field: where JSON lines and TensorFlow data sets keep the text.
        on_bad_utf8: "fail" or "replace".
        progress: show a progress bar.

    Returns:
        The pieces in the order of their ids.

    Raises:
        FileNotFoundError: a source that is not there.
        ValueError: bad input, or shards in the folder that were made with another vocabulary.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/text.txt", "w") as file:
        ...     _ = file.write("low lower lowest " * 9)
        >>> train_or_reuse_vocabulary(f"{folder}/vocab.txt", f"{folder}/text.txt", 20)[5:9]
        ['e', 'l', 'o', 'r']
        >>> sorted(os.listdir(folder))
        ['text.txt', 'vocab.origin.json', 'vocab.txt']
    """
    path = Path(path)
    record = path.with_suffix(".origin.json")
    opened = open_sources(sources, field=field, on_bad_utf8=on_bad_utf8)
    origin = {
        "kbert_version": __version__,
        "vocabulary_size": vocabulary_size,
        "lowercase": lowercase,
        "on_bad_utf8": on_bad_utf8,
        "sources": [source.identity() for source in opened],
    }
    if path.exists():
        differing = _differences(record, origin, path)
        if not differing:
            logging.info("Using the vocabulary that is in %s", path)
            return tokenizers.read_vocabulary(path)
        if (path.parent / manifest.FILE_NAME).exists():
            raise ValueError(
                f"{path.parent} holds shards that were made with another vocabulary; choose "
                f"another folder or remove that one. Differing: {differing}"
            )
        logging.info("Training the vocabulary in %s anew. Differing: %s", path, differing)
    texts = (text for source in opened for text in source.documents())
    trained = tokenizers.train_wordpiece(
        texts, vocabulary_size, lowercase=lowercase, progress=progress
    )
    # In this order: a record that tells of another vocabulary is no record.
    tokenizers.save_vocabulary(trained, path)
    content = {**origin, "vocab_txt_sha256": _sha256(path)}
    atomic.write(record, (json.dumps(content, indent=2) + "\n").encode())
    return trained


def _differences(record: Path, origin: dict, path: Path) -> list[str]:
    """What keeps the vocabulary in `path` from being the one of `origin`."""
    if not record.exists():
        return [f"no {record.name}"]
    try:
        before = json.loads(record.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return [f"{record.name} is damaged"]
    found = [
        f"{name}: {before.get(name)!r}, now {value!r}"
        for name, value in origin.items()
        if name != "sources" and before.get(name) != value
    ]
    if before.get("sources") != origin["sources"]:
        found.append("sources, or files among them that have changed since")
    if before.get("vocab_txt_sha256") != _sha256(path):
        found.append(f"{path.name} has changed since it was trained")
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
